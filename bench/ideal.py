"""The bound for every batcher: batches cut when the model becomes free, of all that waits, at no cost."""

from __future__ import annotations

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
