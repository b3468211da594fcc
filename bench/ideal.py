"""The bound for every batcher: batches cut when the model becomes free, of all that waits, at no cost."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable


def latencies(times: Iterable[float], a_ms: float, b_ms: float, *, max_batch: int = 32) -> list[float]:
    """Simulate a free batcher before a model that runs one batch at a time.

    Args:
        times: arrivals in seconds, ascending.
        a_ms: time of any batch.
        b_ms: time of each item in it.
        max_batch: items in a batch at most.

    Returns:
        Latencies in ms, in the order of the arrivals.
    """
    arrivals = list(times)
    latencies: list[float] = []
    free = 0.0
    first = 0
    while first < len(arrivals):
        start = max(free, arrivals[first])
        last = first
        while last < len(arrivals) and last - first < max_batch and arrivals[last] <= start:
            last += 1
        free = start + (a_ms + b_ms * (last - first)) / 1000
        latencies.extend((free - at) * 1000 for at in arrivals[first:last])
        first = last
    return latencies


def halving_rate(bad: float, a_ms: float, b_ms: float, *, max_batch: int = 32) -> float:
    """Valid answers a second of the best fixed batch size, where a batch that fails is run again in halves.

    Args:
        bad: the share of bad requests.
        a_ms: time of any run.
        b_ms: time of each request in it.
        max_batch: requests in a batch at most.
    """
    sizes = {max(1, max_batch * part // 16) for part in (1, 2, 3, 4, 6, 8, 12, 16)} | {1, 2, 3}
    return max(_halving_rate(bad, a_ms, b_ms, size) for size in sizes)


def _halving_rate(bad: float, a_ms: float, b_ms: float, size: int, requests: int = 40_000) -> float:
    drawn = random.Random(2)
    spent, good = 0.0, 0
    for _ in range(requests // size):
        batch = [drawn.random() < bad for _ in range(size)]
        good += size - sum(batch)
        parts = deque([batch])
        while parts:
            part = parts.popleft()
            spent += a_ms + b_ms * len(part)
            if any(part) and len(part) > 1:
                middle = (len(part) + 1) // 2
                parts += (part[:middle], part[middle:])
    return good / spent * 1000
