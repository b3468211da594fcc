"""Whose load is shown next: a bounded number of writes a second, shared out fairly among namespaces.

A backend whose load has moved asks for a turn. There are `PER_SECOND` of them a second for all backends
together, and `BURST` at once; where more ask, the namespaces have one each in turn, and in a namespace who
asked first. So a namespace with a few busy backends is shown as it is, whatever the others have.

A turn is for now: who has not used it within `LASTS` seconds, since its reconcile fails before it comes to
the status, has lost it and queues up anew, last of its namespace. So turns do not add up while nothing can be
written: in any `t` seconds at most `BURST + PER_SECOND * (t + LASTS)` are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from penstock_operator.clock import Clock, Timer
from penstock_operator.store import Key

PER_SECOND = 10.0
BURST = 10.0
LASTS = 5.0
"""Seconds: long enough for a queue of reconciles that is busy."""


class LoadTurns:
    """The turns of one operator.

    Args:
        clock: time.
        granted: called with each backend whose turn has come.
    """

    def __init__(self, clock: Clock, granted: Callable[[Key], None]) -> None:
        self._clock = clock
        self._granted = granted
        self._waiting: OrderedDict[str, OrderedDict[Key, None]] = OrderedDict()
        """Backends that wait, by namespace; the namespace whose turn it is comes first."""
        self._come: OrderedDict[Key, float] = OrderedDict()
        """Backends whose turn has come, and until when they have it; the earliest first."""
        self._full_at = float("-inf")
        self._timer: Timer | None = None

    def ask(self, key: Key) -> None:
        """A backend's load has moved; no matter how often it asks, it has one turn.

        Args:
            key: which.
        """
        self._expire()
        if key not in self._come:
            self._waiting.setdefault(key.namespace, OrderedDict())[key] = None
            self._grant()

    def take(self, key: Key) -> bool:
        """Whether it is a backend's turn, which it has used by this.

        Args:
            key: which.
        """
        self._expire()
        return self._come.pop(key, None) is not None

    def forget(self, key: Key) -> None:
        """It is gone, or was shown without a turn.

        Args:
            key: which.
        """
        self._come.pop(key, None)
        waiting = self._waiting.get(key.namespace)
        if waiting is not None:
            waiting.pop(key, None)
            if not waiting:
                del self._waiting[key.namespace]

    def _grant(self) -> None:
        while self._waiting and self._timer is None:
            now = self._clock.time()
            full_at = max(now, self._full_at) + 1 / PER_SECOND
            wait = full_at - now - BURST / PER_SECOND
            if wait > 1e-6:
                self._timer = self._clock.call_at(now + wait, self._due)
                return
            self._full_at = full_at
            namespace, waiting = self._waiting.popitem(last=False)
            key, _ = waiting.popitem(last=False)
            if waiting:
                self._waiting[namespace] = waiting
            self._come[key] = now + LASTS
            self._granted(key)

    def _expire(self) -> None:
        now = self._clock.time()
        while self._come and next(iter(self._come.values())) <= now:
            self._come.popitem(last=False)

    def _due(self) -> None:
        self._timer = None
        self._grant()
