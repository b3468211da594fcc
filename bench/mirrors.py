"""`python -m bench.mirrors`: what mirrors cost the requests that are mirrored.

One router serves the same origin by six endpoints: without mirrors (twice: the difference of these two is the
noise), with one that answers, with one that is compared besides, with a dead one and with one that never
answers. All are loaded in turns at a fixed rate; the ratio of the medians is of one run. The router is
compiled, has a core to itself, and drops copies itself when it is short of it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import re
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import processes, product
from bench.proxies import free_ports

BODY = json.dumps({"instances": [[0.5] * 64]}).encode()
HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CONNECTIONS = 16


def endpoints(ports: list[int], origin: int, copy: int, dead: int, silent: int) -> list[dict[str, Any]]:
    """The endpoints, all of one origin."""
    mirrors: dict[str, list[dict[str, Any]]] = {
        "none": [],
        "none again": [],
        "mirror": [{"name": "copy", "targets": [f"127.0.0.1:{copy}"]}],
        "compared": [{"name": "copy", "targets": [f"127.0.0.1:{copy}"], "compare": {"tolerance": 0.001}}],
        "dead": [{"name": "dead", "targets": [f"127.0.0.1:{dead}"]}],
        "silent": [{"name": "silent", "targets": [f"127.0.0.1:{silent}"]}],
    }
    return [
        {
            "name": name.replace(" ", "-"),
            "port": port,
            "backends": [{"name": "origin", "weight": 1, "targets": [f"127.0.0.1:{origin}"]}],
            "mirrors": copies,
        }
        for (name, copies), port in zip(mirrors.items(), ports, strict=True)
    ]


async def load(port: int, rate: float, seconds: float, chance: random.Random) -> list[float]:
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
            writer.write(REQUEST)
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


def measure(arguments: argparse.Namespace) -> None:
    """Print the table."""
    (*ports, dead) = free_ports(7)
    silent = socket.create_server(("127.0.0.1", 0), backlog=1024)
    with (
        processes.model(1, 0, core=arguments.load_core) as origin,
        processes.model(1, 0, core=arguments.load_core) as copy,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
    ):
        cases = endpoints(ports, origin.port, copy.port, dead, silent.getsockname()[1])
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps({"v": 1, "endpoints": cases}))
        command = [sys.executable, "-m", "penstock_router", f"--settings={file}", "--listen=127.0.0.1:0"]
        command += ["--admin=127.0.0.1:0", "--propagation-delay=0s"]
        env = processes.without_ours()
        with processes.running(command, core=arguments.router_core, env=env) as (process, log):
            line = processes.await_line(process, log, "ready ", seconds=30)
            admin = re.search(r"admin=(\S+)", line or log.read_text())
            chance = random.Random(1)
            took: dict[str, list[list[float]]] = {case["name"]: [] for case in cases}
            for turn in range(arguments.turns + 1):
                order = list(cases)
                chance.shuffle(order)
                for case in order:
                    each = asyncio.run(load(case["port"], arguments.rate, arguments.seconds, chance))
                    if turn:  # the first one warms up
                        took[case["name"]].append(sorted(each))
            rows(took)
            if admin is not None:
                print(counted(admin[1]))


def rows(took: dict[str, list[list[float]]]) -> None:
    """Medians of the turns' percentiles, and what they are of those without mirrors."""

    def percentile(name: str, share: float) -> float:
        return statistics.median(each[int(len(each) * share)] for each in took[name])

    print(f"{'endpoint':12} {'p50 ms':>8} {'ratio':>7} {'p99 ms':>8} {'ratio':>7} {'more ms':>8}")
    for name in took:
        p50, p99 = percentile(name, 0.5), percentile(name, 0.99)
        base50, base99 = percentile("none", 0.5), percentile("none", 0.99)
        more = p99 - base99
        print(f"{name:12} {p50:8.3f} {p50 / base50:7.3f} {p99:8.3f} {p99 / base99:7.3f} {more:8.3f}")


def main() -> int:
    """Measure on this machine."""
    parser = argparse.ArgumentParser(description="What mirrors cost the requests that are mirrored.")
    parser.add_argument("--rate", type=float, default=400, help="requests a second")
    parser.add_argument("--seconds", type=float, default=4, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--router-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--python", action="store_true", help="without compiled modules")
    arguments = parser.parse_args()
    if not arguments.python:
        product.choose()
    measure(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
