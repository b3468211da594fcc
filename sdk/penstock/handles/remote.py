"""Makes calls by HTTP, over connections of the current event loop."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from penstock.errors import CallCycle, UpstreamError, UpstreamTimeout
from penstock.handles.arguments import HandleCall
from penstock.handles.place import Remote, is_unknown, unknown
from penstock.handles.stream import Events, kind_of, read_event
from penstock.response import Response
from penstock_wire import http
from penstock_wire.headers import REASON, REQUEST_ID, Headers, get
from penstock_wire.http.body import BodyTooLong, read_whole
from penstock_wire.http.client.pool import MAX_ANSWER_BYTES, H1Upstream
from penstock_wire.http.sending import open_answer, send
from penstock_wire.item_streams import EVENTS
from penstock_wire.words import cut

NEVER_SECONDS = 86_400.0
"""Time limit of an exchange without a deadline: the endpoint's own timeouts end it long before."""
SILENCE_SECONDS = 5.0
"""How long a router's machine can be silent."""
LATE_SECONDS = 0.05
"""Extra wait for an answer after the deadline: the router's own error has a more exact cause."""

_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()


class _Pool:
    """The connections of one event loop, closed when the loop ends."""

    __slots__ = ("_life", "upstream")

    def __init__(self) -> None:
        self.upstream = H1Upstream(silence_seconds=SILENCE_SECONDS)
        self._life = self._live()

    async def begin(self) -> None:
        """Let the loop close the connections at its end: it then closes its open generators, such as this."""
        await anext(self._life)

    async def _live(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.upstream.close()
            await asyncio.sleep(0)  # a turn of the loop, in which the connections end


async def _upstream() -> H1Upstream:
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = _Pool()
        await pool.begin()
    return pool.upstream


async def answer(place: Remote, call: HandleCall) -> Any:
    """Send a call.

    Args:
        place: the endpoint's place.
        call: the call, without pending operands.

    Returns:
        The prediction; a `Response` if the method answered with one.

    Raises:
        EndpointNotFound, UpstreamError: it failed.
        TypeError: an argument has no JSON form.
    """
    body = call.body()
    upstream = await _upstream()
    for last in (False, True):
        request = http.Request("POST", place.target, call.fields(), body, fresh=last)
        try:
            answered = await send(upstream, place.host, place.port, request, timeout=_time(call))
        except http.UpstreamError as error:
            _raise_unless_again(error, last, place, call)
            continue
        return _value(answered, call)
    raise AssertionError("the second try has an answer or an error")


async def stream(place: Remote, call: HandleCall) -> RemotePieces:
    """Send a call whose answer is a stream; arguments and errors as for `answer`.

    Raises:
        TypeError: also if the method is not a generator.
    """
    body = call.body()
    upstream = await _upstream()
    for last in (False, True):
        request = http.Request("POST", place.target, call.fields(), body, fresh=last)
        try:
            opened = await open_answer(
                upstream, place.host, place.port, request, timeout=_time(call), idle=NEVER_SECONDS
            )
        except http.UpstreamError as error:
            _raise_unless_again(error, last, place, call)
            continue
        media = (get(opened.headers, b"content-type") or b"").partition(b";")[0].strip()
        if opened.status == 200 and media == EVENTS:
            return RemotePieces(opened, call)
        await _refuse(opened, call)
    raise AssertionError("the second try has an answer or an error")


def _time(call: HandleCall) -> float:
    left = call.seconds_left()
    return NEVER_SECONDS if left is None else left + LATE_SECONDS


def _raise_unless_again(error: http.UpstreamError, last: bool, place: Remote, call: HandleCall) -> None:  # noqa: FBT001
    """Raise, unless the request was surely not executed: it is then sent again once, on a new connection."""
    if is_unknown(error.__cause__):
        raise unknown(call.endpoint, place) from error
    if not last and isinstance(error, http.ConnectFailed | http.RequestUnread):
        return
    raise failed(error, call) from error


def failed(error: http.UpstreamError, call: HandleCall) -> UpstreamError:
    """Make the error for a call without an HTTP answer."""
    if isinstance(error, http.UpstreamTimeout) or (isinstance(error, http.ConnectTimeout) and _is_late(call)):
        return call.late()
    status, reason = (
        (503, "unreachable") if isinstance(error, http.ConnectFailed) else (502, "connection_lost")
    )
    return UpstreamError(
        f"{call.endpoint}: {error}",
        status=status,
        reason=reason,
        request_id=call.request_id,
        endpoint=call.endpoint,
    )


def _is_late(call: HandleCall) -> bool:
    try:
        call.seconds_left()
    except UpstreamTimeout:
        return True
    return False


async def _refuse(opened: http.UpstreamAnswer, call: HandleCall) -> None:
    """Raise the error for an answer that is not a stream."""
    try:
        body = await read_whole(opened.stream, MAX_ANSWER_BYTES)
    except (http.UpstreamError, BodyTooLong):
        body = b""
    finally:
        opened.abort()
    if opened.status >= 400:
        raise refused(opened.status, opened.headers, body, call)
    raise TypeError(
        f"{call.endpoint}: expected stream=True for a method that is a generator, found an answer that is "
        "not a stream"
    )


class _Predictions(msgspec.Struct):
    predictions: list[Any]


_PREDICTIONS = msgspec.json.Decoder(_Predictions)


def _value(answered: http.Response, call: HandleCall) -> Any:
    """Read the return value of a call from an HTTP answer.

    Raises:
        UpstreamError: the status is an error's.
    """
    if answered.status >= 400:
        raise refused(answered.status, answered.headers, answered.body, call)
    if answered.status == 200:
        try:
            values = _PREDICTIONS.decode(answered.body).predictions
        except (msgspec.MsgspecError, RecursionError):
            values = _tolerant(answered.body)
        if len(values) == 1:
            return values[0]
    fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in answered.headers}
    return Response(max(200, answered.status), fields, answered.body)


def _tolerant(body: bytes) -> list[Any]:
    """Read the predictions of a body that msgspec refuses; empty if it has none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return []
    values = document.get("predictions") if isinstance(document, dict) else None
    return values if isinstance(values, list) else []


def refused(status: int, headers: Headers, body: bytes, call: HandleCall) -> UpstreamError:
    """Make the error for an answer with an error status.

    Args:
        status: the answer's status.
        headers: its header fields.
        body: its body, usually a problem document.
        call: the call.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    document = document if isinstance(document, dict) else {}
    reason = (get(headers, REASON) or b"").decode("latin-1") or str(document.get("reason") or "")
    request_id = (get(headers, REQUEST_ID) or b"").decode("latin-1") or call.request_id
    detail = document.get("detail") or cut(body[:1000].decode("utf-8", "replace"), 200) or "no body"
    kind = kind_of(reason, document)
    # NB: each call of the circle passes the error on; do not prefix its message each time.
    text = str(detail) if kind is CallCycle else f"{status} {reason or 'without a reason'}: {detail}"
    return kind(
        text if kind is CallCycle else f"{call.endpoint}: {text}",
        status=status,
        reason=reason,
        request_id=request_id,
        backend=str(document.get("backend") or ""),
        endpoint=call.endpoint,
        body=body,
    )


class RemotePieces:
    """The pieces of a stream (`stream.Pieces`).

    Args:
        opened: the answer, after its header.
        call: the call.
    """

    __slots__ = ("_call", "_events", "_opened", "_unread")

    def __init__(self, opened: http.UpstreamAnswer, call: HandleCall) -> None:
        self._opened = opened
        self._call = call
        self._events = Events(call.endpoint)
        self._unread: list[tuple[bytes, bytes]] = []

    async def __anext__(self) -> Any:
        while not self._unread:
            try:
                data = await self._opened.stream.read()
            except http.UpstreamError as error:
                raise failed(error, self._call) from error
            if not data:
                if self._events.cut:
                    raise failed(http.ConnectionLost("the stream ended within an event"), self._call)
                raise StopAsyncIteration
            self._unread = self._events.feed(data)
            self._unread.reverse()
        name, data = self._unread.pop()
        return read_event(name, data, self._call.endpoint, self._call.request_id)

    def close(self) -> None:
        """See `Pieces.close`."""
        self._opened.abort()
