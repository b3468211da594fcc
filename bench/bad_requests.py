"""Measures what bad requests cost their neighbours: 64 callers in a closed loop send some bad requests.

The model takes 10 ms + 0.2 ms an item and answers 422 to a batch with a bad item in it. Measured are the
valid answers a second, against those without bad requests and those of the best fixed batch size with halving
(`ideal.halving_rate`, simulated without any other cost), and the share of valid requests that got anything
else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time

from bench import ideal, processes
from bench.frame import MAX_BATCH, Bench

A_MS, B_MS = 10.0, 0.2
CALLERS = 64
SHARES = (0.0, 0.001, 0.01, 0.05)
SECONDS = 8.0
WARM = 2.0
_HEAD = b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


@dataclasses.dataclass
class Seen:
    """Answers since the warm-up: valid requests that got 200 or not, bad ones that got 422 or not."""

    good: int = 0
    failed: int = 0
    own: int = 0
    wrong: int = 0


async def _caller(number: int, port: int, path: bytes, bad: float, began: float, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    drawn = random.Random(number)
    item = number
    while (now := time.monotonic()) < began + WARM + SECONDS:
        item += CALLERS
        is_bad = drawn.random() < bad
        body = b'{"instances":[%b]}' % (b"null" if is_bad else b"%d" % item)
        writer.write(_HEAD % (path, len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        answer = await reader.readexactly(length)
        if now < began + WARM:
            continue
        status = int(head[9:12])
        if is_bad:
            seen.own += status == 422
            seen.wrong += status != 422
        elif status == 200 and answer == b'{"predictions":[%d]}' % item:
            seen.good += 1
        else:
            seen.failed += 1
    writer.close()


def measure(port: int, path: str, bad: float) -> Seen:
    """Ask for `WARM + SECONDS` seconds.

    Args:
        port: the sidecar's.
        path: what is posted to there.
        bad: the share of bad requests.
    """
    seen = Seen()

    async def main() -> None:
        began = time.monotonic()
        await asyncio.gather(
            *(_caller(number, port, path.encode(), bad, began, seen) for number in range(CALLERS))
        )

    asyncio.run(main())
    return seen


def bad_requests(bench: Bench, _round: int) -> None:
    """A closed loop with 0, 0.1, 1 and 5 % bad requests."""
    with (
        processes.model(A_MS, B_MS, core=bench.server_core) as model,
        processes.sidecar(model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH}) as sidecar,
    ):
        for bad in SHARES:
            key = f"bad_requests/{bad * 100:g}"
            seen = measure(sidecar.port, sidecar.path, bad)
            best = ideal.halving_rate(bad, A_MS, B_MS, max_batch=MAX_BATCH)
            rate = seen.good / SECONDS
            valid = seen.good + seen.failed
            bench.figures.add(f"{key}/rate", rate, "valid answers/s")
            bench.figures.add(f"{key}/best_fixed", best, "valid answers/s, simulated")
            bench.figures.add(f"{key}/of_best_fixed", rate / best, "of the best fixed size with halving")
            bench.figures.add(f"{key}/failed", seen.failed / max(1, valid), "of valid requests")
            bench.figures.add(f"{key}/wrong", seen.wrong, "bad requests without their own 422")
            bench.say(
                f"{key} %: {rate:.0f} valid answers/s, {rate / best:.2f} of the best fixed size; "
                f"{seen.failed} of {valid} valid requests failed"
            )
