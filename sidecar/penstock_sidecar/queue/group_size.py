"""Computes how many requests share a batch while bad requests keep coming. Pure.

A batch that fails costs a search (`bisection`). In a larger batch, more requests share the fixed time of a
run of the model, but it is likelier that one of them is bad. With a share p of bad requests, and a batch
time that hardly depends on the size, about 1/√p requests a batch are the cheapest (Dorfman, The detection of
defective members of large populations, Annals of Mathematical Statistics 14, 1943). This module minimizes
the expected time of the actual search, with the model's measured times: the renewal-reward quotient of the
time that a group takes and the requests that it resolves. At worst each request runs alone, as without
batching; so all searches together never take more of the model's time than that.

`key.Faults` observes the share of bad requests.
"""

from __future__ import annotations

from collections.abc import Callable


def cost(rate: float, requests: int, seconds: Callable[[int], float]) -> float:
    """Return the model's expected time for each request that gets its own outcome.

    Args:
        rate: the share of bad requests, 0 to 1.
        requests: requests in a batch.
        seconds: returns the time of a batch, by its requests.
    """
    good = 1.0 - rate
    fails = 1.0 - good**requests
    if fails <= 0.0:
        return seconds(requests) / requests
    time, resolved = _search(good, requests, seconds)
    return (seconds(requests) + fails * time) / ((1.0 - fails) * requests + fails * resolved)


def _search(good: float, suspects: int, seconds: Callable[[int], float]) -> tuple[float, float]:
    """Of `suspects` requests at least one is bad: the seconds to find one, and requests resolved by then."""
    sizes = {suspects}
    for _ in range(suspects.bit_length()):
        sizes |= {half for size in sizes for half in ((size + 1) // 2, size // 2) if half > 1}
    expected = {1: (0.0, 1.0)}
    for size in sorted(sizes - {1}):
        first = (size + 1) // 2
        there = (1.0 - good**first) / (1.0 - good**size)
        time, resolved = expected[first]
        other, others = expected[size - first]
        if size - first == 1:
            other = seconds(1)  # known to be bad without a run, and run for its own answer
        expected[size] = (
            seconds(first) + there * time + (1.0 - there) * other,
            there * resolved + (1.0 - there) * (first + others),
        )
    return expected[suspects]


def best(rate: float, most: int, seconds: Callable[[int], float]) -> int:
    """Return the size of batch, in requests, with the least `cost`.

    Args:
        rate: the share of bad requests, 0 to 1.
        most: maximum requests of a batch, at least 1.
        seconds: returns the time of a batch, by its requests.
    """
    if rate <= 0.0:
        return most
    known: dict[int, float] = {}

    def once(requests: int) -> float:
        if requests not in known:
            known[requests] = seconds(requests)
        return known[requests]

    cheapest, least = most, cost(rate, most, once)
    size = most
    while size > 1:
        size = size * 3 // 4
        expected = cost(rate, size, once)
        if expected < least:
            cheapest, least = size, expected
    return cheapest
