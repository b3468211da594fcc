"""`python -m bench.mirrors`: what mirrors cost the requests that are mirrored.

One router serves the same origin by seven endpoints: without mirrors (twice: the difference of these two is
the noise), with one that answers, with one that is compared besides, with a dead one, with one that never
answers and with one that answers 16 MiB. All are loaded in turns at a fixed rate, with small bodies and then
with the largest that are copied; the ratio of the medians is of one run. The router is compiled, has a core
to itself, and drops copies itself when it is short of it. `--out` writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import processes, product
from bench.figures import Figures, median
from bench.ledger import quantile
from bench.proxies import free_ports
from bench.run import commit, machine

HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
CONNECTIONS = 16
MIRRORS = ("none", "none again", "mirror", "compared", "dead", "silent", "huge")
ANSWER, HUGE_ANSWER = 64, 16 << 20
"""Bytes of the answers of the origin, and of the mirror `huge`."""
BODIES = {"small": 300, "large": 1_000_000}
"""Bytes of the requests: the large ones are just below the bound of what is copied, 1 MiB."""
PERCENTILES = (("p50", 0.5), ("p99", 0.99))


def request(size: int) -> bytes:
    """A request with so many bytes of body.

    Args:
        size: of the body, 20 at least.
    """
    body = b'{"instances": ["%b"]}' % (b"x" * (size - 20))
    return HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def endpoints(
    ports: list[int], origin: int, copy: int, dead: int, silent: int, huge: int
) -> list[dict[str, Any]]:
    """The endpoints, all of one origin."""
    named = {
        name: {"name": name, "targets": [f"127.0.0.1:{port}"]}
        for name, port in (("copy", copy), ("dead", dead), ("silent", silent), ("huge", huge))
    }
    compare = {"compare": {"tolerance": 0.001}}
    mirrors: dict[str, list[dict[str, Any]]] = {
        "none": [],
        "none again": [],
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
            "mirrors": mirrors[name],
        }
        for name, port in zip(MIRRORS, ports, strict=True)
    ]


async def load(port: int, sent: bytes, rate: float, seconds: float, chance: random.Random) -> list[float]:
    """Requests at random moments, on kept connections; how long each took, in milliseconds."""
    took: list[float] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def send() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        at = loop.time()
        while (at := at + chance.expovariate(rate / CONNECTIONS)) < end:
            await asyncio.sleep(max(0.0, at - loop.time()))
            begun = time.perf_counter()
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if not head.startswith(b"HTTP/1.1 200") or length is None:
                raise SystemExit(f"expected an answer with 200 and a length, found {head!r}")
            await reader.readexactly(int(length[1]))
            took.append((time.perf_counter() - begun) * 1000)
        writer.close()

    await asyncio.gather(*[send() for _ in range(CONNECTIONS)])
    return took


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
def answering(size: int, *, core: int) -> Iterator[int]:
    """A server of `bench.fixed_answer`; yields its port."""
    command = [sys.executable, "-m", "bench.fixed_answer", str(size)]
    with processes.running(command, core=core) as (process, log):
        yield int(processes.await_line(process, log, "listening ", seconds=20).split()[1])


def measure(figures: Figures, arguments: argparse.Namespace) -> str:
    """Take all turns; returns what the router counted of copies."""
    (*ports, dead) = free_ports(len(MIRRORS) + 1)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=1024) as silent,
        answering(ANSWER, core=arguments.load_core) as origin,
        answering(ANSWER, core=arguments.load_core) as copy,
        answering(HUGE_ANSWER, core=arguments.load_core) as huge,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
    ):
        cases = endpoints(ports, origin, copy, dead, silent.getsockname()[1], huge)
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps({"v": 1, "endpoints": cases}))
        command = [sys.executable, "-m", "penstock_router", f"--settings={file}", "--listen=127.0.0.1:0"]
        command += ["--admin=127.0.0.1:0", "--propagation-delay=0s"]
        env = processes.without_ours()
        with processes.running(command, core=arguments.router_core, env=env) as (process, log):
            line = processes.await_line(process, log, "ready ", seconds=30)
            admin = re.search(r"admin=(\S+)", line or log.read_text())
            chance = random.Random(1)
            for body, size in BODIES.items():
                rate = arguments.rate if body == "small" else arguments.large_rate
                for turn in range(arguments.turns + 1):
                    order = list(zip(MIRRORS, ports, strict=True))
                    chance.shuffle(order)
                    for name, port in order:
                        took = asyncio.run(load(port, request(size), rate, arguments.seconds, chance))
                        if turn:  # the first one warms up
                            for word, share in PERCENTILES:
                                figures.add(f"{body}/{name}/{word}", quantile(sorted(took), share), "ms")
            return counted(admin[1]) if admin else ""


def table(document: dict[str, Any]) -> str:
    """The results as Markdown: medians of the turns, and what they are of those without mirrors."""
    lines = [
        "| body | mirror | p50 ms | ÷ none | p99 ms | ÷ none | more, ms |",
        "| -- | -- | -- | -- | -- | -- | -- |",
    ]
    for body in BODIES:
        for name in MIRRORS:
            cells = [body, name]
            for word, _ in PERCENTILES:
                here, none = (median(document, f"{body}/{each}/{word}") or 0.0 for each in (name, "none"))
                cells += [f"{here:.3f}", f"{here / none:.3f}" if none else ""]
            lines.append(f"| {' | '.join(cells)} | {here - none:.3f} |")
    return "\n".join(lines)


def main() -> int:
    """Measure on this machine."""
    parser = argparse.ArgumentParser(description="What mirrors cost the requests that are mirrored.")
    parser.add_argument("--rate", type=float, default=400, help="requests a second")
    parser.add_argument("--large-rate", type=float, default=20, help="requests a second with large bodies")
    parser.add_argument("--seconds", type=float, default=4, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
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
            "turns": arguments.turns,
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
