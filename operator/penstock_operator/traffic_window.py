"""Counts the requests of an endpoint by backend over the last minute, from the routers' counters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping

from penstock_wire.control.report import RouterReport

SPAN = 60.0
"""Seconds for which a request counts."""
SLOT = 10.0

Asked = Callable[[str], Collection[str]]
"""The backends that get requests of an endpoint, by its name."""


class TrafficWindow:
    """The requests of a namespace's endpoints within the last minute, by endpoint and backend.

    A router's first report counts nothing: the time of its requests is unknown. Only backends that get
    requests of the endpoint are kept, or a router that makes up names could fill the memory.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[tuple[str, str], int]] = {}  # counters by uid of a router's pod
        # By endpoint, then by backend: each split reads only its own, and there can be thousands.
        self._slots: deque[tuple[float, dict[str, Counter[str]]]] = deque()

    def record(self, report: RouterReport, now: float, *, asked: Asked | None = None) -> None:
        """Take a router's counters.

        Args:
            report: its report.
            now: seconds, monotonic.
            asked: the backends that get requests of an endpoint now; earlier ones stay known. None for all
                that are reported.
        """
        before = self._last.get(report.uid)
        known = before or {}
        counts = {
            (endpoint, backend): totals.requests
            for endpoint, counters in report.endpoints.items()
            for names in [counters.backends if asked is None else asked(endpoint)]
            for backend, totals in counters.backends.items()
            if backend in names or (endpoint, backend) in known
        }
        # NB: a backend without requests is not in the report; its counters continue when it is back.
        gone = {key: count for key, count in known.items() if key[0] in report.endpoints}
        self._last[report.uid] = gone | counts
        if before is None:
            return
        if not self._slots or now - self._slots[-1][0] >= SLOT:
            self._slots.append((now, {}))
        slot = self._slots[-1][1]
        for key, count in counts.items():
            past = known.get(key, 0)
            gain = count - past if count >= past else count  # a lower counter has restarted from 0
            if gain:
                endpoint, backend = key
                slot.setdefault(endpoint, Counter())[backend] += gain
        self._expire(now)

    def forget(self, uid: str) -> None:
        """Drop the counters of a router's pod that is gone."""
        self._last.pop(uid, None)

    def of(self, endpoint: str, now: float) -> Mapping[str, int]:
        """Requests of an endpoint that were answered within the last minute, by backend.

        Args:
            endpoint: its name.
            now: seconds, monotonic.
        """
        self._expire(now)
        served: Counter[str] = Counter()
        for _, slot in self._slots:
            served.update(slot.get(endpoint, {}))
        return served

    def _expire(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] >= SPAN:
            self._slots.popleft()
