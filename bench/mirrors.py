"""`python -m bench.mirrors`: what mirrors cost the requests that are mirrored.

One router serves one origin by endpoints that differ in their mirror: none, one that answers, one that is
compared besides, a dead one, one that never answers, one that answers 16 MiB. Each of them has turns of less
than a second beside turns of the endpoint without a mirror: one of either, the first by chance, is a pair.
All connections are made at the start and kept. A pair has a difference in p50 and one in p99 (with large
bodies, of which a turn has some 40, that is the slowest); given are the medians of these differences, and the
intervals that have the true ones with 95 %. A second endpoint without a mirror is measured like the others:
its difference is noise.

The router has a core to itself. The clients, the origin and the mirrors share the other; the mirrors run
there only while neither clients nor origin want to (SCHED_IDLE), in place of a machine of their own. What the
kernel does for a mirror's connections is done on either core, and counts. `--out` writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench import paired, processes, product
from bench.figures import Figures
from bench.ledger import quantile
from bench.proxies import free_ports
from bench.run import commit, machine
from bench.timer import precise

HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
CONNECTIONS = 16
NONE = "none"
CASES = ("none again", "mirror", "compared", "dead", "silent", "huge")
"""What is measured beside the endpoint without a mirror."""
ANSWER, HUGE_ANSWER = 64, 16 << 20
"""Bytes of the answers of the origin, and of the mirror `huge`."""
BODIES = {"small": 300, "large": 1_000_000}
"""Bytes of the requests: the large ones are just below the bound of what is copied, 1 MiB."""
PERCENTILES = (("p50", 0.5), ("p99", 0.99))
BETWEEN = 0.03
"""Seconds between two turns, for the last copies."""


def request(size: int) -> bytes:
    """A request with so many bytes of body.

    Args:
        size: of the body, 20 at least.
    """
    body = b'{"instances": ["%b"]}' % (b"x" * (size - 20))
    return HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def endpoints(
    ports: dict[str, int], origin: int, copy: int, dead: int, silent: int, huge: int
) -> list[dict[str, Any]]:
    """The endpoints, all of one origin; `ports` are the router's, the others those of origin and mirrors."""
    named = {
        name: {"name": name, "targets": [f"127.0.0.1:{port}"]}
        for name, port in (("copy", copy), ("dead", dead), ("silent", silent), ("huge", huge))
    }
    compare = {"compare": {"tolerance": 0.001}}
    mirrors: dict[str, list[dict[str, Any]]] = {
        "mirror": [named["copy"]],
        "compared": [named["copy"] | compare],
        "dead": [named["dead"]],
        "silent": [named["silent"]],
        "huge": [named["huge"] | compare],
    }
    return [
        {
            "name": name.replace(" ", "-"),
            "port": port,
            "backends": [{"name": "origin", "weight": 1, "targets": [f"127.0.0.1:{origin}"]}],
            "mirrors": mirrors.get(name, []),
        }
        for name, port in ports.items()
    ]


class Clients:
    """Connections to one port that send one request again and again, at random moments.

    Args:
        port: of the router.
        chance: where the moments come from.
    """

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port = port
        self._chance = chance
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self) -> None:
        """Open the connections, which stay open."""
        self._streams = [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(CONNECTIONS)]

    async def turn(self, sent: bytes, rate: float, seconds: float) -> list[float]:
        """Send for so many seconds; returns how long each answer took, in milliseconds, in order of length.

        Args:
            sent: the request.
            rate: requests a second, of all connections together.
            seconds: how long.
        """
        took: list[float] = []
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds

        async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            at = loop.time()
            while (at := at + self._chance.expovariate(rate / CONNECTIONS)) < end:
                await asyncio.sleep(max(0.0, at - loop.time()))
                begun = time.perf_counter()
                writer.write(sent)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                if not head.startswith(b"HTTP/1.1 200") or length is None:
                    raise SystemExit(f"expected an answer with 200 and a length, found {head!r}")
                await reader.readexactly(int(length[1]))
                took.append((time.perf_counter() - begun) * 1000)

        await asyncio.gather(*[send(*streams) for streams in self._streams])
        return sorted(took)

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._streams:
            writer.close()


def counted(admin: str) -> str:
    """What the router counts of copies."""
    host, _, port = admin.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    wanted = re.compile(r"penstock_router_mirror_(requests|dropped|compared|compare_skipped)_total\{.*")
    return "\n".join(line[0] for line in wanted.finditer(text))


@contextlib.contextmanager
def answering(size: int, *, core: int, idle: bool) -> Iterator[int]:
    """A server of `bench.fixed_answer`; yields its port."""
    command = [sys.executable, "-m", "bench.fixed_answer", str(size)]
    with processes.running(command, core=core, idle=idle) as (process, log):
        yield int(processes.await_line(process, log, "listening ", seconds=20).split()[1])


async def take(figures: Figures, ports: dict[str, int], arguments: argparse.Namespace) -> None:
    """Take all pairs.

    Args:
        figures: where the figures go.
        ports: the router's, by endpoint.
        arguments: of the command line.
    """
    chance = random.Random(1)
    clients = {name: Clients(port, chance) for name, port in ports.items()}
    for each in clients.values():
        await each.connect()
    for body, size in BODIES.items():
        sent, small = request(size), body == "small"
        rate = arguments.rate if small else arguments.large_rate

        async def turn(name: str, sent: bytes = sent, rate: float = rate) -> list[float]:
            took = await clients[name].turn(sent, rate, arguments.seconds)
            await asyncio.sleep(BETWEEN)
            return took

        for pair in range(-1, arguments.pairs if small else arguments.large_pairs):
            for name in chance.sample(CASES, len(CASES)):
                both = {each: await turn(each) for each in chance.sample((NONE, name), 2)}
                for word, share in PERCENTILES if pair >= 0 and all(both.values()) else ():
                    here, none = (quantile(both[each], share) for each in (name, NONE))
                    figures.add(f"{body}/{name}/{word}/without", none, "ms")
                    figures.add(f"{body}/{name}/{word}/difference", here - none, "ms")
    for each in clients.values():
        each.close()


def measure(figures: Figures, arguments: argparse.Namespace) -> str:
    """Start all and take the pairs; returns what the router counted of copies."""
    (*ports, dead) = free_ports(len(CASES) + 2)
    core = arguments.load_core
    with (
        socket.create_server(("127.0.0.1", 0), backlog=1024) as silent,
        answering(ANSWER, core=core, idle=False) as origin,
        answering(ANSWER, core=core, idle=True) as copy,
        answering(HUGE_ANSWER, core=core, idle=True) as huge,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
    ):
        named = dict(zip((NONE, *CASES), ports, strict=True))
        routes = endpoints(named, origin, copy, dead, silent.getsockname()[1], huge)
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps({"v": 1, "endpoints": routes}))
        command = [sys.executable, "-m", "penstock_router", f"--settings={file}", "--listen=127.0.0.1:0"]
        command += ["--admin=127.0.0.1:0", "--propagation-delay=0s"]
        env = processes.without_ours()
        with processes.running(command, core=arguments.router_core, env=env) as (process, log):
            line = processes.await_line(process, log, "ready ", seconds=30)
            admin = re.search(r"admin=(\S+)", line or log.read_text())
            os.sched_setaffinity(0, {core})
            precise()
            uvloop.run(take(figures, named, arguments))
            return counted(admin[1]) if admin else ""


def table(document: dict[str, Any]) -> str:
    """The results as Markdown: latency without mirrors, and the differences with their intervals."""
    lines = [
        "| body | mirror | p50 without, ms | more with it, ms | p99 without, ms | more with it, ms |",
        "| -- | -- | -- | -- | -- | -- |",
    ]
    figures = document["figures"]
    for body in BODIES:
        for name in CASES:
            cells = [body, name]
            for word, _ in PERCENTILES:
                key = f"{body}/{name}/{word}"
                if f"{key}/difference" in figures:
                    more = paired.median(figures[f"{key}/difference"]["samples"])
                    cells.append(f"{figures[f'{key}/without']['median']:.3f}")
                    cells.append(f"{more.value:+.3f} ({more.low:+.3f} to {more.high:+.3f})")
                else:
                    cells += ["", ""]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure on this machine."""
    parser = argparse.ArgumentParser(description="What mirrors cost the requests that are mirrored.")
    parser.add_argument("--rate", type=float, default=500, help="requests a second")
    parser.add_argument("--large-rate", type=float, default=60, help="requests a second with large bodies")
    parser.add_argument("--seconds", type=float, default=0.75, help="of a turn")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--large-pairs", type=int, default=6)
    parser.add_argument("--router-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--python", action="store_true", help="without compiled modules")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    described = machine()
    build = "as Python" if arguments.python else product.choose()
    figures = Figures()
    copies = measure(figures, arguments)
    document = {
        "what": "latency of requests whose copies go to a mirror, beside those of an endpoint without",
        "commit": commit(),
        "build": build,
        "machine": described,
        "settings": {
            "body_bytes": BODIES,
            "answer_bytes": ANSWER,
            "huge_answer_bytes": HUGE_ANSWER,
            "rate": {"small": arguments.rate, "large": arguments.large_rate},
            "seconds": arguments.seconds,
            "pairs": {"small": arguments.pairs, "large": arguments.large_pairs},
        },
        "figures": figures.document(),
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document))
    print(copies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
