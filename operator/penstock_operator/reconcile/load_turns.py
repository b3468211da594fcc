"""Limits how many backends' loads are written a second, and shares the writes fairly among namespaces.

A backend asks for a turn when its load has moved. There are `PER_SECOND` turns a second for all backends
together, and `BURST` at once. If more ask, the namespaces get one turn each in rotation, and within a
namespace the first to ask goes first. So a namespace with few busy backends is up to date, however many the
others have.

A turn expires: a backend that has not used it within `LASTS` seconds, as its reconcile fails before it gets
to the status, has lost it and queues up again, last of its namespace. So turns do not add up while nothing
can be written: in any `t` seconds at most `BURST + PER_SECOND * (t + LASTS)` are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from penstock_operator.clock import Clock, Timer
from penstock_operator.fair_turns import FairTurns
from penstock_operator.store import ObjectKey

PER_SECOND = 10.0
BURST = 10.0
LASTS = 5.0
"""Seconds before a turn expires: long enough for a busy queue of reconciles."""


class LoadTurns:
    """The turns of one operator's backends."""

    def __init__(self, clock: Clock, granted: Callable[[ObjectKey], None]) -> None:
        self._clock = clock
        self._granted = granted
        self._waiting = FairTurns[ObjectKey]()
        self._come: OrderedDict[ObjectKey, float] = OrderedDict()
        """Backends that have a turn, and the time when it expires; the earliest first."""
        self._full_at = float("-inf")
        self._timer: Timer | None = None

    def ask(self, key: ObjectKey) -> None:
        """Ask for a turn for a backend; however often it asks, it gets one."""
        self._expire()
        if key not in self._come:
            self._waiting.add(key.namespace, key)
            self._grant()

    def take(self, key: ObjectKey) -> bool:
        """Use a backend's turn; return whether it had one."""
        self._expire()
        return self._come.pop(key, None) is not None

    def forget(self, key: ObjectKey) -> None:
        """Drop a backend that is gone, or whose load was shown without a turn."""
        self._come.pop(key, None)
        self._waiting.discard(key.namespace, key)

    def _grant(self) -> None:
        while len(self._waiting) and self._timer is None:
            now = self._clock.time()
            full_at = max(now, self._full_at) + 1 / PER_SECOND
            wait = full_at - now - BURST / PER_SECOND
            if wait > 1e-6:
                self._timer = self._clock.call_at(now + wait, self._due)
                return
            key = self._waiting.pop()
            if key is None:
                return
            self._full_at = full_at
            self._come[key] = now + LASTS
            self._granted(key)

    def _expire(self) -> None:
        now = self._clock.time()
        while self._come and next(iter(self._come.values())) <= now:
            self._come.popitem(last=False)

    def _due(self) -> None:
        self._timer = None
        self._grant()
