"""What requests have come to: answers by status and reason, and how long they took, in plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from penstock_wire.control.report import BackendTotals

# NB: of any length to mypyc, which would make a new tuple of sixteen for each request.
BUCKETS: Final[tuple[float, ...]] = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip


class Series:
    """What one endpoint's requests to one backend have come to, since the router started.

    Args:
        endpoint: the endpoint; empty for requests of none.
        backend: the backend; empty for requests that none was asked for.
    """

    __slots__ = (
        "_answers",
        "_last",
        "_reason",
        "_status",
        "backend",
        "buckets",
        "endpoint",
        "retries",
        "seconds",
        "strays",
    )

    def __init__(self, endpoint: str, backend: str) -> None:
        self.endpoint = endpoint
        self.backend = backend
        self._answers: dict[tuple[int, str], list[int]] = {}
        self._status, self._reason = 0, ""
        self._last: list[int] | None = None  # of these
        self.buckets = [0] * (len(BUCKETS) + 1)
        """How many took so long, by upper bound; the last without one."""
        self.seconds = 0.0
        """How long all of them took."""
        self.retries = 0
        """Further tries."""
        self.strays = 0
        """Tries of requests with a key on another pod than the key's own."""

    def answered(self, status: int, reason: str, seconds: float) -> None:
        """Count a request."""
        if self._last is None or status != self._status or reason != self._reason:
            self._status, self._reason = status, reason
            self._last = self._answers.setdefault((status, reason), [0])
        self._last[0] += 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    @property
    def answers(self) -> dict[tuple[int, str], int]:
        """How many, by status (499: the client left before) and reason."""
        return {key: count for key, (count,) in list(self._answers.items())}

    def cumulative(self) -> list[tuple[str, int]]:
        """How many took at most so long, by upper bound."""
        below, counts = 0, []
        for bound, count in zip((*BUCKETS, "+Inf"), self.buckets, strict=True):
            below += count
            counts.append((str(bound), below))
        return counts

    def totals(self, held: int) -> BackendTotals:
        """As the report has them.

        Args:
            held: requests that are held now.
        """
        codes: dict[str, int] = {}
        for (status, _), count in self.answers.items():
            codes[str(status)] = codes.get(str(status), 0) + count
        return BackendTotals(requests=sum(codes.values()), codes=codes, retries=self.retries, held=held)
