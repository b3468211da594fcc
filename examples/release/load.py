"""The example's clients: held-out digits at a steady rate; a line every 5 s says who answered, and how.

Usage: `python load.py URL REQUESTS-A-SECOND`. It runs in a pod of the digits image.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import sys
import time

import aiohttp
from digits_data import held_out

EVERY = 5.0
MOST_OPEN = 256
"""Requests under way at once; beyond that it sends later, and not more."""


async def main(url: str, rate: float) -> None:
    """Send for ever."""
    images, _ = held_out()
    bodies = itertools.cycle(json.dumps({"instances": [image]}).encode() for image in images)
    answered: collections.Counter[str] = collections.Counter()
    failed: collections.Counter[str] = collections.Counter()
    times: list[float] = []
    room = asyncio.Semaphore(MOST_OPEN)
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=aiohttp.ClientTimeout(total=30)
    ) as session:

        async def one(body: bytes) -> None:
            sent = time.monotonic()
            try:
                async with session.post(url, data=body) as answer:
                    await answer.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                failed[type(error).__name__] += 1
            else:
                backend = answer.headers.get("x-penstock-backend", "nobody")
                answered[backend] += 1
                if answer.status != 200:
                    failed[f"{answer.status} by {backend}"] += 1
                times.append(time.monotonic() - sent)
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            due = reported = time.monotonic()
            for body in bodies:
                await asyncio.sleep(max(due - time.monotonic(), 0))
                await room.acquire()
                tasks.create_task(one(body))
                due = max(due + 1 / rate, time.monotonic() - 1)
                if time.monotonic() - reported >= EVERY:
                    reported += EVERY
                    print(line(answered, failed, times), flush=True)
                    answered.clear(), failed.clear(), times.clear()


def line(answered: collections.Counter[str], failed: collections.Counter[str], times: list[float]) -> str:
    """What happened, in one line.

    Args:
        answered: answers by backend.
        failed: failures by kind.
        times: seconds that the answers took.
    """
    count = answered.total()
    shares = ", ".join(f"{name} {number / count:.1%}" for name, number in sorted(answered.items()))
    slow = sorted(times)[int(0.99 * (len(times) - 1))] * 1000 if times else 0.0
    wrong = ", ".join(f"{number}x {what}" for what, number in sorted(failed.items())) or "none"
    rate = f"{count / EVERY:.0f}/s"
    return f"{time.strftime('%X')}  {rate}: {shares or 'nobody'}; p99 {slow:.0f} ms; failed: {wrong}"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
