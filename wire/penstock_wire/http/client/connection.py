"""One upstream connection on httptools, and the exchange under way on it; `pool` has the pool.

States::

    IDLE ──begin──► HEAD ──final head──► BODY ──its end──► IDLE (back to the pool) or closed
                     └──101, asked for──► TUNNEL ──both sides have ended──► closed

The parser (llhttp) reads heads and chunks. A body of known length bypasses it once the head is read: the
pieces are passed on as received. One timer per connection checks `_deadline`, which is infinite while the
peer is not waited for: a slow client is not a slow upstream.

A request's stream continues beside a 2xx answer that begins before its end, as from a model that answers
piece by piece; any other status, and the answer's end, ends it (RFC 9112 section 9.5 allows that).
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, Final, cast

import httptools

from penstock_wire.addresses import join
from penstock_wire.headers import PER_CONNECTION, REASON
from penstock_wire.http import (
    ALL_BYTES,
    AnswerUnreadable,
    BodyReader,
    ConnectionLost,
    GivenUp,
    Opened,
    PeerSilent,
    Request,
    Response,
    SenderFailed,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.client.answer import MAX_ANSWER_BYTES, Answer, Body, Carrier, UpstreamTunnel
from penstock_wire.http.client.head import (
    JOIN_BYTES,
    MAX_HEAD_BYTES,
    blank_lines_follow,
    body_length,
    encode_head,
    forwarded,
    old_keeps,
    switches_to,
)
from penstock_wire.http.client.interfaces import Pool
from penstock_wire.http.client.peer_liveness import ended_early, is_silence, undelivered, was_reset
from penstock_wire.http.client.request_stream import framed
from penstock_wire.http.head_cache import KnownAnswers
from penstock_wire.http.memory import PIECE_BYTES, MemoryBound
from penstock_wire.http.messages import NO_BODY_STATUS, Interim
from penstock_wire.timers import EarliestTimer

_IDLE: Final = 0
_HEAD: Final = 1
_BODY: Final = 2
_TUNNEL: Final = 3
_COMMON: Final = b"HTTP/1.1 2"


class Connection(Carrier):
    """One connection and the exchange under way on it; for the loop an `asyncio.Protocol`, by its methods.

    Args:
        pool: the pool that it belongs to.
        key: host and port of the peer.
    """

    def __init__(self, pool: Pool[Connection], key: tuple[str, int]) -> None:
        self.key = key
        self.where = join(*key)
        self.idle_since = 0.0
        self.reusable = True
        self.writable = None  # a future while the peer accepts nothing
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._known = KnownAnswers(pool.known)
        self._memory: MemoryBound = pool.memory
        self._state = _IDLE
        self._parser: Any = None
        self._opened: Opened | None = None  # callback for the answer
        self._answer: Response | Answer | None = None  # its argument
        self._whole_bytes = 0  # most bytes of an answer that is not long; `AT_HEAD`, `ALL_BYTES`
        self._streamed = False
        self._body: Body | None = None  # of a streamed answer, or of a tunnel
        self._upgrade = b""
        self._interim: Interim | None = None
        self._kept = False  # it has carried an exchange before this one
        self._head_only = False
        self._is_long = False  # the request's body, so its server can have left it unread
        self._spent = False  # the parser cannot read another message
        self._over = False  # the answer is complete, but the bytes received with it are not read yet
        self._pump: asyncio.Task[None] | None = None  # sends the request's stream
        self._asking = False  # a reader waits for the next piece of the answer
        self._fields: list[tuple[bytes, bytes]] = []
        self._framing: list[tuple[bytes, bytes]] = []  # those that concern this connection
        self._in_head = True
        self._is_common = False  # its first bytes are `_COMMON`
        self._pieces: list[bytes] = []
        self._status = self._body_bytes = 0
        self._bytes_since_progress = 0  # received since the last final head or piece of a body
        self._past_parser = 0  # bytes of a body that bypass the parser; 0 = it reads
        self._length: int | None = None
        self._to_the_end = False  # the body ends with the connection
        self._paused = False
        self._timeout = self._idle_timeout = 0.0
        self._deadline = math.inf
        self._timer = EarliestTimer(self._look, time.monotonic)

    # -- one exchange ---------------------------------------------------------------------------------------

    def begin(self, request: Request, timeout: float, idle: float, whole_bytes: int, opened: Opened) -> None:
        """Send a request; see `Upstream.begin`."""
        head = encode_head(request, self.where)
        self._idle_timeout = idle
        self._whole_bytes = whole_bytes
        self._opened = opened
        self._streamed = whole_bytes < 0
        self._state = _HEAD
        if self._spent:
            self._spent = False
            self._parser = None
        self._upgrade = request.upgrade
        self._interim = request.interim
        self._head_only = request.method == "HEAD"
        self._to_the_end = False
        self._asking = False
        self._bytes_since_progress = 0
        self._timeout = timeout
        self._expect_by(time.monotonic() + timeout)
        body = request.body
        self._is_long = request.stream is not None or len(body) >= JOIN_BYTES
        if request.stream is not None:
            self.transport.write(head)
            self._pump = self._loop.create_task(self._send_stream(request.stream, request.length))
        elif len(body) < JOIN_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    async def _send_stream(self, stream: BodyReader, length: int | None) -> None:
        """Send a body as it comes; while the peer accepts nothing, nothing is read."""
        try:
            # Only the peer's time counts: the source of the stream has its own limit.
            self._deadline = math.inf
            async for piece in framed(stream, length):
                self.transport.write(piece)
                if self.writable is not None:
                    self._their_turn()
                    await self.writable
                    self._deadline = math.inf
            self._pump = None
            self._their_turn()
        except asyncio.CancelledError:
            if self._pump is not None:  # not cancelled by `_stop_sending`
                self._pump = None
                self.fail(ConnectionLost(f"the body for {self.where} was given up"))
            raise
        except Exception as error:
            self._pump = None
            self.fail(error)

    def _their_turn(self) -> None:
        """Start the peer's timeout: the stream has ended, or the peer accepts no more of it."""
        if self._state == _HEAD:
            self._expect_by(time.monotonic() + self._timeout)
        elif self._asking:
            self._expect_by(time.monotonic() + self._idle_timeout)

    def _stop_sending(self) -> None:
        """Stop sending the body; the peer would read further data on this connection as its rest."""
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
            self.reusable = False

    def give_up(self, opened: Opened) -> None:
        """End an exchange with an unwanted answer: its callback gets `GivenUp`; no-op if it is over."""
        if self._opened is opened:
            self.fail(GivenUp(f"the exchange with {self.where} was given up"))

    def drop_body(self, body: Body) -> None:
        """End the exchange of a body that is read no further; no-op if the body has ended."""
        if self._body is body:
            self.fail(ConnectionLost(f"the answer of {self.where} was given up"))

    def kept(self) -> int:
        whole = self._body_bytes + PIECE_BYTES * len(self._pieces) if self._pieces else 0
        return self._bytes_since_progress + whole

    def end(self) -> None:
        """Close now; an exchange under way fails."""
        self.fail(ConnectionLost(f"the connection to {self.where} was closed here"))

    def fail(self, error: Exception) -> None:
        """End the exchange under way with an error, and the connection."""
        self.reusable = False
        self._over = False
        self._interim = None
        self._deadline = math.inf
        self._state = _IDLE
        self._past_parser = 0
        self._stop_sending()
        body, self._body = self._body, None
        if body is not None:
            body.fail(error)
        opened, self._opened = self._opened, None
        if opened is not None:
            # NB: not at once: neither a sender nor the parser must be called back in the middle of its work.
            failure = error if isinstance(error, UpstreamError) else SenderFailed(self.where, error)
            self._loop.call_soon(opened, self._answer if isinstance(self._answer, Response) else failure)
            self._answer = None
        self._fields, self._framing, self._pieces = [], [], []
        self.transport.abort()

    def expect(self) -> None:
        self._asking = True
        # NB: while the request's stream has nothing to send, the peer can have nothing to answer.
        if self._state == _BODY and (self._pump is None or self.writable is not None):
            self._expect_by(time.monotonic() + self._idle_timeout)

    def relax(self) -> None:
        self._asking = False
        if self._state == _BODY:
            self._deadline = math.inf

    def _expect_by(self, deadline: float) -> None:
        self._deadline = deadline
        self._timer.ring_at(deadline)

    def _look(self) -> None:
        if self._deadline > time.monotonic():
            if self._deadline != math.inf:
                self._expect_by(self._deadline)
            return
        if self._state == _BODY and self._streamed:
            what, seconds = "nothing more", self._idle_timeout
        else:
            what, seconds = "no answer", self._timeout
        self.fail(UpstreamTimeout(f"{what} of {self.where} in {seconds:.3f} s"))

    # -- the transport's callbacks --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        # NB: uvloop writes at once only what exceeds the buffer's limit, the rest at the end of the loop's
        # turn: after the answers to a whole batch. But the model is waiting for the next batch.
        self.transport.set_write_buffer_limits(high=0)

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._pool.forget(self)
        for data in undelivered(self.transport, error):
            self.data_received(data)
        if self._to_the_end and error is None:
            self._complete()
            self._hand_over()
        elif self._state == _TUNNEL and error is None and self._body is not None:
            self._body.finish()
        elif is_silence(error):
            self.fail(PeerSilent(f"{self.where} gave no sign of life before a complete answer: {error}"))
            self._pool.silent(self)
        else:
            self.fail(self._ended_early(reset=isinstance(error, (ConnectionResetError, BrokenPipeError))))
        self._timer.cancel()
        self.resume_writing()

    def eof_received(self) -> bool:
        self.reusable = False
        if self._state == _TUNNEL:
            if self._body is not None:
                self._body.finish()
            return True  # this half stays open
        if self._to_the_end:
            self._complete()
            self._hand_over()
        elif self._state != _IDLE:
            self.fail(self._ended_early(reset=was_reset(self.transport)))
        return False

    def _ended_early(self, *, reset: bool) -> ConnectionLost:
        unread = reset and self._kept and self._state == _HEAD and not self._bytes_since_progress
        return ended_early(self.where, unread=unread)

    def pause_writing(self) -> None:
        self.writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)
        self.writable = None

    def pause_reading(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._memory.came(len(data))
        if self._past_parser:
            left = self._past_parser - len(data)
            if left < 0:
                self.reusable = False
                data, left = data[:left], 0
            self._past_parser = left
            self._piece(data)
            if not left and self._state == _BODY:
                self._complete()
                self._release()
        elif self._state == _TUNNEL:
            if self._body is not None:
                self._body.feed(data)
        elif self._state == _IDLE:  # none was sent: whatever comes, it answers no request
            self.reusable = False
            self.transport.abort()
        elif self._bytes_since_progress or self._state != _HEAD or not self._take(data):
            self._parse(data)

    def _take(self, data: bytes) -> bool:
        """Take a whole answer with a head that came before, as the parser would; else return False."""
        if self._head_only or self._streamed or self._is_long:
            return False
        head = self._known.find(data)
        if head is None or head.length > self._whole_bytes:
            return False
        body = data[len(data) - head.length :] if head.length else b""
        self._stop_sending()
        self._deadline = math.inf
        self._answer = Response(head.status, head.fields, body)
        self._release()
        return True

    def _parse(self, data: bytes) -> None:
        first = not self._bytes_since_progress and self._state == _HEAD
        if first:
            self._is_common = data.startswith(_COMMON)
            if self._parser is None:
                self._parser = httptools.HttpResponseParser(self)
        self._bytes_since_progress += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._over:
                self._switch(data[upgrade.args[0] :])
                return
            self.reusable = False  # a switch after a complete answer is invalid
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, AnswerUnreadable):
                self.fail(cause)
            elif not self._over:
                self.fail(AnswerUnreadable(f"{self.where} gave no HTTP/1.1 answer: {error}"))
            else:
                self.reusable = False  # garbage after a complete answer
        over = self._over
        if over and blank_lines_follow(data, self._length or 0):
            self.reusable = False
        common = first and self._is_common and self.reusable and not self._head_only and not self._streamed
        if common and (over or self._state == _BODY):
            self._known.learn(data, self._status, self._length, self._framing, self._fields, whole=over)
        if over:
            self._release()
            return
        if self._bytes_since_progress > MAX_HEAD_BYTES:
            self.fail(AnswerUnreadable(f"{self.where} sent a head of more than {MAX_HEAD_BYTES} bytes"))
        elif self._state == _BODY:
            if self._length is not None:
                self._past_parser = self._length - self._body_bytes
                self._parser = None  # it is in the middle of this body
            if self._answer is not None:
                self._hand_over()

    # -- the parser's callbacks -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._over:
            self.reusable = False  # a second answer
        self._fields, self._framing = [], []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are read and dropped
            name = name.lower()
            # NB: the parser has skipped space before a value, not after it.
            field = (name, value.strip(b" \t"))
            if name in PER_CONNECTION:
                self._framing.append(field)
            else:
                self._fields.append(field)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._over:
            return
        parser = self._parser
        status = parser.get_status_code()
        if not 100 <= status <= 599:
            raise AnswerUnreadable(f"{self.where}: expected a status from 100 to 599, found {status}")
        if status < 200:
            if status == 101 and not (parser.should_upgrade() and switches_to(self._upgrade, self._framing)):
                raise AnswerUnreadable(f"{self.where} switched protocols, which was not asked for")
            if status != 101 and self._interim is not None:
                self._interim(status, forwarded(self._framing, self._fields))
            return
        old = False
        if not self._is_common:
            version = parser.get_http_version()
            old = version == "1.0"
            if not old and version != "1.1":
                raise AnswerUnreadable(f"{self.where}: expected HTTP/1.1, found {version}")
        self._state = _BODY
        self._status = status
        self._bytes_since_progress = 0
        self._body_bytes = 0
        try:
            length, chunked = body_length(self._framing, old=old)
        except ValueError as error:
            raise AnswerUnreadable(f"{self.where}: {error}") from error
        if not parser.should_keep_alive() or (old and not old_keeps(self._framing)):
            self.reusable = False
        # NB: many servers end the connection some ms after an answer to an exception (uvicorn logs it first)
        # or to a body that they have not read (hyper), without a sign in it. Ours are reliable in this.
        if status >= (400 if self._is_long else 500) and not any(name == REASON for name, _ in self._fields):
            self.reusable = False
        if status == 204 and (chunked or length):  # a body that is not allowed can still come
            self.reusable = False
        bodiless = self._head_only or status in NO_BODY_STATUS
        self._length = None if bodiless else length
        self._to_the_end = not (bodiless or chunked or length is not None)
        if self._whole_bytes < ALL_BYTES and (length is None or length > self._whole_bytes):
            self._streamed = True
            self._deadline = math.inf
            self._body = Body(self)
            self._answer = Answer(status, forwarded(self._framing, self._fields), length, self._body)
        if status >= 300 or not self._streamed:
            self._stop_sending()
        if self._head_only:  # the parser would wait for the body that HEAD leaves out
            self._complete()
            self._spent = True

    def on_body(self, part: bytes) -> None:
        if self._over:
            self.reusable = False
            return
        self._bytes_since_progress = 0
        self._piece(part)

    def on_message_complete(self) -> None:
        if not self._over and self._state == _BODY:
            if not self._parser.should_keep_alive():
                self.reusable = False  # trailers can end it, too: the parser then takes no further message
            self._complete()

    # -- the answer -----------------------------------------------------------------------------------------

    def _piece(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body is not None:
            self._body.feed(part)
        elif self._body_bytes > MAX_ANSWER_BYTES:
            self.fail(AnswerUnreadable(f"{self.where} answered more than {MAX_ANSWER_BYTES} bytes"))
        else:
            self._pieces.append(part)

    def _complete(self) -> None:
        """Pass a complete answer to the caller."""
        self._over = True
        self._to_the_end = False
        self._stop_sending()
        self._deadline = math.inf
        body, self._body = self._body, None
        if body is not None:
            body.finish()
            if self._answer is not None and self._whole_bytes >= 0:  # all of it came with its head
                self._answer = Response(self._answer.status, self._answer.headers, body.whole() or b"")
        else:
            whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._answer = Response(self._status, forwarded(self._framing, self._fields), whole)

    def _hand_over(self) -> None:
        """Call back with the answer. The connection is in the pool by then: the next request can use it."""
        answer, self._answer = self._answer, None
        opened, self._opened = self._opened, None
        if opened is not None and answer is not None:
            opened(answer)

    def _release(self) -> None:
        """Go back to the pool, or end."""
        self._over = False
        self.reusable = self.reusable and not (self._is_long and self.transport.get_write_buffer_size())
        self._kept = True
        self._interim = None
        self._state = _IDLE
        if self._fields or self._framing or self._pieces:  # an idle connection keeps no answer
            self._fields, self._framing, self._pieces = [], [], []
        if self.reusable:
            self.resume_reading()
            self._pool.put(self)
        else:
            self.transport.abort()
        if self._answer is not None:
            self._hand_over()

    def _switch(self, rest: bytes) -> None:
        self._state = _TUNNEL
        self._deadline = math.inf
        self._bytes_since_progress = 0
        self.reusable = False
        self._stop_sending()
        body = self._body = Body(self)
        body.feed(rest)
        upgrade = next((value for name, value in self._framing if name == b"upgrade"), self._upgrade)
        headers = (
            *forwarded(self._framing, self._fields),
            (b"connection", b"upgrade"),
            (b"upgrade", upgrade),
        )
        answer = Answer(101, headers, None, body)
        answer.tunnel = UpstreamTunnel(self, body)
        self._answer = answer
        self._hand_over()
