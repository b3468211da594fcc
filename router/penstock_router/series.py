"""Counts the outcomes of requests: answers by status and reason, and durations, in plain numbers.

Each answer is counted once, into two numbers: one of all requests, and one of those that were drawn by
weight, which the operator compares (`BackendTotals` defines them). The buckets are the report's; the metric's
are derived from them.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from penstock_wire.control.report import FIRST_BYTE_BUCKETS, FIRST_BYTE_SECONDS, BackendTotals
from penstock_wire.errors import Reason

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the metric's buckets, in seconds; each is one of `FIRST_BYTE_SECONDS`."""
REFUSALS = frozenset(
    reason.value for reason in Reason if not reason.from_model and reason is not Reason.BATCH_FAILED
)
"""Reasons of errors that are Penstock's own, not the model's."""
TOO_MANY_REQUESTS = 429


class Tally:
    """Answers with one status and reason."""

    __slots__ = ("drawn", "total")

    def __init__(self) -> None:
        self.total = 0
        self.drawn = 0
        """Answers to requests that were drawn by weight."""


class Series:
    """The outcomes of one endpoint's requests to one backend, since the router started.

    Args:
        endpoint: the endpoint; empty for requests without one.
        backend: the backend; empty for requests that were sent to none.
    """

    __slots__ = (
        "_above",
        "_answers",
        "_last",
        "_place",
        "_reason",
        "_status",
        "_up_to",
        "backend",
        "buckets",
        "calls",
        "cuts",
        "endpoint",
        "first",
        "retries",
        "seconds",
        "strays",
        "tunnels",
    )

    def __init__(self, endpoint: str, backend: str) -> None:
        self.endpoint = endpoint
        self.backend = backend
        self._answers: dict[tuple[int, str], Tally] = {}
        self._status, self._reason = 0, ""
        self._last: Tally | None = None  # the tally of these two
        self._place = -1  # the last answer's bucket, for times above `_above` and up to `_up_to`
        self._above = self._up_to = math.inf
        self.buckets = [0] * FIRST_BYTE_BUCKETS
        """Requests by duration, one bucket per upper bound; the last has none."""
        self.first = [0] * FIRST_BYTE_BUCKETS
        """The same for requests drawn by weight, by the time to the head of their answer."""
        self.seconds = 0.0
        """The sum of all durations."""
        self.cuts: dict[str, int] = {}
        """Streams and tunnels that ended before their end, by reason."""
        self.calls: dict[int, int] = {}
        """gRPC calls that passed to the model as they were, by their status."""
        self.retries = 0
        """Tries after the first."""
        self.strays = 0
        """Tries of requests with a key on another pod than the key's own."""
        self.tunnels = 0
        """Open connections that have switched protocols."""

    def answered(
        self,
        status: int,
        reason: str,
        seconds: float,
        drawn: bool = False,  # noqa: FBT001, FBT002 - mypyc calls faster by position
    ) -> None:
        """Count a request at its end.

        Args:
            drawn: whether it was drawn by weight and not yet counted by `begun`.
        """
        tally = self._tally(status, reason)
        place = self._place_of(seconds)
        tally.total += 1
        self.buckets[place] += 1
        self.seconds += seconds
        if drawn:
            tally.drawn += 1
            self.first[place] += 1

    def called(self, code: int) -> None:
        """Count the status that a gRPC call ended with."""
        self.calls[code] = self.calls.get(code, 0) + 1

    def cut(self, reason: str) -> None:
        """Count a stream, or a tunnel, that ended before its end."""
        self.cuts[reason] = self.cuts.get(reason, 0) + 1

    def begun(self, status: int, reason: str, seconds: float) -> None:
        """Count the head of the answer to a request that was drawn by weight."""
        self._tally(status, reason).drawn += 1
        self.first[self._place_of(seconds)] += 1

    def _place_of(self, seconds: float) -> int:
        """The bucket of a time, which is nearly always the same as the last."""
        if not self._above < seconds <= self._up_to:
            self._place = place = bisect_left(FIRST_BYTE_SECONDS, seconds)
            self._above = FIRST_BYTE_SECONDS[place - 1] if place else -math.inf
            self._up_to = FIRST_BYTE_SECONDS[place] if place < len(FIRST_BYTE_SECONDS) else math.inf
        return self._place

    def _tally(self, status: int, reason: str) -> Tally:
        tally = self._last
        if tally is None or status != self._status or reason != self._reason:
            self._status, self._reason = status, reason
            tally = self._answers.get((status, reason))
            if tally is None:
                tally = self._answers[status, reason] = Tally()
            self._last = tally
        return tally

    @property
    def answers(self) -> dict[tuple[int, str], int]:
        """Numbers of answers by status (499: the client left before) and reason."""
        return {key: tally.total for key, tally in list(self._answers.items()) if tally.total}

    def cumulative(self) -> list[tuple[str, int]]:
        """Cumulative numbers of requests by upper bound of their duration."""
        below, counts = 0, []
        for bound, count in zip(FIRST_BYTE_SECONDS, self.buckets, strict=False):
            below += count
            if bound in BUCKETS:
                counts.append((str(bound), below))
        return [*counts, ("+Inf", below + self.buckets[-1])]

    def totals(self, held: int) -> BackendTotals:
        """The totals for the report.

        Args:
            held: requests that are held now.
        """
        codes: dict[str, int] = {}
        refused: dict[str, int] = {}
        reasons: dict[str, int] = {}
        errors = 0
        for (status, reason), tally in list(self._answers.items()):
            if tally.total:
                codes[str(status)] = codes.get(str(status), 0) + tally.total
            refusal = reason in REFUSALS
            if status >= 500 or (refusal and status == TOO_MANY_REQUESTS):
                errors += tally.drawn
                if tally.total:
                    reasons[reason] = reasons.get(reason, 0) + tally.total
                if refusal and tally.drawn:
                    refused[reason] = refused.get(reason, 0) + tally.drawn
        return BackendTotals(
            requests=sum(codes.values()),
            codes=codes,
            retries=self.retries,
            held=held,
            errors=errors,
            refused=refused,
            seconds=tuple(self.first) if any(self.first) else (),
            reasons=reasons,
        )
