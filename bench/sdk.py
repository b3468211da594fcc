"""All figures of the SDK in one run, at real-time priority where that is allowed: `python -m bench.sdk`.

From `penstock run` to the first answer, of a class and of applications with three and four nodes (examples,
whose classes load nothing), on all cores; of each a first run does not count, which lets Python compile all
files. Then `bench.in_process` and `bench.handles` as they are by themselves. Then, by the processes of
`bench.handles`, 64 streams that share a batch: from the moment at which the model yields their first pieces
until each client has its own. Writes `bench/results/sdk.json`. Exit code 1: a wrong answer, or a bound was
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import uvloop

from bench import handles, in_process
from bench.figures import Figures
from bench.processes import ROOT, DidNotStartError
from bench.run import RESULTS, machine
from bench.timer import precise, urgent
from penstock import Handle

STREAMS = 64
BATCHES = 10
"""Of streams, a round."""
MOST_STREAM_MS = 20.0
MOST_START_SECONDS = 2.0
STARTED: tuple[tuple[str, str, Any, Any, int], ...] = (
    ("batching", "greeter:Greeter", {"name": "Dora"}, {"greeting": "Hello Dora!", "batches": 1}, 1),
    ("composition", "chain:app", 5, 12, 3),
    ("composition", "ensemble:app", 0.5, {"yes": 2, "no": 1}, 4),
)
"""Folder of examples, target, item, its answer, number of nodes."""


def first_answer(folder: str, target: str, item: Any, answer: Any) -> float:
    """Seconds from the start of `penstock run` to its first answer.

    Args:
        folder: of `examples`.
        target: as on the command line.
        item: what is asked.
        answer: what has to come.

    Raises:
        DidNotStartError: it ended before it was ready, or its answer is another.
    """
    # As on a laptop: Python keeps what it has compiled.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "penstock", "run", target, "--port", "0"]
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT / "examples" / folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("ready "):
                break
        else:
            raise DidNotStartError(f"{target}: expected a ready line, found {said[-500:]!r}")
        body = json.dumps({"instances": [item]}).encode()
        request = urllib.request.Request(f"{line.split()[1]}/", body, {"content-type": "application/json"})  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            found = json.loads(response.read())
        taken = time.perf_counter() - began
        if found != {"predictions": [answer]}:
            raise DidNotStartError(f"{target}: expected {answer!r}, found {found!r}")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    return taken


def starts(figures: Figures, *, rounds: int) -> None:
    """`penstock run` to the first answer, in interleaved rounds."""
    for number in range(rounds + 1):
        for folder, target, item, answer, nodes in STARTED:
            taken = first_answer(folder, target, item, answer)
            if number:
                figures.add(f"run/penstock/{nodes}/first_answer", taken, "s")


async def streams(figures: Figures, port: int, *, rounds: int) -> int:
    """First pieces of streams that share a batch; returns the number of wrong ones."""
    write = Handle("stamps", url=f"http://127.0.0.1:{port}").write.options(stream=True)
    wrong = 0

    async def read() -> tuple[float, int]:
        """Milliseconds from the model's first piece to its arrival here, and for how many it was."""
        delay, size = -1.0, 0
        async for yielded, clients in write(0):
            if not size:
                delay, size = (time.monotonic() - yielded) * 1000, clients
        return delay, size

    await asyncio.gather(*[read() for _ in range(STREAMS)])
    for _ in range(rounds):
        delays: list[float] = []
        slowest: list[float] = []
        while len(slowest) < BATCHES:
            # One stream has the model's only place, until all others wait.
            first = asyncio.create_task(read())
            await asyncio.sleep(0.03)
            read_all = await asyncio.gather(*[read() for _ in range(STREAMS)])
            await first
            wrong += sum(size == 0 for _, size in read_all)
            together = [delay for delay, size in read_all if size == STREAMS]
            if len(together) < STREAMS:
                figures.void("streams/penstock/64", "they did not share one batch")
                if len(figures.voids) > BATCHES * rounds:
                    raise DidNotStartError(
                        "expected 64 streams in one batch, found them in several each time"
                    )
                continue
            delays += together
            slowest.append(max(together))
        figures.add(f"streams/penstock/{STREAMS}/first_piece_p50", sorted(delays)[len(delays) // 2], "ms")
        figures.add(f"streams/penstock/{STREAMS}/first_piece_slowest", max(slowest), "ms")
    return wrong


def main() -> int:
    """Measure, write, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.sdk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--peers", default="ray", help="'' for none")
    parser.add_argument("--out", type=Path, default=RESULTS / "sdk.json", help="where the JSON goes")
    options = parser.parse_args()
    figures = Figures()
    often = {"rounds": options.rounds, "seconds": options.seconds}
    pythons = in_process.interpreters(options.peers)
    described = {**machine(), "real_time": urgent()}
    precise()
    starts(figures, rounds=options.rounds)
    faults = in_process.measure(figures, pythons, **often)
    if "ray" in pythons:
        handles.beside_ray(figures, **often)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    with handles.endpoints(cores[0]) as ports:
        wrong = uvloop.run(handles.measure(figures, ports["echo"], **often))
        uvloop.run(handles.cancels(figures, ports["echo"], ports["caller"]))
        wrong_streams = uvloop.run(streams(figures, ports["stamps"], rounds=options.rounds))
    document = figures.document()
    written = {"machine": described, "figures": document, "voids": figures.voids}
    options.out.write_text(json.dumps(written, indent=1) + "\n")
    codes = [
        in_process.judge(document, faults),
        handles.judge(document, wrong),
        judge(document, wrong_streams),
    ]
    return max(codes)


def judge(document: dict[str, Any], wrong: int) -> int:
    """Print the figures that are this module's own; returns the exit code."""
    slowest = document[f"streams/penstock/{STREAMS}/first_piece_slowest"]["median"]
    print(f"[bench] the last of {STREAMS} first pieces: {slowest:.1f} ms (at most {MOST_STREAM_MS:g})")
    missed = slowest > MOST_STREAM_MS
    for *_, nodes in STARTED:
        seconds = document[f"run/penstock/{nodes}/first_answer"]["median"]
        print(f"[bench] penstock run, {nodes} nodes: {seconds:.2f} s (at most {MOST_START_SECONDS:g})")
        missed |= seconds > MOST_START_SECONDS
    if wrong:
        print(f"[bench] {wrong} wrong streams", file=sys.stderr)
    return int(missed or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
