"""A queue of keys with client-go's semantics: a key that is added while it is worked on is worked on again.

It has three sets: *queue* holds the keys that wait; *dirty* those that must be worked on;
*processing* those that are being worked on. `add` of a dirty key does nothing; `add` of a key in processing
makes it dirty, and `done` puts it back into the queue. So no key is worked on by two workers at once and no
addition is lost.

The keys that wait are not in one line: tenants take turns, a tenant has some of the workers at most, and
urgent keys go before the others. So a tenant whose keys are many, or slow, or fail, delays no other tenant's.

Source: k8s.io/client-go/util/workqueue (queue.go, delaying_queue.go, rate_limiting_queue.go).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from penstock_operator.clock import Clock, Timer
from penstock_operator.fair_turns import FairTurns

K = TypeVar("K", bound=Hashable)

URGENT_RUN = 3
"""Urgent keys in a row, before one of the others has its turn."""


class QueueObserver(Protocol):
    """Counts the queue's operations; the names follow controller-runtime's ``workqueue_*`` metrics."""

    def added(self, depth: int) -> None:
        """A key was added; `depth` keys wait now."""

    def got(self, depth: int, waited: float) -> None:
        """A worker took a key that had waited so many seconds."""

    def finished(self, worked: float) -> None:
        """A worker finished a key after so many seconds."""

    def retried(self) -> None:
        """A key was added with backoff after a failure."""


class _Silent:
    def added(self, depth: int) -> None:
        pass

    def got(self, depth: int, waited: float) -> None:
        pass

    def finished(self, worked: float) -> None:
        pass

    def retried(self) -> None:
        pass


class ShutDown(Exception):
    """The queue was shut down and has nothing left."""


class WorkQueue(Generic[K]):
    """Keys to work on.

    Args:
        base: first backoff of a key, seconds; doubled with every failure.
        cap: longest backoff, seconds.
        tenant: whose a key is.
        most: keys of a tenant that are worked on at once, at most; None for any number.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        base: float = 0.1,
        cap: float = 30.0,
        observer: QueueObserver | None = None,
        tenant: Callable[[K], Hashable] = lambda _key: None,
        most: int | None = None,
    ) -> None:
        self._clock = clock
        self._base = base
        self._cap = cap
        self._observer: QueueObserver = observer or _Silent()
        self._tenant = tenant
        self._most = most
        self._urgent, self._ordinary = FairTurns[K](), FairTurns[K]()
        self._hurried: set[K] = set()  # keys in processing that are urgent when they come again
        self._run = 0  # of urgent keys
        self._working: Counter[Hashable] = Counter()  # keys in processing, by tenant
        self._dirty: dict[K, float] = {}  # key -> when it became dirty
        self._processing: dict[K, float] = {}  # key -> when work began
        self._failures: dict[K, int] = {}
        self._timers: dict[K, tuple[float, Timer]] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._shut = False

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ordinary)

    @property
    def idle(self) -> bool:
        """Whether no key waits or is worked on (delayed keys do not count)."""
        return not len(self) and not self._processing

    @property
    def has_urgent(self) -> bool:
        """Whether urgent keys wait."""
        return bool(len(self._urgent))

    @property
    def delayed(self) -> int:
        """How many keys are delayed."""
        return len(self._timers)

    def underway(self) -> tuple[float, float]:
        """Seconds that the keys in processing have taken so far: their sum, and the longest."""
        now = self._clock.time()
        taken = [now - began for began in self._processing.values()]
        return sum(taken), max(taken, default=0.0)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Have the key worked on as soon as a worker is free.

        Args:
            urgent: before keys that are not, also if it waits already.
        """
        if self._shut:
            return
        if key in self._dirty:
            if urgent and self._ordinary.discard(tenant := self._tenant(key), key):
                self._urgent.add(tenant, key)
            elif urgent and key in self._processing:
                self._hurried.add(key)
            return
        self._dirty[key] = self._clock.time()
        if key not in self._processing:
            self._append(key, urgent=urgent)
        elif urgent:
            self._hurried.add(key)
        self._observer.added(len(self))

    def add_after(self, key: K, seconds: float) -> None:
        """Add the key later; if it is delayed already, the earlier time counts.

        Args:
            seconds: how long to wait; 0 or less adds at once.
        """
        if self._shut:
            return
        if seconds <= 0:
            self.add(key)
            return
        when = self._clock.time() + seconds
        known = self._timers.get(key)
        if known is not None:
            if known[0] <= when:
                return
            known[1].cancel()
        self._timers[key] = (when, self._clock.call_at(when, self._due, key))

    def add_failed(self, key: K, *, at_least: float = 0.0) -> float:
        """Add the key after its backoff, and let the next one be longer.

        Args:
            at_least: seconds that the server asked us to wait; no more than the longest backoff counts.

        Returns:
            The backoff, seconds.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # NB: 2**n of a key that failed for hours must not become a huge integer.
        delay = min(self._cap, max(at_least, self._base * 2.0 ** min(failures, 40)))
        self._observer.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the key's backoff."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often in a row the key failed."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Wait for a key; the caller must call `done` for it.

        Raises:
            ShutDown: the queue is shut down and empty.
        """
        while (key := self._next()) is None:
            if self._shut and not len(self):
                raise ShutDown
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # NB: pass the wake-up that this worker will not use to the next.
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        now = self._clock.time()
        waited = now - self._dirty.pop(key)
        self._processing[key] = now
        self._working[self._tenant(key)] += 1
        self._observer.got(len(self), waited)
        return key

    def done(self, key: K) -> None:
        """Note that work on the key has ended, well or not."""
        began = self._processing.pop(key)
        self._observer.finished(self._clock.time() - began)
        tenant = self._tenant(key)
        self._working[tenant] -= 1
        if not self._working[tenant]:
            del self._working[tenant]
        if key in self._dirty:
            self._append(key, urgent=key in self._hurried)
        elif len(self):
            self._wake()  # it may have been the tenant's turn that was missing
        self._hurried.discard(key)
        if self._shut and not len(self):
            self._wake_all()

    def shut_down(self) -> None:
        """Take no more keys; workers get the queued ones, then `ShutDown`."""
        self._shut = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._wake_all()

    def _append(self, key: K, *, urgent: bool) -> None:
        (self._urgent if urgent else self._ordinary).add(self._tenant(key), key)
        self._wake()

    def _next(self) -> K | None:
        """Take the next key; None if there is none, or only of tenants that have all the workers they may."""
        if self._run >= URGENT_RUN and (key := self._ordinary.pop(self._may)) is not None:
            self._run = 0
            return key
        if (key := self._urgent.pop(self._may)) is not None:
            self._run += 1
            return key
        self._run = 0
        return self._ordinary.pop(self._may)

    def _may(self, tenant: Hashable) -> bool:
        return self._most is None or self._working[tenant] < self._most

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


async def work(
    queue: WorkQueue[K],
    handle: Callable[[K], Any],
    failed: Callable[[K, Exception, float], None],
    *,
    fatal: tuple[type[Exception], ...] = (),
) -> None:
    """Run one worker: take keys until the queue is shut down.

    Args:
        handle: awaited with a key; returns seconds after which to look again, or None.
        failed: called for each failure with the backoff in seconds; must not raise.
        fatal: errors that end the worker instead of being tried again.
    """
    while True:
        try:
            key = await queue.get()
        except ShutDown:
            return
        try:
            again: float | None = await handle(key)
        except fatal:
            raise
        except Exception as error:
            asked = getattr(error, "retry_after", None) or 0.0
            failed(key, error, queue.add_failed(key, at_least=asked))
        else:
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)
        finally:
            queue.done(key)
        # NB: work that changes nothing awaits nothing; without this a worker would go through all keys of a
        # start while the loop serves nobody, and the Lease would be lost after 20 seconds of it.
        await asyncio.sleep(0)
