"""Counts requests and their errors over the last minute, by endpoint and backend, as the routers counted."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from penstock_wire.control.report import BackendTotals, RouterReport
from penstock_wire.errors import MODEL_ANSWER, Reason

SPAN = 60.0
"""Seconds for which a request counts."""
SLOT = 10.0

Asked = Callable[[str], Collection[str]]
"""The backends that get requests of an endpoint, by its name."""

REFUSALS = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.DEADLINE,
        Reason.DRAINING,
        Reason.MOVED,
        Reason.NOT_READY,
        Reason.BACKEND_MISSING,
        Reason.COLD_START_FULL,
        Reason.NO_MEMORY,
    }
)
"""Reasons of requests that found no room, no pod, or not enough time."""
_REASONS = frozenset({MODEL_ANSWER, *(reason.value for reason in Reason)})


@dataclass(slots=True)
class _Slot:
    """The requests of some seconds.

    Args:
        served: by endpoint, then by backend: each split reads only its own, and there can be thousands.
    """

    began: float
    served: dict[str, Counter[str]] = field(default_factory=dict)
    errors: dict[str, Counter[str]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)


class TrafficWindow:
    """The requests of a namespace's endpoints within the last minute, by endpoint and backend.

    A router's first report counts nothing: the time of its requests is unknown. Only backends that get
    requests of the endpoint are kept, or a router that makes up names could fill the memory.
    """

    def __init__(self) -> None:
        # Counters by uid of a router's pod; of requests with the reason "", of errors with theirs.
        self._last: dict[str, dict[tuple[str, str, str], int]] = {}
        self._slots: deque[_Slot] = deque()

    def record(self, report: RouterReport, now: float, *, asked: Asked | None = None) -> None:
        """Take a router's counters.

        Args:
            asked: the backends that get requests of an endpoint now; earlier ones stay known. None for all
                that are reported.
        """
        before = self._last.get(report.uid)
        known = before or {}
        # NB: a namespace can have thousands of endpoints, and most of their backends are known.
        asked = None if asked is None else functools.cache(asked)
        counts = {
            (endpoint, backend, reason): count
            for endpoint, counters in report.endpoints.items()
            for backend, totals in counters.backends.items()
            if (endpoint, backend, "") in known or asked is None or backend in asked(endpoint)
            for reason, count in _counters(totals)
        }
        # NB: a backend without requests is not in the report; its counters continue when it is back.
        gone = {key: count for key, count in known.items() if key[0] in report.endpoints}
        self._last[report.uid] = gone | counts
        if before is None:
            return
        if not self._slots or now - self._slots[-1].began >= SLOT:
            self._slots.append(_Slot(now))
        slot = self._slots[-1]
        for key, count in counts.items():
            past = known.get(key, 0)
            gain = count - past if count >= past else count  # a lower counter has restarted from 0
            if not gain:
                continue
            endpoint, backend, reason = key
            if reason:
                slot.errors.setdefault(backend, Counter())[reason] += gain
            else:
                slot.served.setdefault(endpoint, Counter())[backend] += gain
                slot.requests[backend] += gain
        self._expire(now)

    def forget(self, uid: str) -> None:
        """Drop the counters of a router's pod that is gone."""
        self._last.pop(uid, None)

    def of(self, endpoint: str, now: float) -> Mapping[str, int]:
        """Requests of an endpoint that were answered within the last minute, by backend."""
        self._expire(now)
        served: Counter[str] = Counter()
        for slot in self._slots:
            served.update(slot.served.get(endpoint, {}))
        return served

    def errors(self, backend: str, now: float) -> tuple[int, Mapping[str, int]]:
        """Requests of a backend within the last minute, whatever the endpoint, and its errors by reason."""
        self._expire(now)
        errors: Counter[str] = Counter()
        for slot in self._slots:
            errors.update(slot.errors.get(backend, {}))
        return sum(slot.requests[backend] for slot in self._slots), errors

    def failing(self, now: float) -> frozenset[str]:
        """The backends with an error within the last minute."""
        self._expire(now)
        return frozenset().union(*(slot.errors for slot in self._slots))

    def _expire(self, now: float) -> None:
        while self._slots and now - self._slots[0].began >= SPAN:
            self._slots.popleft()


def _counters(totals: BackendTotals) -> list[tuple[str, int]]:
    """A backend's counters by reason; made-up reasons, which could fill the memory, are left out."""
    errors = [(reason, count) for reason, count in totals.reasons.items() if reason in _REASONS]
    return [("", totals.requests), *errors]
