"""The Lease in a thread of its own, with a loop, a login and connections of its own.

In a cold start with hundreds of backends the reconciling loop is busy for seconds, and its calls queue for
the apiserver; a renewal among them would come too late. The check of writes is the same: each write reads
`until` at the moment it is made (see `fence`).

A loop that hangs for good must not lead for ever, and the thread alone would not notice. So with each renewal
it asks that loop for a sign of life, and stops renewing when none has come for `STUCK` seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from penstock_operator.clock import Clock
from penstock_operator.errors import LeaseLost
from penstock_operator.kube.cluster import Connection
from penstock_operator.kube.lease import Elector

T = TypeVar("T")

STUCK = 20.0
"""Seconds without a sign of life of the acting loop after which the Lease is not renewed."""

CALL_SECONDS = 3.5
"""The longest call about the Lease: half of `LeaseTimes.renew_within`, so that a hanging call leaves time for
another one."""


class LeaseThread:
    """An `Elector` in a thread. Create, start and use it in one loop, the acting one.

    Args:
        connect: logs in; called in the thread, which alone uses the connection.
        elect: makes the elector for that connection; its `working` must be the second argument.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        elect: Callable[[Connection, Callable[[], bool]], Elector],
        *,
        clock: Clock,
    ) -> None:
        self._connect = connect
        self._elect = elect
        self._clock = clock
        self._cluster: Connection | None = None
        self._elector: Elector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acting: asyncio.AbstractEventLoop | None = None
        self._seen = float("-inf")
        self._thread: threading.Thread | None = None

    @property
    def until(self) -> float:
        """The time, in monotonic seconds, until which the Lease is certainly ours; for any thread."""
        return self._elector.until if self._elector is not None else float("-inf")

    async def acquire(self) -> None:
        """Wait until we lead.

        Raises:
            ConfigError: no login works.
        """
        self._acting = asyncio.get_running_loop()
        self._seen = self._clock.time()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="lease", daemon=True)
        self._thread.start()
        await self._there(self._make())
        await self._there(self._leading().acquire())

    async def hold(self) -> None:
        """Renew until that fails.

        Raises:
            LeaseLost: we do not lead any more, or cannot prove it in time.
        """
        self._seen = self._clock.time()  # NB: the wait to lead may take hours, without a sign of life
        await self._there(self._leading().hold())

    async def release(self) -> None:
        """Give the Lease back, so that the next leader does not wait; best effort."""
        if self._elector is not None:
            await self._there(self._elector.release())

    async def close(self) -> None:
        """End the thread and its connections."""
        if self._loop is None or self._thread is None:
            return
        if self._cluster is not None:
            await self._there(self._cluster.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, 2.0)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()

    async def _make(self) -> None:
        self._cluster = await self._connect()
        self._elector = self._elect(self._cluster, self._working)

    def _leading(self) -> Elector:
        if self._elector is None:
            raise LeaseLost("the Lease was never asked for")
        return self._elector

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread's loop; it is cancelled with the caller."""
        if self._loop is None:
            work.close()
            raise LeaseLost("the Lease was never asked for")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _working(self) -> bool:
        if self._acting is None or self._acting.is_closed():
            return False
        self._acting.call_soon_threadsafe(self._lives)
        return self._clock.time() - self._seen < STUCK

    def _lives(self) -> None:
        self._seen = self._clock.time()
