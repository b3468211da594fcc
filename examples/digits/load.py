"""The demo's client: held-out digits through the endpoint, counted. Runs in a pod that has Penstock's SDK.

Usage: `python -c "$(cat load.py)" < order.json`; it prints one JSON line. The order:

    endpoint      its host
    images        one a request
    labels        what they show
    connections   how many requests are under way at once (closed loop)
    seconds       how long; 0 = each image exactly once
    until         a file: the load ends once it is there; empty = by the seconds alone
    sidecars      pod addresses whose batch counters are read before and after

The answer: requests, errors {status or exception: n}, seconds, rate (requests/s), p50_ms, p99_ms, backends
{name: {requests, correct}}, batches, batch_items.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from penstock_wire.headers import get
from penstock_wire.http import Request, UpstreamError
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.sending import send

JSON = ((b"content-type", b"application/json"),)


async def counters(upstream: H1Upstream, sidecars: list[str]) -> tuple[float, float]:
    """Batches and items in them, summed over the sidecars; a pod that is gone counts nothing."""
    batches = items = 0.0
    for pod in sidecars:
        try:
            answer = await send(upstream, pod, 8013, Request("GET", "/metrics", (), b""), timeout=3)
        except UpstreamError:
            continue
        for line in answer.body.decode().splitlines():
            if line.startswith("penstock_sidecar_batch_items_count"):
                batches += float(line.rsplit(" ", 1)[1])
            elif line.startswith("penstock_sidecar_batch_items_sum"):
                items += float(line.rsplit(" ", 1)[1])
    return batches, items


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """Send, check each answer against its label, count."""
    labels, enough = order["labels"], Path(order["until"]) if order["until"] else None
    bodies = [json.dumps({"instances": [image]}).encode() for image in order["images"]]
    todo = iter(range(len(bodies))) if not order["seconds"] else itertools.cycle(range(len(bodies)))
    latencies: list[float] = []
    errors: collections.Counter[str] = collections.Counter()
    requests: collections.Counter[str] = collections.Counter()
    correct: collections.Counter[str] = collections.Counter()
    upstream = H1Upstream(connect_seconds=30)  # a node may be busy with pods that start
    before = await counters(upstream, order["sidecars"])
    start = time.monotonic()
    until = start + order["seconds"] if order["seconds"] else float("inf")

    async def worker() -> None:
        while time.monotonic() < until and not (enough and enough.exists()):
            index = next(todo, None)
            if index is None:
                return
            sent = time.monotonic()
            request = Request("POST", "/predict", JSON, bodies[index])
            try:
                answer = await send(upstream, order["endpoint"], 80, request, timeout=60)
            except UpstreamError as error:
                errors[type(error).__name__] += 1
                continue
            if answer.status != 200:
                errors[str(answer.status)] += 1
                continue
            latencies.append(time.monotonic() - sent)
            backend = (get(answer.headers, b"x-penstock-backend") or b"").decode()
            requests[backend] += 1
            correct[backend] += json.loads(answer.body)["predictions"][0] == labels[index]

    await asyncio.gather(*(worker() for _ in range(order["connections"])))
    took = time.monotonic() - start
    after = await counters(upstream, order["sidecars"])
    await upstream.close()
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
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
