"""One stream of an HTTP/2 connection: a request that comes in, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.framing.bodies import BodyReceiver, PieceSender
from penstock_wire.framing.connection import Framed
from penstock_wire.headers import Headers
from penstock_wire.http import ClientGone, Request, Response, Tunnel
from penstock_wire.http.memory import PIECE_BYTES, REQUEST_BYTES, does_not_fit, no_room
from penstock_wire.http.messages import NO_BODY_STATUS
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits, streams
from penstock_wire.http2 import frames
from penstock_wire.http2.head import Head, answer_block, literal
from penstock_wire.process import log

_PIECE: Final = frames.USUAL_FRAME_BYTES  # every peer accepts frames of this size


class Carrier(Framed):
    """The connection, as its exchanges see it: `connection.H2Connection`.

    A base class, not a Protocol, like `http.client.answer.Carrier`. It is never instantiated.

    Attributes:
        max_frame: most bytes of a frame that the peer accepts.
        max_body_bytes: most bytes of a body.
    """

    max_frame: int
    max_body_bytes: int

    def send_head(self, exchange: H2Exchange, block: bytes, *, ended: bool) -> None:
        """Send a header block."""
        raise NotImplementedError

    def start(self, exchange: H2Exchange) -> None:
        """Pass a request to the service."""
        raise NotImplementedError

    def fits(self, size: int) -> bool:
        """Whether there is memory for a body of this size."""
        raise NotImplementedError

    @property
    def closing(self) -> bool:
        """Whether its listener ends."""
        raise NotImplementedError

    def over(self, exchange: H2Exchange) -> None:
        """Take note that all of an answer was sent."""
        raise NotImplementedError

    def cut(self, exchange: H2Exchange, code: int) -> None:
        """Reset a stream and remove it."""
        raise NotImplementedError

    def run(self, exchange: H2Exchange, stream: AsyncIterator[bytes], length: int | None) -> None:
        """Send an answer's stream in a task."""
        raise NotImplementedError

    def grew(self, head: Head) -> None:
        """Count what was derived from a head (`Head.grown`)."""
        raise NotImplementedError


class DataSender(PieceSender):
    """A body that is sent on a stream.

    Args:
        outlet: the connection.
        number: the stream's.
        window: bytes that the peer accepts.
    """

    __slots__ = ()

    def __init__(self, outlet: Framed, number: int, window: int) -> None:
        super().__init__(outlet, number, window, _PIECE, frames.LARGEST_WINDOW)

    def frame(self, size: int, *, ended: bool) -> bytes:
        return frames.header(size, frames.DATA, frames.END_STREAM if ended else 0, self.number)

    def over(self) -> None:
        """See `PieceSender.over`: nothing waits for the end."""


class H2Exchange(DataSender):
    """An `Exchange`.

    Args:
        carrier: its connection.
        number: the stream's.
        head: its head.
        own: fields of this request alone.
        peer: the client's address.
        window: bytes of its answer that the peer accepts.
        now: the time in seconds.
    """

    __slots__ = (
        "answered",
        "body_bytes",
        "carrier",
        "complete",
        "credits_seen",
        "due",
        "gone",
        "head",
        "open_ended",
        "own",
        "peer",
        "pieces",
        "receiver",
        "request",
        "since",
        "task",
    )

    def __init__(
        self, carrier: Carrier, number: int, head: Head, own: Headers, peer: str, window: int, now: float
    ) -> None:
        super().__init__(carrier, number, window)
        self.carrier = carrier
        self.head = head
        self.peer = peer
        self.own = own
        self.request = Request(head.method, head.target, head.fields + own, b"", peer)
        self.request.shared = head.fields
        self.gone: Callable[[], object] | None = None
        self.since = now  # when it came, or its client last made progress
        # the request's body
        self.pieces: list[bytes] = []
        self.body_bytes = 0
        self.due = 0  # received bytes for which no credit was given yet
        self.complete = False  # all of the request has come
        self.receiver: BodyReceiver | None = None  # if its service reads the body as it comes
        self.open_ended = False  # its client sends when it likes
        # the answer
        self.answered = False
        self.task: asyncio.Task[None] | None = None
        self.credits_seen = -1

    # -- the request ----------------------------------------------------------------------------------------

    def begun(self) -> None:
        """Take the head; a request without a body follows with `ended`."""
        length = self.head.length
        if self.head.error is not None:
            self.refuse(self.head.error)
        elif length > self.carrier.max_body_bytes:
            self.refuse(heads.body_too_large(self.own, self.carrier.max_body_bytes, f"{length}"))
        elif length > limits.UNASKED_BYTES and not self.carrier.fits(length):
            self.refuse(does_not_fit(length))

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self.body_bytes += len(piece)
        if self.answered:
            return
        most = self.carrier.max_body_bytes
        if self.body_bytes > most:
            self.refuse(heads.body_too_large(self.own, most, "a larger one"))
        else:
            self.pieces.append(piece)

    def ended(self) -> None:
        """Take the end of the request."""
        if self.answered:
            return
        if self.head.length not in (-1, self.body_bytes):
            self.carrier.cut(self, frames.PROTOCOL_ERROR)
            return
        self.request.body = self.body()
        self.carrier.start(self)

    def body(self) -> bytes:
        """Return what has come of the body."""
        pieces = self.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body

    # -- the answer -----------------------------------------------------------------------------------------

    def answer(self, response: Response) -> None:
        if self.answered or self.stopped:
            if response.stream is not None:
                streams.close_in_background(response.stream)
            return
        self.answered = True
        self.gone = None
        self.pieces.clear()
        self.respond(response)

    def respond(self, response: Response) -> None:
        """Send an answer; called once."""
        try:
            block = answer_block(response.status, response.headers, response.lines)
        except (ValueError, TypeError) as error:
            log("answer cannot be sent", level="error", error=repr(error))
            if response.stream is not None:
                streams.close_in_background(response.stream)
            response = PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler").response()
            block = answer_block(response.status, response.headers, b"")
        stream, status = response.stream, response.status
        length = len(response.body) if stream is None and response.length is None else response.length
        bodiless = status in NO_BODY_STATUS or self.request.method == "HEAD"
        if length is not None and status not in NO_BODY_STATUS:
            block += literal(b"content-length", b"%d" % length)
        if bodiless or (stream is None and not response.body):
            if stream is not None:
                streams.close_in_background(stream)
            self.send(block, b"", b"")
        elif stream is None:
            self.send(block, response.body, b"")
        else:
            self.carrier.send_head(self, block, ended=False)
            self.carrier.run(self, stream, length)

    def send(self, block: bytes, body: bytes, trailers: bytes) -> None:
        """Send a whole answer.

        Args:
            block: its header block.
            body: its body.
            trailers: the header block behind it, if there is one.
        """
        carrier = self.carrier
        if not body and not trailers:
            carrier.send_head(self, block, ended=True)
            self._sent()
            return
        carrier.send_head(self, block, ended=False)
        size = len(body)
        if 0 < size <= _PIECE and size <= self.window and size <= carrier.window and not carrier.choked:
            self.window -= size
            carrier.window -= size
            flags = 0 if trailers else frames.END_STREAM
            carrier.send(frames.header(size, frames.DATA, flags, self.number))
            carrier.send(body)
            if trailers:
                carrier.send(self._end_frames(trailers))
            self._sent()
            return
        self.finish(body, self._end_frames(trailers) if trailers else b"")

    def refuse(self, error: PenstockError) -> None:
        """Answer an error of our own."""
        self.answer(error.response())

    def fail(self, error: BaseException) -> None:
        """Log an exception of the service and answer 500."""
        log("handler failed", level="error", error=repr(error))
        self.refuse(PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler"))

    def interim(self, status: int, headers: Headers) -> None:
        if self.answered or self.stopped or not 102 <= status <= 199:
            return
        try:
            self.carrier.send_head(self, answer_block(status, headers, b""), ended=False)
        except ValueError as error:
            log("interim answer cannot be sent", level="warning", error=repr(error))

    def switch(self, headers: Headers) -> Tunnel:
        """See `Exchange.switch`: there is no such request in HTTP/2."""
        raise ValueError("expected a request that asks to switch protocols")

    def write(self, data: bytes) -> bool:
        """Send a piece of the body; return False if some of it must wait for the peer."""
        if self.stopped:
            raise ClientGone("the client went away")
        return self.feed(data)

    async def writable(self) -> None:
        await self.drained()

    def send_trailers(self, trailers: bytes) -> None:
        """End the answer, after what was written."""
        self.finish(last=self._end_frames(trailers))

    def _end_frames(self, trailers: bytes) -> bytes:
        return frames.head(trailers, self.number, ended=True, most=self.carrier.max_frame)

    def over(self) -> None:
        self.carrier.over(self)

    def sent(self) -> None:
        """Take the end of the answer's stream."""
        self.task = None
        if not self.stopped:
            self.finish()

    def break_off(self) -> None:
        """End an answer early, so that no client takes the part that was sent for the whole."""
        self.task = None
        self.carrier.cut(self, frames.INTERNAL_ERROR)

    # -- memory ---------------------------------------------------------------------------------------------

    def kept(self) -> int:
        request = self.request
        kept = REQUEST_BYTES + heads.size(request.target, request.headers) + len(request.body)
        if self.pieces:
            kept += sum(map(len, self.pieces)) + PIECE_BYTES * len(self.pieces)
        if self.receiver is not None:
            kept += self.receiver.kept()
        return kept + self.unsent()

    def kept_since(self) -> float:
        return self.since

    def give_way(self) -> bool:
        """See `memory.Keeper.give_way` and `hop.exchange.HopExchange.give_way`."""
        if self.stopped:
            return False
        if self.answered:
            self.carrier.cut(self, frames.INTERNAL_ERROR)
        elif not self.complete and self.receiver is None:
            self.refuse(no_room(not_admitted=True))
        else:
            recall = self.request.recall
            return recall is not None and recall() > 0
        return True
