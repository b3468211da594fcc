"""Finds the requests that fail their batch: decides which requests run again next. Pure.

A failed batch holds at least one bad request. Binary splitting runs the first half of the suspects again: if
it fails, a bad request is in there; if it passes, one is in the other half, without a run of that half. A
request that fails alone has its own answer; all requests that did not run again since are unknown then, as if
they had just arrived. (Sobel and Groll, Group testing to eliminate efficiently all defectives in a
binomial sample, Bell System Technical Journal 38, 1959; Hwang, A method for detecting all defective members
in a population by group testing, Journal of the American Statistical Association 67, 1972.)

The search always goes on to its end: no request gets an answer that another one has caused. What searches
cost is kept low by the size of the batches (`queue.group_size`).
"""

from __future__ import annotations

LOAD = frozenset({408, 425, 429})
"""The 4xx statuses that concern the model's load or time, not the caller's data."""


def may_be_one_request(status: int) -> bool:
    """Whether one request of a batch may be the cause of this answer to all of it.

    A redirect or a 4xx concerns the data that was sent, and frameworks turn an exception into a 500. 501 to
    599 concern the model server, and another run would only add to its load.

    Args:
        status: the model's answer to a batch of several requests.
    """
    return status == 500 or (300 <= status < 500 and status not in LOAD)


class Bisection:
    """The search in one failed batch, whose requests are numbered from 0.

    `[0, start)` are resolved, `[start, stop)` are suspect (at least one of them is bad), and the others are
    unknown.

    Use: `while (span := search.next(most)) is not None`: run the requests `[span[0], span[1])` as one batch,
    then call `passed()` or `failed()`.

    Args:
        requests: number of requests in the batch that failed, at least 2.
    """

    __slots__ = ("_end", "_requests", "_stop", "resolved")

    def __init__(self, requests: int) -> None:
        if requests < 2:
            raise ValueError(f"expected at least 2 requests to search, found {requests}")
        self._requests = requests
        self._stop = requests
        self._end = 0
        self.resolved = 0
        """Number of requests that have an outcome of their own; they are the first of the batch."""

    def next(self, most: int) -> tuple[int, int] | None:
        """The span of requests to run now, or None when every request is resolved.

        Args:
            most: maximum number of unknown requests in a group, at least 1.
        """
        start = self.resolved
        if start == self._requests:
            return None
        suspects = self._stop - start
        if not suspects:
            self._end = min(self._requests, start + max(1, most))
        else:
            self._end = start + (suspects + 1) // 2
        return start, self._end

    def passed(self, *, whole: bool = True) -> None:
        """Note that the run that `next` returned succeeded, or that no client waits for it any more.

        Args:
            whole: all of its requests were run: False if a client has left, who may have sent the bad one.
        """
        self.resolved = self._end
        if not whole or self._stop < self._end:
            self._stop = self._end

    def failed(self, *, alone: bool) -> None:
        """Note that the run that `next` returned failed.

        Args:
            alone: one request was run, so the answer is its own.
        """
        if alone:
            self.resolved = self._end
        self._stop = self._end
