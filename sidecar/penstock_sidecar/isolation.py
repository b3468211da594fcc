"""Finding the one request that fails its batch: what may be run again, and how often. Pure.

A failed batch is halved, and each half run again, until every bad request has failed alone and got its own
answer, and its neighbours theirs. Runs again cost the model what it could have done for others, so they have
a budget; what is still unresolved when that or the time is over gets the answer that its batch got.
"""

from __future__ import annotations

from collections import deque

STATUSES = frozenset({400, 413, 422, 500})
"""Answers that may be the fault of one request; others, and lost connections, are the model's."""
WINDOW = 10
"""Seconds over which runs are counted."""
SHARE = 0.1
"""Runs again as a share of batches."""
_ROUNDING = 1e-9


def worth(status: int, requests: int) -> bool:
    """Whether a batch that was answered so, completely, is worth halving.

    Args:
        status: the model's answer.
        requests: requests in the batch.
    """
    return requests > 1 and status in STATUSES


def granted(requests: int) -> int:
    """Runs that a grant to isolate covers: as many as it takes to find one bad request."""
    return 2 * max(1, (requests - 1).bit_length())


class Budget:
    """At most a tenth as many runs again as batches over 10 s; one in 10 s is always allowed.

    That is asked when a search begins. Once begun it goes on to its end (see `granted`): to stop half way
    would have cost runs and told nobody apart. What it takes beyond the rule is a debt that later batches
    pay, a tenth each, and where they are rare the time, one run in 10 s; until then no other begins. So over
    any time there are at most as many runs as a tenth of its batches and one in 10 s, and one search and what
    10 s had left over.

    Counts are kept by whole seconds. Runs are counted over the current and the ten seconds before, batches
    over the current and nine before, so the rule holds over the 10 s before each search that begins.
    """

    __slots__ = ("_batches", "_debt", "_paid", "_runs")

    def __init__(self) -> None:
        self._batches: deque[list[int]] = deque()
        self._runs: deque[list[int]] = deque()
        self._debt = 0.0
        self._paid = 0.0

    def batch(self, now: float) -> None:
        """Note one batch that was sent (not one that was run again)."""
        _count(self._batches, int(now))
        self._pay(now, SHARE)

    def take(self, now: float, attempt: int, requests: int) -> bool:
        """Whether a run again is allowed now; it counts from here on where it is.

        Args:
            now: the time.
            attempt: which run of its batch's search it is, 1 = it begins.
            requests: requests in the batch.
        """
        if not 1 < attempt <= granted(requests) and not self._allows(now):
            return False
        _count(self._runs, int(now))
        self._debt += 1.0
        return True

    def _allows(self, now: float) -> bool:
        self._pay(now, 0.0)
        second = int(now)
        runs = _total(self._runs, second - WINDOW)
        worth = SHARE * _total(self._batches, second - WINDOW + 1)
        return (not runs or runs + 1 <= worth) and self._debt + 1.0 <= max(1.0, worth) + _ROUNDING

    def _pay(self, now: float, least: float) -> None:
        if self._debt > 0.0:
            self._debt = max(0.0, self._debt - max(least, (now - self._paid) / WINDOW))
        self._paid = now


def _count(counts: deque[list[int]], second: int) -> None:
    if counts and counts[-1][0] >= second:
        counts[-1][1] += 1
    else:
        counts.append([second, 1])
        if len(counts) > WINDOW + 1:
            counts.popleft()


def _total(counts: deque[list[int]], since: int) -> int:
    while counts and counts[0][0] < since:
        counts.popleft()
    return sum(count for _, count in counts)


class Halving:
    """Which parts of a failed batch to run next; the largest first, so that most neighbours are soon free.

    With k bad requests of n there are at most 2·k·⌈log2 n⌉ runs, and never more than 2·(n - 1).

    Use: `while (span := halving.next()) is not None`: run the requests `[span[0], span[1])` as one batch,
    then tell `passed()` or `failed()`. After `failed()` of a single request its own answer stands. What is
    left when one stops earlier is `unresolved`.

    Args:
        requests: requests in the batch that failed, ≥ 2.
    """

    __slots__ = ("_open", "runs")

    def __init__(self, requests: int) -> None:
        if requests < 2:
            raise ValueError(f"expected at least 2 requests to halve, found {requests}")
        self._open: deque[tuple[int, int]] = deque()
        self.runs = 0
        self._split(0, requests)

    def next(self) -> tuple[int, int] | None:
        """The span of requests to run now, or None when every request is resolved."""
        return self._open[0] if self._open else None

    def passed(self) -> None:
        """The span that `next` told was answered with success (or by an error of its own protocol)."""
        self._open.popleft()
        self.runs += 1

    def failed(self) -> bool:
        """The span that `next` told failed; returns True where it was one request: its answer is its own."""
        start, stop = self._open.popleft()
        self.runs += 1
        if stop - start == 1:
            return True
        self._split(start, stop)
        return False

    @property
    def unresolved(self) -> list[tuple[int, int]]:
        """Spans that have no answer of their own yet."""
        return list(self._open)

    def _split(self, start: int, stop: int) -> None:
        middle = (start + stop + 1) // 2
        self._open.append((start, middle))
        self._open.append((middle, stop))
