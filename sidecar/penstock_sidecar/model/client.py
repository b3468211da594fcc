"""Sends requests to the model container, and probes whether it is ready.

The model is ready if its ready path answers 2xx or 3xx (as for a kubelet's probe, or as `ready_status` says)
and it takes connections. A refused connection makes it not ready at once, a bad answer the third time in a
row. A probe that times out counts only while nothing is with the model: a model that computes on its only
thread answers no probe, and is well. (Its kernel takes the connection all the same: a probe that cannot
connect in time is a bad answer.) A connect attempt cut short by a request's own deadline is not held against
the model.

A new process has neither its userConfig nor its warm-up: nothing else may be sent to it before. A restart is
detected by a refused connection, if a connection was tried meanwhile. If none was (the sidecar itself stood
still, or the model came back at once), it is detected by the new socket that listens at the model's port: the
socket is checked after each probe, and on each new connection before anything is sent. Connections are
dropped with their process, although it may still be serving them while it ends.

A lost connection puts the model in doubt: nothing more is sent until a later probe was answered or refused.
A killed process takes connections for a moment longer, and requests that are sent to it then are lost. After
that, a request that the model cannot have read (`RequestUnread`) is sent once more, on a new connection.
"""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import Callable, Mapping

from penstock_sidecar.interfaces import Done
from penstock_sidecar.model import health
from penstock_sidecar.model.http2 import speaks_http2
from penstock_sidecar.model.restart_detector import ListenerIdentity
from penstock_wire.headers import CANCELLABLE, TENSORS, Headers, get
from penstock_wire.http import (
    ALL_BYTES,
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    GivenUp,
    GiveUp,
    Request,
    RequestNotTaken,
    RequestUnread,
    Response,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.sending import open_answer, send
from penstock_wire.method_names import is_cancellable, read_cancellable
from penstock_wire.process import log

LOADING_PERIOD = 0.25
READY_PERIOD = 1.0
CLOSEST = 0.05
"""Minimum seconds between the beginnings of two probes."""
PROBE_SECONDS = 2.0
FAILURES = 3
MORE_LOOKS = 3
"""Maximum number of probes with lost connections that the next probe follows as closely as possible: a killed
process takes connections for a moment longer, and may be back before the next probe of the usual period."""
LOG_SECONDS = 10.0
"""Minimum seconds between two log lines about a model that stays not ready, however its errors vary."""

_STARTED_ANEW = "the model was restarted"
_OURS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.EINTR}
)
"""Errors of connecting that are not the model's fault."""


class _Unprepared(ConnectFailed):
    """Nothing was sent: the listening process is not prepared, or is not the expected one."""


class Model:
    """The model as one upstream.

    Args:
        host: the model's address.
        port: its port.
        listening: detects which process listens there.
        ready_path: path of its readiness; `health.PATH` for a model that speaks gRPC alone, which is ready if
            it serves by that call, or has no such method.
        ready_status: highest status there of a model that is ready.
        upstream: sends requests.
        busy: whether something is with the model.
        unprepared: why nothing may be sent to the model although it may be ready, "" if it may.
        changed: called when `ready` or `gone` changed.
        look: called before each probe; its result is called with the header fields of the probe's answer.
        probe_fields: the header fields of each probe.
        calls: sends gRPC calls.
        grpc_port: the port that takes them; 0 if none does.

    `ready`: requests may be sent to the model. `gone`: the last process has ended: a connection was refused,
    or another process listens, which has not answered a probe yet.
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
        probe_fields: Callable[[], Headers] = lambda: (),
        calls: Upstream | None = None,
        grpc_port: int = 0,
        ready_status: int = 399,
    ) -> None:
        self._calls = calls
        self._grpc_port = grpc_port
        self._host = host
        self._port = port
        self._listener_identity = listening
        self._ready_path = ready_path
        self._ready_status = ready_status
        self._probe_fields = probe_fields
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
        self._answers = False  # it has answered a probe, so it speaks HTTP/1.1
        self._logged_at = -LOG_SECONDS
        self._blindness_logged = False
        self._life = 0
        self._when_connected = functools.partial(self._connected, self._check_prepared)
        self._cancellable: Mapping[str, bool] = {}
        self.takes_tensors = False
        """Whether the model said that it answers requests of `v2`."""
        self.ready = False
        self.gone = False
        self.message = f"GET {ready_path} has not been answered yet"

    async def send(self, request: Request, timeout: float) -> Response:
        """Send a request (raises UpstreamError); a refused connection makes the model not ready at once.

        Nothing is sent to a model that is not prepared: ConnectFailed, as if it were not there.
        """
        return await self._send(request, timeout, self._check_prepared)

    async def prepare(self, request: Request, timeout: float) -> Response:
        """As `send`, for requests that prepare the model: sent to the current process, or to none."""
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
            return await send(
                self._upstream, self._host, self._port, request, timeout=timeout, connected=connected
            )
        except UpstreamError as error:
            self._went_wrong(error)
            raise

    def begin(self, request: Request, timeout: float, done: Done) -> GiveUp | None:
        """As `send` without a task; None if the request must wait for a probe, or the model's preparation."""
        if not self._sure.is_set() or self._unprepared():
            return None
        return self._upstream.begin(
            self._host,
            self._port,
            request,
            timeout,
            timeout,
            ALL_BYTES,
            functools.partial(self._ended, done),
            self._when_connected,
        )

    def _ended(self, done: Done, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        if isinstance(answer, UpstreamError):
            self._went_wrong(answer)
        if isinstance(answer, Response | UpstreamError):  # always: `ALL_BYTES`
            done(answer)

    def _went_wrong(self, error: UpstreamError) -> None:
        if isinstance(error, _Unprepared | GivenUp):
            return
        if _refused(error):
            self._refuses(str(error))
            return
        # NB: a server that ends one call by its own word is alive.
        if isinstance(error, ConnectionLost) and not isinstance(error, AnswerUnreadable | RequestNotTaken):
            self._doubts = 0
            self._losses += 1
            self._sure.clear()
        self._look.set()

    async def _wait_until_sure(self, timeout: float) -> float:
        """Wait for a probe's result; returns the rest of the timeout (raises UpstreamTimeout)."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            async with asyncio.timeout(timeout):
                await self._sure.wait()
        except TimeoutError as error:
            raise UpstreamTimeout(f"the model answered no probe within {timeout:.3f} s") from error
        return timeout - (clock() - begun)

    async def open(self, request: Request, timeout: float, idle: float) -> UpstreamAnswer:
        """As `send`, but returns with the head of the answer (see `sending.open_answer`)."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        try:
            return await self._open_once(request, timeout, idle)
        except RequestUnread:
            if request.stream is not None or request.upgrade:  # a stream can be read only once
                raise
            request.fresh = True
        return await self._open_once(request, deadline - clock(), idle)

    async def _open_once(self, request: Request, timeout: float, idle: float) -> UpstreamAnswer:
        if not self._sure.is_set():
            timeout = await self._wait_until_sure(timeout)
        upstream, port = self._upstream, self._port
        if request.trailers and self._grpc_port and self._calls is not None:
            upstream, port = self._calls, self._grpc_port
        try:
            self._check_prepared()
            return await open_answer(
                upstream,
                self._host,
                port,
                request,
                timeout=timeout,
                idle=idle,
                connected=self._when_connected,
            )
        except UpstreamError as error:
            if port == self._port:
                self._went_wrong(error)
            elif not isinstance(error, _Unprepared | GivenUp):
                self._look.set()  # its calls' port says nothing of this one
            raise

    def is_cancellable(self, request: Request) -> bool:
        """Whether the model ends a call of this request's method when its connection is closed."""
        return is_cancellable(self._cancellable, request.headers, request.path)

    def lost(self, address: tuple[str, int]) -> None:
        """Note that a server ended an idle connection: if it was the model, probe at once."""
        if address == (self._host, self._port):
            self._look.set()

    def _connected(self, check: Callable[[], None]) -> None:
        # NB: a kept connection belongs to its process; only a new one can lead to another process.
        if self._listener_identity.replaced():
            self._replaced()
        check()

    def _check_prepared(self) -> None:
        """Raise ConnectFailed if the model has not been prepared."""
        if why := self._unprepared():
            raise _Unprepared(f"the model is not ready for requests: {why}")

    def _check_same(self, life: int) -> None:
        """Raise ConnectFailed if the process of that life has ended."""
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
            # Many failing requests may wake this loop: they must not cause as many probes. But the first one
            # causes a probe at once: all other requests wait for it, even if the model is well.
            await asyncio.sleep(max(0.0, looked + CLOSEST - clock()))

    async def _look_once(self) -> None:
        path, losses, life = self._ready_path, self._losses, self._life
        looked = self._begin_look()
        try:
            # NB: a request may use the probe's connection before this coroutine sees the answer.
            calls = self._calls if path == health.PATH else None
            answer = await send(
                calls or self._upstream,
                self._host,
                self._port,
                Request("GET", path, self._probe_fields(), b"") if calls is None else health.check(),
                timeout=PROBE_SECONDS,
                connected=functools.partial(self._connected, _whoever),
            )
            if calls is not None:
                answer = health.read(answer)
            deaf = await self._deaf_to_calls()
        except ConnectTimeout as error:
            if self._listener_identity.known or (self.ready and self._failures + 1 < FAILURES):
                self._failed(str(error))
            else:
                self._refuses(str(error))  # there will be no way to detect another process later
        except UpstreamTimeout:
            if not self._busy():
                self._failed(f"GET {path} was not answered within {PROBE_SECONDS:.0f} s")
        except ConnectFailed as error:
            self._cut_probes = 0
            if _refused(error):
                self._refuses(f"the model does not listen: {error}")
            else:
                self._failed(str(error))
        except UpstreamError as error:
            if isinstance(error, ConnectionLost) and self._cut_probes < MORE_LOOKS:
                self._cut_probes += 1
                self._look.set()
                return
            why = str(error)
            lost = isinstance(error, ConnectionLost) and not self._answers
            if lost and await speaks_http2(self._host, self._port, PROBE_SECONDS):
                why = "the model speaks HTTP/2 alone, expected HTTP/1.1"
            self._failed(f"GET {path}: {why}")
            self._doubts += 1
            if self._doubts < FAILURES:
                return
        else:
            self._answers = True
            self._cut_probes = 0
            if self._listener_identity.look():
                self._replaced()
            if life != self._life:  # it is unknown which of the two processes has answered
                self._look.set()
                return
            if 200 <= answer.status <= self._ready_status and deaf:
                self._failed(deaf)
            elif 200 <= answer.status <= self._ready_status:
                self._failures = 0
                self._log_blindness()
                self._cancellable = read_cancellable(get(answer.headers, CANCELLABLE))
                self.takes_tensors = get(answer.headers, TENSORS) == b"1"
                self._set(ready=True, message="")
                looked(answer.headers)
            else:
                self._failed(
                    f"GET {path}: expected status 200 to {self._ready_status}, found {answer.status}"
                )
        if losses == self._losses:
            self._sure.set()

    async def _deaf_to_calls(self) -> str:
        """Why the model's second port takes no calls, "" if it does, or if there is none.

        Whether it serves is what the ready path says: any answer is right.
        """
        port = self._grpc_port
        if self._calls is None or port in (0, self._port):
            return ""
        try:
            await send(self._calls, self._host, port, health.check(), timeout=PROBE_SECONDS)
        except UpstreamTimeout as error:
            return "" if self._busy() else f"no call can be sent to port {port}: {error}"
        except UpstreamError as error:
            return f"no call can be sent to port {port}: {error}"
        return ""

    def _log_blindness(self) -> None:
        if not self._listener_identity.known and not self._blindness_logged:
            self._blindness_logged = True
            log("the model's restarts are detected by refused connections only", level="warning")

    def _failed(self, message: str) -> None:
        self._failures += 1
        if self._failures >= FAILURES or not self.ready:
            self._set(ready=False, message=message)

    def _refuses(self, message: str) -> None:
        """Note that no process listens."""
        if not self.gone:
            self._upstream.retire(self._host, self._port)
        self._listener_identity.forget()
        self._life += 1
        self._set(ready=False, gone=True, message=message)

    def _replaced(self) -> None:
        """Note that another process listens."""
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
            self.takes_tensors = False
            self._cancellable = {}  # the next process may be another program
        now = asyncio.get_running_loop().time()
        if turned or (news and not ready and now > self._logged_at + LOG_SECONDS):
            self._logged_at = now
            log("model is ready" if ready else "model is not ready", error=message or None)
        if changed:
            self._failures = 0
            self._changed()


def _unread(_: Headers) -> None:
    """Ignore the fields of a probe's answer."""


def _whoever() -> None:
    """Accept any process: a probe may go to each."""


def _refused(error: UpstreamError) -> bool:
    """Whether the model itself refused the connection."""
    if not isinstance(error, ConnectFailed) or isinstance(error, ConnectTimeout):
        return False
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return True
    if cause.errno is None:  # asyncio's error for a name with several addresses: it quotes the error of each
        return not any(f"[Errno {number}]" in str(cause) for number in _OURS)
    return cause.errno not in _OURS
