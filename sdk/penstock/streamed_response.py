"""Renders a generator's answers as HTTP: one stream, or all streams of a batch in one (docs/protocols.md).

A piece is one event of `text/event-stream` with its JSON as data, or a line of NDJSON; bytes are sent as they
are, and may be cut anywhere in UTF-8. What is not UTF-8 ends a stream, alone or in a batch. An error before a
stream's first piece is sent with its own status; a later one is sent in-band.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from penstock import call_context
from penstock.encoding import encode
from penstock.end import END
from penstock.errors import AnswerError, CallCycle
from penstock.instances_response import failed
from penstock.item_answers import answer_of, fields_of
from penstock.item_pieces import Events, ends
from penstock.raised import MEMBER, member_of
from penstock.response import Response
from penstock.user_code import described, kind_of, text_of
from penstock_wire import http
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.item_streams import EVENTS, ITEM_STREAMS_TYPE


async def respond_streamed(
    pieces: AsyncGenerator[Events, None], media: bytes, *, count: int, together: bool, request_id: str = ""
) -> http.Response:
    """Wait for the first step and make the HTTP answer.

    Args:
        pieces: the events of a generator method.
        media: the media type that clients accept: `EVENTS` or `NDJSON`.
        count: number of items of the request.
        together: send the streams of all items in one answer, for a sidecar that splits them.
        request_id: the request's id, for problems.

    Raises:
        PenstockError: `bad_shape` (422): the request has no items.
    """
    if not count:
        raise PenstockError(
            Reason.BAD_SHAPE,
            "$.instances: expected an item in a request whose answer is a stream, found none",
            extra={"path": "$.instances", "expected": "an item", "found": "none"},
        )
    try:
        first = await anext(pieces)
    except Exception as error:  # fails the whole batch, which a sidecar can run again in parts
        return failed(error, count=count, request_id=request_id)
    if together:
        headers = ((b"content-type", ITEM_STREAMS_TYPE),)
        return http.Response(200, headers, stream=_Body(pieces, first, _Together(media, count)))
    if count > 1:
        several = _Body(pieces, first, _Several(media, count))
        return http.Response(200, ((b"content-type", media),), stream=several)
    if ends(first[0][1]) and first[0][1] is not END:
        await pieces.aclose()
        return answer_of(first[0][1], request_id)
    return http.Response(200, ((b"content-type", media),), stream=_Body(pieces, first, _Lone(media)))


class _Body:
    """The bytes of an answer (an `AsyncIterator[bytes]`); nothing is read ahead."""

    def __init__(
        self, pieces: AsyncGenerator[Events, None], first: Events, writer: _Lone | _Several | _Together
    ) -> None:
        self._pieces = pieces
        self._first: Events | None = first
        self._writer = writer
        self._context = call_context.current()
        self._ended = False

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        events, self._first = self._first, None
        call_context.resume(self._context)
        try:
            if events is None:
                events = await anext(self._pieces)
        except StopAsyncIteration:
            self._ended = True
            self._end()
            raise
        except Exception as error:
            return self._writer.failed(error)
        return self._writer.write(events)

    async def aclose(self) -> None:
        try:
            await self._pieces.aclose()
        finally:
            if not self._ended and self._context is not None:
                self._context.cancel_calls()
            self._end()

    def _end(self) -> None:
        if self._context is not None:
            self._context.end()


class _Lone:
    """Writes the stream of a request's only item."""

    def __init__(self, media: bytes) -> None:
        self._media = media
        self._texts = _Texts()

    def write(self, events: Events) -> bytes:
        """Return the bytes of a step."""
        return b"".join([self._text(piece) for _, piece in events])

    def failed(self, error: Exception) -> bytes:
        """Return the last bytes after the method raised."""
        return self._text(error)

    def _text(self, piece: Any) -> bytes:
        try:
            if piece is END:
                return self._texts.add(0, b"", last=True).encode()
            if not ends(piece):
                data = rendered(piece, self._media)
                self._texts.add(0, data)
                return data
        except AnswerError as error:
            piece = error
        error_document = msgspec.json.encode(in_band(piece))
        return (
            b"event: error\ndata: %b\n\n" % error_document
            if self._media == EVENTS
            else b'{"error":%b}\n' % error_document
        )


class _Several:
    """Writes the streams of one request's several items: each piece as an object with its item's index."""

    def __init__(self, media: bytes, count: int) -> None:
        self._media = media
        self._open = set(range(count))
        self._texts = _Texts()

    def write(self, events: Events) -> bytes:
        """Return the bytes of a step."""
        return b"".join([self._text(index, piece) for index, piece in events if index in self._open])

    def failed(self, error: Exception) -> bytes:
        """Return the last bytes after the method raised: an error for each stream that has not ended."""
        return self.write([(index, error) for index in sorted(self._open)])

    def _text(self, index: int, piece: Any) -> bytes:
        try:
            if not ends(piece):
                if isinstance(piece, bytes | bytearray | memoryview):
                    piece = self._texts.add(index, bytes(piece))
                return rendered({"index": index, "piece": piece}, self._media)
            if piece is END:
                self._texts.add(index, b"", last=True)
        except AnswerError as error:
            piece = error
        self._open.discard(index)
        if piece is END:
            return rendered({"index": index, "end": True}, self._media)
        error_document = in_band(piece)
        if isinstance(piece, Response):
            detail = f"the model answered {piece.status}"
            error_document = {"status": piece.status, "reason": Reason.MODEL_FAILED.value, "detail": detail}
        error_document = {"index": index, "error": error_document}
        return (b"event: error\n" if self._media == EVENTS else b"") + rendered(error_document, self._media)


class _Together:
    """Writes all streams of a batch for a sidecar: each piece as a JSON line with its item's index."""

    def __init__(self, media: bytes, count: int) -> None:
        self._media = media
        self._open = set(range(count))
        self._begun: set[int] = set()
        self._texts = _Texts()
        self._head = {"status": 200, "headers": {"content-type": media.decode()}}

    def write(self, events: Events) -> bytes:
        """Return the lines of a step."""
        lines = [self._line(index, piece) for index, piece in events if index in self._open]
        return b"".join([msgspec.json.encode(line) + b"\n" for line in lines])

    def failed(self, error: Exception) -> bytes:
        """Return the last lines after the method raised: an error for each stream that has not ended."""
        # NB: an error message about one item must not go to the clients of the others.
        if not isinstance(error, AnswerError) and len(self._open) > 1:
            text = f"the model raised {kind_of(error)}"
            error = PenstockError(Reason.MODEL_FAILED, text, extra=member_of(error))
        return self.write([(index, error) for index in sorted(self._open)])

    def _line(self, index: int, piece: Any) -> dict[str, Any]:
        line: dict[str, Any] = {"i": index}
        try:
            if not ends(piece):
                data = rendered(piece, self._media)
                if index not in self._begun:
                    self._begun.add(index)
                    line |= self._head
                return line | {"data": self._texts.add(index, data)}
            if piece is END:
                self._texts.add(index, b"", last=True)
        except AnswerError as error:
            piece = error
        self._open.discard(index)
        if piece is END:
            return line | ({} if index in self._begun else self._head) | {"end": True}
        if index in self._begun:
            return line | {"error": in_band(piece)}
        answer = answer_of(piece)
        whole = {"status": answer.status, "headers": fields_of(answer.headers)}
        try:
            return line | whole | {"data": self._texts.add(index, answer.body, last=True), "end": True}
        except AnswerError as error:
            return line | {"error": in_band(error)}


def rendered(piece: Any, media: bytes) -> bytes:
    """Encode a piece for the client.

    Args:
        piece: bytes are sent as they are, anything else as JSON.
        media: `EVENTS` or `NDJSON`.

    Raises:
        AnswerError: it has no JSON form.
    """
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    return b"data: %b\n\n" % encode(piece) if media == EVENTS else encode(piece) + b"\n"


def in_band(error: Any) -> dict[str, Any]:
    """Make the problem that ends a stream, for an error or for a `Response` after the first piece."""
    names: dict[str, Any] = {}
    if isinstance(error, Response):
        error = AnswerError("expected a Response before the first piece of a stream, found one behind it")
    if isinstance(error, PenstockError):
        reason, detail = error.reason, error.detail
        names = {name: value for name, value in (error.extra or {}).items() if name == MEMBER}
    elif isinstance(error, AnswerError):
        reason, detail = Reason.BAD_ANSWER, text_of(error)
    elif isinstance(error, CallCycle):
        reason, detail = Reason.CALL_CYCLE, text_of(error)
    else:
        reason, detail = Reason.MODEL_FAILED, f"the model failed with {described(error)}"
        names = member_of(error)
    return {"status": reason.status, "reason": reason.value, "detail": detail, **names}


class _Texts:
    """The text of each item's bytes: a character that is cut between two pieces comes with the second."""

    def __init__(self) -> None:
        self._cut: dict[int, bytes] = {}

    def add(self, index: int, data: bytes, *, last: bool = False) -> str:
        """Return the text that an item's next bytes complete (raises AnswerError)."""
        if self._cut:
            data = self._cut.pop(index, b"") + data
        try:
            text, used = codecs.utf_8_decode(data, "strict", last)
        except UnicodeDecodeError as error:
            raise AnswerError(
                f"expected text in a stream, found bytes that are not UTF-8: {error}"
            ) from error
        if used < len(data):
            self._cut[index] = data[used:]
        return text
