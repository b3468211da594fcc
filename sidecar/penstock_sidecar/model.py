"""The model container next door: sends to it, and knows whether it is ready.

Ready means that its ready path answers 2xx or 3xx (as for a kubelet's probe) and that connections are
taken. A refused connection is believed at once, a bad answer when it came three times. A probe that times
out counts only while nothing is with the model: one that computes on its only thread answers no probe and
is well. A request that had no time to connect says nothing: the time was its own.

A request whose connection is lost puts the model in doubt: nothing more is sent until a probe that was sent
after that was answered or refused. A process that was killed takes connections for a moment more, and
whatever is sent to it then is lost.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    Done,
    GiveUp,
    Request,
    Response,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.process import log

LOADING_PERIOD = 0.25
READY_PERIOD = 1.0
CLOSEST = 0.05
"""Between the beginnings of two probes, whatever asks for them."""
PROBE_SECONDS = 2.0
FAILURES = 3
MORE_LOOKS = 3
"""So often a probe whose connection was lost is followed by the next as close as may be: a process that was
killed takes connections for a moment more, and may be back before the next probe of the usual period."""
TELL_SECONDS = 10.0
"""A model that stays not ready is told at most this often, however its errors vary."""


class Model:
    """The model as one upstream.

    Args:
        host: its address.
        port: its port.
        ready_path: path of its readiness.
        upstream: sends.
        busy: whether something is with the model.
        changed: called when `ready` or `gone` changed.

    `ready` says whether to send here, `gone` whether the last connection was refused: the process is not
    there.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        ready_path: str,
        upstream: Upstream,
        busy: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._host = host
        self._port = port
        self._probe = Request(method="GET", target=ready_path, headers=(), body=b"")
        self._upstream = upstream
        self._busy = busy
        self._changed = changed
        self._look = asyncio.Event()
        self._failures = 0
        self._watched_closely = False
        self._sure = asyncio.Event()
        self._sure.set()
        self._doubts = 0
        self._losses = 0
        self._cut_probes = 0
        self._told = -TELL_SECONDS
        self.ready = False
        self.gone = False
        self.message = f"GET {ready_path} has not been answered yet"

    async def send(self, request: Request, timeout: float) -> Response:
        """Send a request (raises UpstreamError); a refused connection makes the model not ready at once."""
        if not self._sure.is_set():
            timeout = await self._wait_until_sure(timeout)
        try:
            return await self._upstream.send(self._host, self._port, request, timeout=timeout)
        except UpstreamError as error:
            self._went_wrong(error)
            raise

    def begin(self, request: Request, timeout: float, done: Done) -> GiveUp | None:
        """As `send` without a task, on a connection that is there (see `Upstream.begin`)."""
        if not self._sure.is_set():
            return None
        return self._upstream.begin(
            self._host, self._port, request, timeout, functools.partial(self._ended, done)
        )

    def _ended(self, done: Done, answer: Response | UpstreamError) -> None:
        if isinstance(answer, UpstreamError):
            self._went_wrong(answer)
        done(answer)

    def _went_wrong(self, error: UpstreamError) -> None:
        if isinstance(error, ConnectFailed) and not isinstance(error, ConnectTimeout):
            self._set(ready=False, gone=True, message=str(error))
            return
        if isinstance(error, ConnectionLost) and not isinstance(error, AnswerUnreadable):
            self._doubts = 0
            self._losses += 1
            self._sure.clear()
        self._look.set()

    async def _wait_until_sure(self, timeout: float) -> float:
        """Wait for a probe's word; returns what is left of the time (raises UpstreamTimeout)."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            async with asyncio.timeout(timeout):
                await self._sure.wait()
        except TimeoutError as error:
            raise UpstreamTimeout(f"the model gave no sign of life in {timeout:.3f} s") from error
        return timeout - (clock() - begun)

    async def open(self, request: Request, timeout: float, idle: float) -> UpstreamAnswer:
        """As `send`, but returns with the head of the answer (see `Upstream.open`)."""
        if not self._sure.is_set():
            timeout = await self._wait_until_sure(timeout)
        try:
            return await self._upstream.open(self._host, self._port, request, timeout=timeout, idle=idle)
        except UpstreamError as error:
            self._went_wrong(error)
            raise

    def lost(self, address: tuple[str, int]) -> None:
        """An idle connection was ended by the server there: look at once whether that is the model's end.

        NB: one that is started anew in less than a probe's period would pass for the old one otherwise.
        """
        if address == (self._host, self._port):
            self._look.set()

    def watch_closely(self, close: bool) -> None:  # noqa: FBT001 - a switch
        """Probe at the shorter period: a drain waits for the model to go and come back."""
        self._watched_closely = close
        self._look.set()

    async def watch(self) -> None:
        """Probe until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            looked = clock()
            await self._look_once()
            calm = self.ready and not self._watched_closely and self._sure.is_set()
            period = READY_PERIOD if calm else LOADING_PERIOD
            try:
                async with asyncio.timeout(period):
                    await self._look.wait()
            except TimeoutError:
                continue
            self._look.clear()
            # What woke us may be a run of failing requests: they must not become a run of probes. But the
            # first is followed by one at once: all others wait for it, also where the model is well.
            await asyncio.sleep(max(0.0, looked + CLOSEST - clock()))

    async def _look_once(self) -> None:
        path, losses = self._probe.target, self._losses
        try:
            answer = await self._upstream.send(self._host, self._port, self._probe, timeout=PROBE_SECONDS)
        except ConnectFailed as error:
            self._cut_probes = 0
            self._set(ready=False, gone=True, message=str(error))
        except UpstreamTimeout:
            if not self._busy():
                self._failed(f"GET {path} was not answered within {PROBE_SECONDS:.0f} s")
        except UpstreamError as error:
            if isinstance(error, ConnectionLost) and self._cut_probes < MORE_LOOKS:
                self._cut_probes += 1
                self._look.set()
                return
            self._failed(f"GET {path}: {error}")
            self._doubts += 1
            if self._doubts < FAILURES:
                return
        else:
            self._cut_probes = 0
            if 200 <= answer.status < 400:
                self._failures = 0
                self._set(ready=True, message="")
            else:
                self._failed(f"GET {path}: expected status 200 to 399, found {answer.status}")
        if losses == self._losses:
            self._sure.set()

    def _failed(self, message: str) -> None:
        self._failures += 1
        if self._failures >= FAILURES or not self.ready:
            self._set(ready=False, message=message)

    def _set(self, *, ready: bool, message: str, gone: bool = False) -> None:
        turned = ready != self.ready
        changed = turned or gone != self.gone
        news = message != self.message
        self.ready, self.gone, self.message = ready, gone, message
        now = asyncio.get_running_loop().time()
        if turned or (news and not ready and now > self._told + TELL_SECONDS):
            self._told = now
            log("model is ready" if ready else "model is not ready", error=message or None)
        if changed:
            self._failures = 0
            self._changed()
