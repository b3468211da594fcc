"""One request on a connection of frames, as its client sees it: its callback, and its deadline."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Protocol

from penstock_wire.framing.bodies import Allowance, PieceSender
from penstock_wire.headers import Headers
from penstock_wire.http import (
    ALL_BYTES,
    AnswerUnreadable,
    BodyReader,
    ConnectionLost,
    Opened,
    Request,
    Response,
    SenderFailed,
    UpstreamError,
)
from penstock_wire.http.client.answer import MAX_ANSWER_BYTES, Answer, Body, Carrier
from penstock_wire.http.memory import PIECE_BYTES
from penstock_wire.http.messages import Interim, Trailers
from penstock_wire.process import log


class CallConnection(Protocol):
    """The connection, as its calls see it: `client.FramedClient`."""

    where: str

    def expect_by(self, call: FramedCall, deadline: float) -> None:
        """Fail a call with a timeout at a time of the monotonic clock, unless a new one is set by then."""
        ...

    def give_up(self, call: FramedCall, error: Exception) -> None:
        """End a call; the server stops its work."""
        ...


class FramedCall(Carrier):
    """A request under way.

    Args:
        line: its connection.
        loop: the running loop.
        number: its number there.
        request: the request to send.
        timeout: see `Upstream.begin`, as the following three.
    """

    def __init__(
        self,
        line: CallConnection,
        loop: asyncio.AbstractEventLoop,
        number: int,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        opened: Opened,
    ) -> None:
        self.number = number
        self.deadline = math.inf
        self.answered = False  # the answer's head has come
        self.cut_short = False  # not all of the request's body was sent
        self.allowance: Allowance | None = None  # of the answer, if it comes in pieces
        self.sender: PieceSender | None = None  # of the request, if it goes in pieces
        self.interim_bytes = 0  # of interim answers, which credit does not bound
        self.head_only = request.method == "HEAD"
        self._opened: Opened | None = opened  # None once it was called
        self.whole_bytes = whole_bytes
        self._line = line
        self._loop = loop
        self._timeout = timeout
        self._idle_timeout = idle
        self._interim: Interim | None = request.interim
        self._pump: asyncio.Task[None] | None = None  # sends the request's stream
        self._asking = False  # a reader waits for the next piece of the answer
        self._body: Body | None = None
        self._status = 0
        self._headers: Headers = ()
        self._length: int | None = None
        self._trailers = Trailers() if request.trailers else None
        self._pieces: list[bytes] = []
        self._size = 0
        self._unread = 0  # received since the last credit

    # -- the request ----------------------------------------------------------------------------------------

    def send_stream(self, sender: PieceSender, stream: BodyReader, length: int | None) -> None:
        """Send a body piece by piece as its stream yields it."""
        self.sender = sender
        self._pump = self._loop.create_task(self._send_stream(sender, stream, length))

    async def _send_stream(self, sender: PieceSender, stream: BodyReader, length: int | None) -> None:
        left = length
        where = self._line.where
        try:
            # Only the peer's time counts: the source of the stream has its own limit.
            self.deadline = math.inf
            while piece := await stream.read():
                if left is not None:
                    left -= len(piece)
                    if left < 0:
                        raise UpstreamError(f"expected a body of {length} bytes, found more")
                if not sender.feed(piece):
                    self._their_turn()
                    await sender.drained()
                    self.deadline = math.inf
            if left:
                raise UpstreamError(f"expected a body of {length} bytes, found {left} less")
            self._pump = None
            sender.finish()
            self._their_turn()
        except asyncio.CancelledError:
            if self._pump is not None:  # not cancelled by this call
                self._pump = None
                self._line.give_up(self, ConnectionLost(f"the body for {where} was given up"))
            raise
        except Exception as error:
            self._pump = None
            self._line.give_up(self, error)

    def _their_turn(self) -> None:
        """Start the peer's timeout: the stream has ended, or the peer accepts no more of it."""
        if not self.answered:
            self._line.expect_by(self, time.monotonic() + self._timeout)
        elif self._asking:
            self._line.expect_by(self, time.monotonic() + self._idle_timeout)

    def kept(self) -> int:
        """Return the bytes held of an answer that is collected whole."""
        pieces = len(self._pieces)
        return self._size + PIECE_BYTES * pieces if pieces else 0

    @property
    def sends(self) -> bool:
        """Whether the request's body is still sent."""
        return self._pump is not None or (self.sender is not None and not self.sender.stopped)

    def stop_sending(self) -> None:
        """Stop sending the request's body: the rest is not wanted."""
        if self.sends:
            self.cut_short = True
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
        sender, self.sender = self.sender, None
        if sender is not None:
            sender.stop()

    # -- the answer -----------------------------------------------------------------------------------------

    def interim(self, status: int, fields: Headers) -> None:
        """Pass on an interim answer."""
        if self._interim is not None and not self.answered:
            try:
                self._interim(status, fields)
            except Exception as error:
                log("interim answer failed", level="error", error=repr(error))

    def whole(
        self, status: int, headers: Headers, body: bytes, length: int | None, lines: bytes = b""
    ) -> None:
        """Deliver a whole answer to the caller."""
        if self.sender is not None or self._pump is not None:
            self.stop_sending()
        self.answered = True
        if self.whole_bytes < 0:
            read = Body(self)
            read.feed(body)
            read.finish()
            if length is None and body:
                length = len(body)
            self._hand_over(Answer(status, headers, length, read))
            return
        answer = Response(status, headers, body)
        answer.lines = lines
        if self.head_only:
            answer.length = length
        self._hand_over(answer)

    def begins(self, status: int, headers: Headers, length: int | None) -> None:
        """Take the head of an answer that has its body in further frames."""
        self.answered = True
        self._status, self._headers, self._length = status, headers, length
        long = self.whole_bytes < ALL_BYTES and (length is None or length > self.whole_bytes)
        # NB: a whole request body is still sent to its end: the server can answer while it reads.
        if self._pump is not None and (status >= 300 or not long):
            self.stop_sending()
        if not long:
            return
        self.deadline = math.inf
        self._body = body = Body(self)
        self._hand_over(Answer(status, headers, length, body))

    def piece(self, data: bytes, *, ended: bool) -> bool:
        """Take a piece of the answer's body; return whether it was the last.

        Raises:
            ValueError: the body exceeds its announced length or its credit.
            AnswerUnreadable: the body is too long to be collected.
        """
        allowance = self.allowance
        if not self.answered or allowance is None:
            raise ValueError("expected the head of an answer before its body")
        size = len(data)
        allowance.take(size)
        self._size += size
        length = self._length
        if length is not None and (self._size > length or (ended and self._size < length)):
            raise ValueError(f"expected an answer of {length} bytes, found {self._size}")
        body = self._body
        if body is not None:
            self._unread += size
            body.feed(data)
            if ended:
                self._body = None
                self.stop_sending()
                body.finish()
            return ended
        if size:
            self._pieces.append(data)
        if ended:
            self.whole(self._status, self._headers, b"".join(self._pieces), None)
            self._pieces = []
        elif self._size > MAX_ANSWER_BYTES:
            raise AnswerUnreadable(f"{self._line.where} answered more than {MAX_ANSWER_BYTES} bytes")
        else:
            allowance.give(size)
        return ended

    def trailers(self, fields: Headers) -> None:
        """Take the fields behind the answer's body; its end follows."""
        if self._trailers is not None:
            self._trailers.fields = fields

    def _hand_over(self, answer: Response | Answer) -> None:
        """FramedCall the callback; an exception in it must not affect other calls."""
        opened, self._opened = self._opened, None
        answer.trailers = self._trailers
        try:
            if opened is not None:
                opened(answer)
        except Exception as error:
            log("answer's callback failed", level="error", error=repr(error))

    def fail(self, error: Exception) -> None:
        """Fail the call: no answer, or no end of the answer, will come."""
        self._interim = None
        self._pieces = []
        self.stop_sending()
        body, self._body = self._body, None
        if body is not None:
            body.fail(error)
        opened, self._opened = self._opened, None
        if opened is not None:
            # NB: not at once: a sender must not be called back while it is sending.
            failure = error if isinstance(error, UpstreamError) else SenderFailed(self._line.where, error)
            self._loop.call_soon(opened, failure)

    def give_up(self) -> None:
        """A `GiveUp`: end the call; no-op if the answer, or its beginning, was delivered."""
        if self._opened is not None:
            self._line.give_up(self, ConnectionLost(f"the exchange with {self._line.where} was given up"))

    # -- what its body asks for (`Carrier`) -----------------------------------------------------------------

    def expect(self) -> None:
        self._asking = True
        # NB: while the request's stream has nothing to send, the peer can have nothing to answer.
        if self._pump is None or (self.sender is not None and self.sender.is_stuck):
            self._line.expect_by(self, time.monotonic() + self._idle_timeout)

    def relax(self) -> None:
        self._asking = False
        self.deadline = math.inf

    def pause_reading(self) -> None:
        """See `Carrier.pause_reading`: credit is held back until enough is read."""

    def resume_reading(self) -> None:
        if self.allowance is not None and self._unread:
            unread, self._unread = self._unread, 0
            self.allowance.give(unread)

    def drop_body(self, body: Body) -> None:
        if self._body is body:
            self._line.give_up(self, ConnectionLost(f"the answer of {self._line.where} was given up"))
