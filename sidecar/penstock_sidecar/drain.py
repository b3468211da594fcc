"""Drains a pod without losing a request, and lets it serve again if it stays after all.

States::

    SERVING ──begin──► PROPAGATING ──propagation delay──► FLUSHING ──nothing queued or ongoing──► DRAINED
       ▲                    │                                │                                       │
       └──── the model went away and is ready again, or grace + 5 s passed, and no SIGTERM came ─────┘

PROPAGATING: not ready, but all requests are taken, since routers and kube-proxy may not have noticed yet;
each answer closes its connection. FLUSHING: idle connections are closed too; new requests are still taken.
A new connection shows that somebody has not noticed: the propagation delay begins anew with each of them.
When the drain timeout is over, queued and new requests get 503 `draining`, marked as surely not executed;
those with the model run on. DRAINED: new requests get 503 `draining`.

A kubelet also calls preStop when a liveness failure restarts the model container alone: then no SIGTERM
follows, and the pod must serve again.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable
from typing import Protocol

from penstock_sidecar.interfaces import RequestPath
from penstock_wire.contract import GRACE_BEYOND_DRAIN_S
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.process import log

COME_BACK_AFTER_GRACE = 5.0
MARGIN = 2.0
"""Seconds at the end of the grace that are kept for sending answers: after the grace comes SIGKILL."""
MARGIN_SHARE = 0.25
"""Maximum margin as a share of the grace, if the grace is short."""


class Phase(enum.StrEnum):
    """The state of a drain; see the module's docstring."""

    SERVING = "serving"
    PROPAGATING = "propagating"
    FLUSHING = "flushing"
    DRAINED = "drained"


class Connections(Protocol):
    """The part of the front that a drain needs.

    Attributes:
        connected: when a client last connected, by the loop's time.
    """

    connected: float

    def close_keepalive(self, *, idle: bool = True) -> None:
        """Close connections after their answers, and idle connections at once."""
        ...

    def open_keepalive(self) -> None:
        """Keep connections again."""
        ...


class Drain:
    """The drain of one process.

    Args:
        requests: the dispatcher.
        connections: the front of the data port.
        propagation_delay: seconds until all senders have noticed that the pod is not ready.
        timeout: seconds after that until queued requests are refused; 0 = at once.
        changed: called at each change of phase.
        grace: seconds that the pod is given to end; None for the operator's default.
    """

    def __init__(
        self,
        *,
        requests: RequestPath,
        connections: Connections,
        propagation_delay: float,
        timeout: float,
        changed: Callable[[], None],
        grace: float | None = None,
    ) -> None:
        self._requests = requests
        self._connections = connections
        self._propagation_delay = propagation_delay
        self._timeout = timeout
        self._changed = changed
        self._grace = grace
        self._began = 0.0
        self._task: asyncio.Task[None] | None = None
        self._back: asyncio.TimerHandle | None = None
        self._done = asyncio.Event()
        self._hurry = asyncio.Event()
        self._model_gone = False
        self._final = False
        self.phase = Phase.SERVING

    @property
    def grace(self) -> float:
        """Seconds that the pod is given to end."""
        if self._grace is not None:
            return self._grace
        return self._propagation_delay + self._timeout + GRACE_BEYOND_DRAIN_S

    @property
    def left(self) -> float:
        """Seconds left for answers of requests with the model; negative if they are over.

        The grace runs from when the drain began, since a kubelet counts the preStop hook in.
        """
        margin = min(MARGIN, MARGIN_SHARE * self.grace)
        return self._began + self.grace - margin - asyncio.get_running_loop().time()

    @property
    def draining(self) -> bool:
        """Whether the pod is leaving."""
        return self.phase is not Phase.SERVING

    def begin(self, *, final: bool = False) -> None:
        """Begin to drain, unless it has begun already.

        Args:
            final: the process is ending: it will not serve again.
        """
        if final:
            self._final = True
            self._cancel_return()
        if self._task is not None:
            return
        self._began = asyncio.get_running_loop().time()
        self._done.clear()
        self._model_gone = False
        if not self._final:
            after = self.grace + COME_BACK_AFTER_GRACE
            self._back = asyncio.get_running_loop().call_later(after, self._come_back, "no SIGTERM came")
        self._task = asyncio.create_task(self._run())

    def hurry(self) -> None:
        """Skip the rest of the propagation delay: no request can be served here any more."""
        self._hurry.set()

    async def drained(self) -> None:
        """Wait until nothing is queued or ongoing and nothing more is taken, or until serving again."""
        await self._done.wait()

    def model_changed(self, *, ready: bool, gone: bool) -> None:
        """Note the model's state; a drain that is not final ends when the model was gone and is ready again.

        Args:
            ready: the model is ready.
            gone: its process is not there. NB: being merely not ready is not a restart: a model that is
                asked to end can be not ready for a while, and must not make its pod serve again.
        """
        if not self.draining or self._final:
            return
        if gone:
            self._model_gone = True
        elif ready and self._model_gone:
            self._come_back("the model is ready again")

    async def _run(self) -> None:
        self._enter(Phase.PROPAGATING)
        self._connections.close_keepalive(idle=False)
        await self._propagated(self._propagation_delay)
        self._enter(Phase.FLUSHING)
        self._connections.close_keepalive()
        try:
            async with asyncio.timeout(self._timeout):
                await self._flushed()
        except TimeoutError:
            self._requests.refuse(refusal())
            refused = self._requests.refuse_queued(refusal())
            log("drain timeout is over", refused=refused)
        self._requests.refuse(refusal())
        # NB: a request may have been taken between the moment the queue was empty and the line above.
        await self._requests.idle()
        self._enter(Phase.DRAINED)
        self._done.set()

    async def _propagated(self, seconds: float) -> None:
        """Wait, or until `hurry`."""
        # NB: not `wait_for`: in Python 3.11 it swallows a cancellation if its awaitable has just finished.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _flushed(self) -> None:
        """Wait until nothing is queued or ongoing, and nobody has connected for the propagation delay."""
        loop = asyncio.get_running_loop()
        await self._requests.idle()
        while (
            left := self._connections.connected + self._propagation_delay - loop.time()
        ) > 0 and not self._hurry.is_set():
            await self._propagated(left)
            await self._requests.idle()

    def _come_back(self, why: str) -> None:
        if self._final or self._task is None:
            return
        self._cancel_return()
        self._task.cancel()
        self._task = None
        self._hurry.clear()
        self._requests.refuse(None)
        self._connections.open_keepalive()
        log("drain ended, serving again", why=why)
        self._enter(Phase.SERVING)
        self._done.set()

    def _cancel_return(self) -> None:
        if self._back is not None:
            self._back.cancel()
            self._back = None

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        log("drain", phase=phase.value)
        self._changed()


def refusal() -> PenstockError:
    """The error of a request that comes while the pod drains."""
    return PenstockError(Reason.DRAINING, "the pod is shutting down; try another", not_admitted=True)
