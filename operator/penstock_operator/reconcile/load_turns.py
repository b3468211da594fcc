"""Whose load is shown next: a bounded number of writes a second, shared out fairly among namespaces.

A backend whose load has moved asks for a turn. There are `PER_SECOND` of them a second for all backends
together, and `BURST` at once; where more ask, the namespaces have one each in turn, and in a namespace who
asked first. So a namespace with a few busy backends is shown as it is, whatever the others have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from penstock_operator.clock import Clock, Timer
from penstock_operator.store import Key

PER_SECOND = 10.0
BURST = 10.0


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
        self._come: set[Key] = set()
        self._full_at = float("-inf")
        self._timer: Timer | None = None

    def ask(self, key: Key) -> None:
        """A backend's load has moved; no matter how often it asks, it has one turn.

        Args:
            key: which.
        """
        if key not in self._come:
            self._waiting.setdefault(key.namespace, OrderedDict())[key] = None
            self._grant()

    def take(self, key: Key) -> bool:
        """Whether a backend's turn has come, which it has used by this.

        Args:
            key: which.
        """
        if key not in self._come:
            return False
        self._come.discard(key)
        return True

    def forget(self, key: Key) -> None:
        """It is gone, or was shown without a turn.

        Args:
            key: which.
        """
        self._come.discard(key)
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
            self._come.add(key)
            self._granted(key)

    def _due(self) -> None:
        self._timer = None
        self._grant()
