"""The demo's client: held-out digits through the endpoint, counted. It runs in a pod of the digits image.

Usage: `python - '<order as JSON>' < load.py`; it prints one JSON line. The order:

    url           of the endpoint
    connections   how many requests are under way at once (closed loop)
    seconds       how long; 0 = each held-out digit exactly once
    sidecars      pod addresses whose batch counters are read before and after

The answer: requests, errors {status: n}, seconds, rate (requests/s), p50_ms, p99_ms, backends
{name: {requests, correct}}, batches, batch_items.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import sys
import time
from typing import Any

import aiohttp
from digits_data import held_out


async def counters(session: aiohttp.ClientSession, sidecars: list[str]) -> tuple[float, float]:
    """Batches and items in them, summed over the sidecars; a pod that is gone counts nothing."""
    batches = items = 0.0
    for pod in sidecars:
        try:
            url = f"http://{pod}:8013/metrics"
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=3)) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            continue
        for line in text.splitlines():
            if line.startswith("penstock_sidecar_batch_items_count"):
                batches += float(line.rsplit(" ", 1)[1])
            elif line.startswith("penstock_sidecar_batch_items_sum"):
                items += float(line.rsplit(" ", 1)[1])
    return batches, items


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """Send, check each answer against its label, count."""
    images, labels = held_out()
    bodies = [json.dumps({"instances": [image]}).encode() for image in images]
    todo = iter(range(len(bodies))) if not order["seconds"] else itertools.cycle(range(len(bodies)))
    latencies: list[float] = []
    errors: collections.Counter[str] = collections.Counter()
    requests: collections.Counter[str] = collections.Counter()
    correct: collections.Counter[str] = collections.Counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, headers={"content-type": "application/json"}
    ) as session:
        before = await counters(session, order["sidecars"])
        start = time.monotonic()
        until = start + order["seconds"] if order["seconds"] else float("inf")

        async def worker() -> None:
            while time.monotonic() < until:
                index = next(todo, None)
                if index is None:
                    return
                sent = time.monotonic()
                async with session.post(order["url"], data=bodies[index]) as answer:
                    body = await answer.read()
                    if answer.status != 200:
                        errors[str(answer.status)] += 1
                        continue
                latencies.append(time.monotonic() - sent)
                backend = answer.headers.get("x-penstock-backend", "")
                requests[backend] += 1
                correct[backend] += json.loads(body)["predictions"][0] == labels[index]

        await asyncio.gather(*(worker() for _ in range(order["connections"])))
        took = time.monotonic() - start
        after = await counters(session, order["sidecars"])
    latencies.sort()

    def quantile(q: float) -> float:
        return round(latencies[int(q * (len(latencies) - 1))] * 1000, 2) if latencies else 0.0

    return {
        "requests": len(latencies),
        "errors": dict(errors),
        "seconds": took,
        "rate": len(latencies) / took,
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
        "backends": {name: {"requests": n, "correct": correct[name]} for name, n in requests.items()},
        "batches": after[0] - before[0],
        "batch_items": after[1] - before[1],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))
