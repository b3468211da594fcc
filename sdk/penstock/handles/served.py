"""An endpoint of this process: handles call a served object without HTTP, but through JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from penstock import call_context
from penstock.encoding import decode, encode
from penstock.errors import AnswerError, ArgumentsError, CallCycle, DeadlineExceeded, UpstreamError
from penstock.handles.arguments import HandleCall
from penstock.handles.stream import Events, read_event
from penstock.in_process.stream import Stream
from penstock.raised import kind_named, names_of
from penstock.response import Response, to_http
from penstock.streamed_response import in_band, rendered
from penstock.user_code import described
from penstock_wire import instances_form
from penstock_wire.errors import Reason
from penstock_wire.item_streams import EVENTS


class Method(Protocol):
    """A served method (`penstock.testing.Method`)."""

    @property
    def streams(self) -> bool:
        """Whether it is a generator."""
        ...

    def send(self, item: Any, members: Mapping[str, Any]) -> Any:
        """Make one call; see `penstock.testing.Method.send`."""
        ...


class ServedHere:
    """A `LocalEndpoint`.

    Args:
        methods: methods by name; the default one by None.
    """

    def __init__(self, methods: Mapping[str | None, Method]) -> None:
        self.loop = asyncio.get_running_loop()
        self._methods = methods

    async def answer(self, call: HandleCall) -> Any:
        """See `LocalEndpoint.answer`."""
        method, item, members = self._begin(call)
        try:
            sent = method.send(item, members)
            if isinstance(sent, Stream):
                pieces = [piece async for piece in sent]
                # A `Response` is the last piece, and then the whole answer; else bytes become text in JSON.
                last = pieces[-1] if pieces else None
                answered: Any = last if isinstance(last, Response) else decode([encode(pieces)])[0]
            else:
                answered = await sent
        except Exception as error:
            raise _failed(error, call) from error
        if not isinstance(answered, Response):
            return answered
        _checked(answered, call)
        sent_out = to_http(answered)
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent_out.headers}
        return Response(answered.status, fields, sent_out.body)

    async def stream(self, call: HandleCall) -> Pieces:
        """See `LocalEndpoint.stream`."""
        method, item, members = self._begin(call)
        if not method.streams:
            raise TypeError(
                f"{call.endpoint}: expected stream=True for a method that is a generator, found another"
            )
        try:
            return Pieces(method.send(item, members), call)
        except Exception as error:
            raise _failed(error, call) from error

    def _begin(self, call: HandleCall) -> tuple[Method, Any, dict[str, Any]]:
        """Return the method, the item and the members beside `instances`, decoded from the request's body."""
        items, parameters = instances_form.read_request(call.body())
        call_context.begin(call.fields())
        method = self._methods.get(call.options.method)
        if method is None:
            names = ", ".join(sorted(name for name in self._methods if name))
            what = call.options.method or "no name, and no method for such requests"
            raise _error(Reason.NO_ROUTE, f"expected a method among {names}, found {what}", call)
        values = decode([*items, *[raw for _, raw in parameters]])
        return (
            method,
            values[0],
            {name: value for (name, _), value in zip(parameters, values[1:], strict=True)},
        )


class Pieces:
    """The pieces of a stream (`stream.Pieces`).

    Args:
        pieces: the method's pieces.
        call: the call.
    """

    __slots__ = ("_begun", "_call", "_events", "_pieces", "_unread")

    def __init__(self, pieces: Stream[Any], call: HandleCall) -> None:
        self._pieces = pieces
        self._call = call
        self._events = Events(call.endpoint)
        self._begun = False
        self._unread: list[tuple[bytes, bytes]] = []

    async def __anext__(self) -> Any:
        while not self._unread:
            try:
                piece = await anext(self._pieces)
            except StopAsyncIteration:
                if self._events.cut:
                    text = f"{self._call.endpoint}: the stream ended within an event"
                    raise _upstream(502, "connection_lost", text, self._call) from None
                raise
            except Exception as error:
                raise _failed(error, self._call) from error
            if isinstance(piece, Response):
                self._refuse(piece)
            self._begun = True
            if not isinstance(piece, bytes) and not self._events.cut:
                return piece
            # Bytes go to a client unchanged: one event, several, or a part of one.
            self._unread = self._events.feed(rendered(piece, EVENTS))
            self._unread.reverse()
        name, data = self._unread.pop()
        return read_event(name, data, self._call.endpoint, self._call.request_id)

    def _refuse(self, answer: Response) -> None:
        """Raise the error for a `Response` among the pieces."""
        if not self._begun:
            _checked(answer, self._call)
            raise TypeError(
                f"{self._call.endpoint}: expected stream=True for a method that is a generator, found an "
                "answer that is not a stream"
            )
        late = AnswerError("expected a Response before the first piece of a stream, found one behind it")
        read_event(b"error", encode(in_band(late)), self._call.endpoint, self._call.request_id)

    def close(self) -> None:
        """See `stream.Pieces`."""
        self._pieces.close()


def _checked(answered: Any, call: HandleCall) -> Any:
    """Return an answer, or raise if it has an error status."""
    if isinstance(answered, Response) and answered.status >= 400:
        text = f"{call.endpoint}: {answered.status} without a reason: the method answered so"
        body = to_http(answered).body
        raise UpstreamError(
            text, status=answered.status, request_id=call.request_id, endpoint=call.endpoint, body=body
        )
    return answered


def _failed(error: Exception, call: HandleCall) -> Exception:
    """Convert an exception of the endpoint's method into the exception that the caller gets."""
    if (
        isinstance(error, UpstreamError)
        and error.endpoint == call.endpoint
        and error.request_id == call.request_id
    ):
        return error
    if isinstance(error, CallCycle):
        return CallCycle(
            str(error), status=508, reason=error.reason, request_id=call.request_id, endpoint=call.endpoint
        )
    if isinstance(error, DeadlineExceeded) and not isinstance(error, UpstreamError):
        return call.late()
    if isinstance(error, ArgumentsError):
        return _error(Reason.MISSING_ARGUMENTS, str(error), call, kind_named(names_of(error)))
    if isinstance(error, AnswerError):
        return _error(Reason.BAD_ANSWER, str(error), call)
    return _error(
        Reason.MODEL_FAILED, f"the model failed with {described(error)}", call, kind_named(names_of(error))
    )


def _error(
    reason: Reason, detail: str, call: HandleCall, kind: type[UpstreamError] = UpstreamError
) -> UpstreamError:
    text = f"{call.endpoint}: {reason.status} {reason.value}: {detail}"
    return _upstream(reason.status, reason.value, text, call, kind)


def _upstream(
    status: int, reason: str, text: str, call: HandleCall, kind: type[UpstreamError] = UpstreamError
) -> UpstreamError:
    return kind(text, status=status, reason=reason, request_id=call.request_id, endpoint=call.endpoint)
