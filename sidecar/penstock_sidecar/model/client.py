"""The model container next door: sends to it, and knows whether it is ready.

Ready means that its ready path answers 2xx or 3xx (as for a kubelet's probe) and that connections are
taken. A refused connection is believed at once, a bad answer when it came three times. A probe that times
out counts only while nothing is with the model: one that computes on its only thread answers no probe and is
well. (Its kernel takes the connection all the same: a probe that cannot connect in time is a bad answer.) A
request that had no time to connect says nothing: the time was its own.

A process that was started anew has not been given its userConfig, nor warmed up: nothing may be sent to it
before. A refused connection tells of it where one was tried meanwhile. Where none was (the sidecar itself
stood still, or the model is back at once), another socket does that listens at the model's port: it is looked
for behind each probe, and on each new connection before anything is sent. With a process go its connections,
which it may serve on while it ends.

A request whose connection is lost puts the model in doubt: nothing more is sent until a probe that was sent
after that was answered or refused. A process that was killed takes connections for a moment more, and
whatever is sent to it then is lost. A request that the model cannot have read (`RequestUnread`) is sent once
more then, on a new connection.
"""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import Callable, Mapping

from penstock_sidecar.model.restart_detector import ListenerIdentity
from penstock_wire.headers import CANCELLABLE, Headers, get
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    Done,
    GivenUp,
    GiveUp,
    Request,
    RequestUnread,
    Response,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.method_names import is_cancellable, read_cancellable
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
LOG_SECONDS = 10.0
"""A model that stays not ready is logged at most this often, however its errors vary."""

_STARTED_ANEW = "the model was restarted"
_OURS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.EINTR}
)
"""Why a connection cannot be made whatever the model does."""


class _Unprepared(ConnectFailed):
    """Nothing was sent: the process that listens has not been prepared, or is not the one that was meant."""


class Model:
    """The model as one upstream.

    Args:
        host: its address.
        port: its port.
        listening: what listens there.
        ready_path: path of its readiness.
        upstream: sends.
        busy: whether something is with the model.
        unprepared: why it may not be sent to although it may be ready, "" where it may.
        changed: called when `ready` or `gone` changed.
        look: called before each probe; what it returns is called with the fields of the answer to it.
        said: the fields of each probe.

    `ready` says whether to send here, `gone` whether the process that was there is not: a connection was
    refused, or another process listens, which has answered no probe yet.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        listening: ListenerIdentity,
        ready_path: str,
        upstream: Upstream,
        busy: Callable[[], bool],
        unprepared: Callable[[], str],
        changed: Callable[[], None],
        look: Callable[[], Callable[[Headers], None]] = lambda: _unread,
        said: Callable[[], Headers] = lambda: (),
    ) -> None:
        self._host = host
        self._port = port
        self._listener_identity = listening
        self._ready_path = ready_path
        self._said = said
        self._upstream = upstream
        self._busy = busy
        self._unprepared = unprepared
        self._changed = changed
        self._begin_look = look
        self._look = asyncio.Event()
        self._failures = 0
        self._watched_closely = False
        self._sure = asyncio.Event()
        self._sure.set()
        self._doubts = 0
        self._losses = 0
        self._cut_probes = 0
        self._logged_at = -LOG_SECONDS
        self._blindness_told = False
        self._life = 0
        self._when_connected = functools.partial(self._connected, self._check_prepared)
        self._cancellable: Mapping[str, bool] = {}
        self.ready = False
        self.gone = False
        self.message = f"GET {ready_path} has not been answered yet"

    async def send(self, request: Request, timeout: float) -> Response:
        """Send a request (raises UpstreamError); a refused connection makes the model not ready at once.

        One that has not been prepared is sent nothing: ConnectFailed, as if it were not there.
        """
        return await self._send(request, timeout, self._check_prepared)

    async def prepare(self, request: Request, timeout: float) -> Response:
        """As `send`, for what prepares the model: it goes to the process that is there now, or fails."""
        return await self._send(request, timeout, functools.partial(self._check_same, self._life))

    async def _send(self, request: Request, timeout: float, check: Callable[[], None]) -> Response:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        try:
            return await self._send_once(request, timeout, check)
        except RequestUnread:
            request.fresh = True
        return await self._send_once(request, deadline - clock(), check)

    async def _send_once(self, request: Request, timeout: float, check: Callable[[], None]) -> Response:
        if not self._sure.is_set():
            timeout = await self._wait_until_sure(timeout)
        try:
            check()
            connected = functools.partial(self._connected, check)
            return await self._upstream.send(
                self._host, self._port, request, timeout=timeout, connected=connected
            )
        except UpstreamError as error:
            self._went_wrong(error)
            raise

    def begin(self, request: Request, timeout: float, done: Done) -> GiveUp | None:
        """As `send` without a task, on a connection that is there (see `Upstream.begin`)."""
        if not self._sure.is_set() or self._unprepared():
            return None
        return self._upstream.begin(
            self._host, self._port, request, timeout, functools.partial(self._ended, done)
        )

    def _ended(self, done: Done, answer: Response | UpstreamError) -> None:
        if isinstance(answer, UpstreamError):
            self._went_wrong(answer)
        done(answer)

    def _went_wrong(self, error: UpstreamError) -> None:
        if isinstance(error, _Unprepared | GivenUp):
            return
        if _refused(error):
            self._refuses(str(error))
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
            raise UpstreamTimeout(f"the model answered no probe within {timeout:.3f} s") from error
        return timeout - (clock() - begun)

    async def open(self, request: Request, timeout: float, idle: float) -> UpstreamAnswer:
        """As `send`, but returns with the head of the answer (see `Upstream.open`)."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        try:
            return await self._open_once(request, timeout, idle)
        except RequestUnread:
            if request.stream is not None or request.upgrade:  # a stream was read once
                raise
            request.fresh = True
        return await self._open_once(request, deadline - clock(), idle)

    async def _open_once(self, request: Request, timeout: float, idle: float) -> UpstreamAnswer:
        if not self._sure.is_set():
            timeout = await self._wait_until_sure(timeout)
        try:
            self._check_prepared()
            return await self._upstream.open(
                self._host, self._port, request, timeout=timeout, idle=idle, connected=self._when_connected
            )
        except UpstreamError as error:
            self._went_wrong(error)
            raise

    def is_cancellable(self, request: Request) -> bool:
        """Whether the model ends a call of this request's method when its connection is closed."""
        return is_cancellable(self._cancellable, request.headers, request.path)

    def lost(self, address: tuple[str, int]) -> None:
        """An idle connection was ended by the server there: look at once whether that is the model's end."""
        if address == (self._host, self._port):
            self._look.set()

    def _connected(self, check: Callable[[], None]) -> None:
        # NB: a connection that was kept is its process's; only a new one can be another's.
        if self._listener_identity.replaced():
            self._replaced()
        check()

    def _check_prepared(self) -> None:
        """Raise ConnectFailed where the model has not been prepared."""
        if why := self._unprepared():
            raise _Unprepared(f"the model is not ready for requests: {why}")

    def _check_same(self, life: int) -> None:
        """Raise ConnectFailed where the process of that life has ended."""
        if life != self._life:
            raise _Unprepared(_STARTED_ANEW)

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
        path, losses, life = self._ready_path, self._losses, self._life
        looked = self._begin_look()
        try:
            # NB: a request may take the probe's connection before the answer is looked at here.
            answer = await self._upstream.send(
                self._host,
                self._port,
                Request("GET", path, self._said(), b""),
                timeout=PROBE_SECONDS,
                connected=functools.partial(self._connected, _whoever),
            )
        except ConnectTimeout as error:
            if self._listener_identity.known or (self.ready and self._failures + 1 < FAILURES):
                self._failed(str(error))
            else:
                self._refuses(str(error))  # nothing will say whether the next process is another one
        except UpstreamTimeout:
            if not self._busy():
                self._failed(f"GET {path} was not answered within {PROBE_SECONDS:.0f} s")
        except ConnectFailed as error:
            self._cut_probes = 0
            if _refused(error):
                self._refuses(str(error))
            else:
                self._failed(str(error))
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
            if self._listener_identity.look():
                self._replaced()
            if life != self._life:  # it is unknown which of the two processes has answered
                self._look.set()
                return
            if 200 <= answer.status < 400:
                self._failures = 0
                self._tell_blindness()
                self._cancellable = read_cancellable(get(answer.headers, CANCELLABLE))
                self._set(ready=True, message="")
                looked(answer.headers)
            else:
                self._failed(f"GET {path}: expected status 200 to 399, found {answer.status}")
        if losses == self._losses:
            self._sure.set()

    def _tell_blindness(self) -> None:
        if not self._listener_identity.known and not self._blindness_told:
            self._blindness_told = True
            log("the model's restarts are detected by refused connections only", level="warning")

    def _failed(self, message: str) -> None:
        self._failures += 1
        if self._failures >= FAILURES or not self.ready:
            self._set(ready=False, message=message)

    def _refuses(self, message: str) -> None:
        """Nobody is there."""
        if not self.gone:
            self._upstream.retire(self._host, self._port)
        self._listener_identity.forget()
        self._life += 1
        self._set(ready=False, gone=True, message=message)

    def _replaced(self) -> None:
        """Another is there."""
        self._upstream.retire(self._host, self._port)
        self._look.set()
        self._life += 1
        self._set(ready=False, gone=True, message=_STARTED_ANEW)

    def _set(self, *, ready: bool, message: str, gone: bool = False) -> None:
        turned = ready != self.ready
        changed = turned or gone != self.gone
        news = message != self.message
        self.ready, self.gone, self.message = ready, gone, message
        if gone:
            self._cancellable = {}  # the next process may be another program
        now = asyncio.get_running_loop().time()
        if turned or (news and not ready and now > self._logged_at + LOG_SECONDS):
            self._logged_at = now
            log("model is ready" if ready else "model is not ready", error=message or None)
        if changed:
            self._failures = 0
            self._changed()


def _unread(_: Headers) -> None:
    """Nobody reads the fields of a probe's answer."""


def _whoever() -> None:
    """A probe may go to any process."""


def _refused(error: UpstreamError) -> bool:
    """Whether the model itself took no connection."""
    if not isinstance(error, ConnectFailed) or isinstance(error, ConnectTimeout):
        return False
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return True
    if cause.errno is None:  # asyncio's, of a name with several addresses: it quotes each one's
        return not any(f"[Errno {number}]" in str(cause) for number in _OURS)
    return cause.errno not in _OURS
