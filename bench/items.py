"""Bad requests among good ones, before a model of the SDK that answers by item: `python -m bench.items`.

64 callers in a closed loop, batches of up to 32, a model of 10 ms + 0.2 ms an item; 0, 1 and 5 % of the
requests are bad. Each round measures every share of bad ones, in turns, with the same processes. A figure is
the median of the rounds, and a ratio is taken within its round. Writes `bench/results/items.json`. Exit code
1: an answer was not its request's own, or a bound was missed.
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
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench import processes, product
from bench.figures import Figures
from bench.frame import MAX_BATCH, WIDE
from bench.processes import Server
from bench.run import RESULTS, machine
from bench.timer import precise, urgent

CALLERS = 64
SHARES = (0, 1, 5)
"""Bad requests, in per cent."""
LEAST = 0.97
"""Right answers a second with bad ones, of those without."""


class Load:
    """A closed loop: each caller sends its next request when the last was answered.

    Args:
        percent: bad requests of 100.
        seed: of the requests that are bad.

    `right` counts answers that are the request's own, good and bad; `failed` valid requests that got another
    answer, with the last of these in `last`.
    """

    def __init__(self, percent: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._share = percent / 100
        self._numbers = iter(range(1, 1 << 62))
        self.over = False
        self.right = self.failed = self.wrong = 0
        self.last = b""

    def next(self) -> int:
        """The next item: even is bad."""
        return 2 * next(self._numbers) + (self._random.random() >= self._share)

    def answered(self, item: int, head: bytes, body: bytes) -> None:
        """Judge an answer."""
        bad = item % 2 == 0
        expected = b'{"detail":%d}' % item if bad else b'{"predictions":[%d]}' % item
        if body == expected and head.startswith(b"HTTP/1.1 422 " if bad else b"HTTP/1.1 200 "):
            self.right += 1
            return
        self.last = head.partition(b"\r\n")[0] + b" " + body[:200]
        if bad:
            self.wrong += 1
        else:
            self.failed += 1


class Caller(asyncio.Protocol):
    """One connection with one request at a time."""

    _LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

    def __init__(self, load: Load) -> None:
        self._load = load
        self._item = 0
        self._buffer = b""
        self._transport: Any = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Take an answer, send the next request."""
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        length = self._LENGTH.search(head)
        if end and length and len(body) >= int(length[1]):
            self._buffer = b""
            self._load.answered(self._item, head, body)
            if self._load.over:
                self._transport.close()
            else:
                self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Done, or cut off."""
        if not self._load.over:
            self._load.failed += 1
            self._load.last = b"the connection was closed"
        self.ended.set_result(None)

    def _send(self) -> None:
        self._item = self._load.next()
        body = b'{"instances":[%d]}' % self._item
        head = b"POST /predict HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        self._transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))


async def run(port: int, percent: float, seconds: float, seed: int) -> tuple[Load, float]:
    """Load a server; returns what became of it and the right answers a second."""
    load, loop = Load(percent, seed), asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Caller(load), "127.0.0.1", port) for _ in range(CALLERS)]
    await asyncio.sleep(0.3)  # until the batches are full
    before, begun = load.right, time.monotonic()
    await asyncio.sleep(seconds)
    rate = (load.right - before) / (time.monotonic() - begun)
    load.over = True
    await asyncio.gather(*(caller.ended for _, caller in made))
    return load, rate


@contextlib.contextmanager
def serving(core: int) -> Iterator[processes.Sidecar]:
    """The sidecar before the SDK's server."""
    port = processes.free_port()
    command = [sys.executable, "-m", "penstock.serve", "bench.items_model:Slow", f"--port={port}"]
    with processes.running(command, core=core) as (process, log):
        processes.await_line(process, log, "ready ", seconds=20)
        model = Server(port=port, pid=process.pid)
        batching = {"maxBatchSize": MAX_BATCH, **WIDE}
        with processes.sidecar(model, core=core, batching=batching) as sidecar:
            yield sidecar


def runs_again(sidecar: processes.Sidecar) -> float:
    """Isolation's runs so far."""
    connection = http.client.HTTPConnection("127.0.0.1", sidecar.admin, timeout=5)
    try:
        connection.request("GET", "/metrics")
        match = re.search(rb"isolation_runs_total ([0-9.]+)", connection.getresponse().read())
    finally:
        connection.close()
    if match is None:
        raise RuntimeError("expected isolation_runs_total among the metrics, found none")
    return float(match[1])


def measure(figures: Figures, *, rounds: int, seconds: float, server_core: int) -> list[str]:
    """All rounds; returns what was wrong."""
    faults: list[str] = []
    with serving(server_core) as sidecar:
        uvloop.run(run(sidecar.port, 0, 1.0, 0))
        for number in range(rounds):
            order = SHARES[number % len(SHARES) :] + SHARES[: number % len(SHARES)]
            rates: dict[int, float] = {}
            for percent in order:
                load, rates[percent] = uvloop.run(
                    run(sidecar.port, percent, seconds, 1000 * number + percent)
                )
                figures.add(f"items/{percent}/rate", rates[percent], "right answers/s")
                figures.add(f"items/{percent}/valid_failed", load.failed, "requests")
                figures.add(f"items/{percent}/wrong", load.wrong, "requests")
                if load.failed or load.wrong:
                    faults.append(f"{percent} % bad: {load.failed + load.wrong} failed: {load.last!r}")
            for percent in SHARES[1:]:
                figures.add(f"items/{percent}/against_0", rates[percent] / rates[0], "times")
            said = ", ".join(f"{percent} %: {rates[percent]:.0f}/s" for percent in SHARES)
            print(f"[bench] round {number + 1}: {said}", flush=True)
        figures.add("items/runs_again", runs_again(sidecar), "runs")
    return faults


def main() -> int:
    """Measure, write, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.items", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--out", type=Path, default=RESULTS / "items.json", help="where the JSON goes")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("bench: expected two cores (one for the load), found one", file=sys.stderr)
        return 2
    described = {**machine(), "build": product.choose()}
    # What runs here takes a third of each core. Other work on the machine counts equally for all.
    described["real_time"] = urgent()
    figures = Figures()
    os.sched_setaffinity(0, {cores[-1]})
    precise()
    faults = measure(figures, rounds=options.rounds, seconds=options.seconds, server_core=cores[0])
    document = figures.document()
    for percent in SHARES[1:]:
        ratio = document[f"items/{percent}/against_0"]["median"]
        print(f"[bench] {percent} % bad: {ratio:.3f} of the rate without (at least {LEAST} wanted)")
        if ratio < LEAST:
            faults.append(f"{percent} % bad: {ratio:.3f} of the rate without, at least {LEAST} wanted")
    options.out.write_text(json.dumps({"machine": described, "figures": document}, indent=1) + "\n")
    for fault in faults:
        print(f"[bench] {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
