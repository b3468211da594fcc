"""One connection of the front: the parser's callbacks fill an exchange, the service answers it.

A connection has at most one exchange under way; pipelined ones wait in line, parsed, and reading pauses if
the line is long, so the answers leave in order. In words:

- `_mode` says where received bytes go: to the parser (`PARSE`); past it, to a body of known length
  (`BYPASS`); to a tunnel (`TUNNEL`); into `_behind` while it is undecided whether the connection will switch
  protocols (`UNDECIDED`); nowhere, once no further request is read (`DROP`).
- `_phase` says what the connection waits for: the next request, the rest of a head, the rest of a body.
- `_incoming` is the exchange being received, `_current` the one that the service has; with a stream they are
  the same for a while. `_line` holds those in between.

Except in a tunnel, the end of a client's stream means that the client leaves, whatever is under way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from penstock_wire._mypyc import mypyc_attr
from penstock_wire.addresses import unmapped
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import ClientGone, Request, Tunnel
from penstock_wire.http.client.peer_liveness import nothing_waits, untaken_bytes
from penstock_wire.http.head_cache import RequestHead
from penstock_wire.http.memory import CONNECTION_BYTES, REQUEST_BYTES, does_not_fit
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits, streams
from penstock_wire.http.server.connection_base import (
    BODY,
    BYPASS,
    DROP,
    HEAD,
    LINE_IS_LONG,
    MUCH_BEHIND,
    PARSE,
    PLAIN,
    TUNNEL,
    UNDECIDED,
    H1Exchange,
)
from penstock_wire.http.server.seat import Seat
from penstock_wire.http.server.upgrade_body import parser_in_body
from penstock_wire.process import log

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server

_SPECIAL = heads.SPECIAL
_METHODS = heads.METHODS
_MAX_FIELDS = limits.MAX_FIELDS


@mypyc_attr(native_class=False)
class _EndedError(Exception):
    """Stops the parser within the received bytes: nothing after that place will be served."""


class H1Connection(Seat):
    """One connection.

    Args:
        front: its front.
        listener: the address that it came to.
        loop: the running loop.
    """

    __slots__ = ()

    def __init__(self, front: Server, listener: ListenerState, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(front, listener, loop)
        self._parser = httptools.HttpRequestParser(self)

    # -- the transport's callbacks --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        if len(self._front.connections) >= self._front.max_connections:
            self._mode = DROP
            self._transport.abort()
            return
        if self._front.evicting:  # pause writing while any byte is not accepted
            self._transport.set_write_buffer_limits(high=0)
        name = transport.get_extra_info("peername")
        self._peer = unmapped(str(name[0])) if name else ""
        self._memory.room -= CONNECTION_BYTES
        self._front.connections.add(self)
        self._listener.connections.add(self)
        self._listener.empty.clear()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`; calls `gone` of the exchange."""
        self._mode = DROP
        self._last = True
        self._front.connections.discard(self)
        self._listener.leave(self)
        self._parser = None  # it refers to this connection
        self._hold(0)
        self._line = None
        self._behind = b""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.fail("the client went away in the middle of its body")
        if self._incoming is not None:
            self._incoming.connection = None
            self._incoming = None
        if self._tunnel is not None:
            self._tunnel.fail("the client went away")
            self._tunnel = None
        self._close_in_background()
        if self._sender is not None:
            self._sender.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`; True keeps the connection, for the other half of a tunnel."""
        # A leaving client looks like a half-closing one, and clients usually leave: the service is called
        # (by connection_lost), or the model would work in vain.
        self._last = True
        if self._tunnel is not None:
            self._tunnel.finish()
            return not self._tunnel.sent_all
        return False

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless `_mode` says otherwise."""
        self._memory.came(len(data))
        if self._mode:
            self._around(data)
            return
        known = self._known
        # NB: the parser has no part of the next request, so the meaning of these bytes depends on them alone.
        look = (
            known is not None
            and not (self._phase or self._bytes_since_progress or self._last)
            and known.awake()
        )
        if look and known is not None:
            head = known.find(data, self._last_head)
            if isinstance(head, RequestHead):
                self._take(head, data)
                return
            self._learning = True
        self._bytes_since_progress += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._switched(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._unreadable(error, data)
        else:
            if self._phase:
                self._unfinished()
            elif known is not None and self._read is not None:
                known.learn(data, self._read)
        if look:
            self._learning = False
            self._read = None

    def _unreadable(self, error: Exception, data: bytes) -> None:
        if not self._last:  # else this connection itself stopped the parser
            cause = error.__context__
            self._refuse(cause if isinstance(cause, PenstockError) else heads.cannot_read(error, data))

    def _around(self, data: bytes) -> None:
        """Take received bytes that are not for the parser."""
        mode = self._mode
        if mode == BYPASS:
            left = self._left
            if len(data) < left:
                self.on_body(data)
                return
            self._mode = PARSE
            self.on_body(data[:left])
            self._parser = httptools.HttpRequestParser(self)  # the old one still waits for this body
            rest = data[left:]
            try:
                self.on_message_complete()
            except _EndedError:
                return
            if rest:
                self.data_received(rest)
        elif mode == TUNNEL and self._tunnel is not None:
            self._tunnel.feed(data)
        elif mode == UNDECIDED:
            self._behind += data
            if len(self._behind) > limits.BUFFER_BYTES:
                self._pause(MUCH_BEHIND)

    def _unfinished(self) -> None:
        """Check an incompletely received request against the limits."""
        if self._last:
            return
        if self._bytes_since_progress > self._front.max_head_bytes:
            self._refuse(heads.head_too_large(self._url, self._front.max_head_bytes))
        elif max(len(self._fields), len(self._special)) > _MAX_FIELDS:
            self._refuse(heads.fields_too_large(f"expected at most {_MAX_FIELDS} header fields"))
        elif self._front.max_unfinished_bytes and self._count_unfinished() > self._front.max_unfinished_bytes:
            self._refuse(heads.no_room())
        elif self._phase == BODY:
            if self._left > 0:
                self._mode = BYPASS  # the next bytes are body to its end, and need no parser
            self._continue_in_turn()

    def _continue_in_turn(self) -> None:
        """Send 100 Continue once all earlier requests are answered; for a stream its reader does so."""
        if self._continue and self._current is None and not self._line and self._reader is None:
            self._send_continue()

    # -- the parser's callbacks -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Take the first byte of a request."""
        if self._last:
            raise _EndedError
        self._fresh = False
        self._phase = HEAD
        self._since = self._front.now

    def on_url(self, part: bytes) -> None:
        """Take a piece of the target."""
        self._url = self._url + part if self._url else part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field, or a trailer."""
        field = (name.lower(), value.rstrip())
        if field[0] in _SPECIAL:
            self._special.append(field)
            if field[0] != b"host":
                return
        self._fields.append(field)

    def on_headers_complete(self) -> None:
        """Check a complete head, make an exchange of it, begin the body."""
        fields, special = self._fields, self._special
        self._fields, self._special = [], []  # trailers go there, and are dropped
        url, self._url = self._url, b""
        parser = self._parser
        method = _METHODS.get(parser.get_method())
        hosts = length = 0
        kept = False  # the client asks for what HTTP/1.1 does anyway
        common = method is not None and url[0] == 47 and b"#" not in url and url.isascii()
        for name, value in special:
            if name == b"host":
                hosts += 1
                if value != self._host:
                    heads.check_host(value)
                    self._host = value
            elif name == b"content-length" and value.isdigit():
                length = int(value)
            elif name == b"connection" and value.lower() == b"keep-alive":
                kept = True
            elif name != b"keep-alive" and name != b"te":  # these two ask for nothing that is done here
                common = False
        if self._bytes_since_progress > self._front.max_head_bytes or len(fields) > _MAX_FIELDS:
            heads.check_size(url, fields, self._front.max_head_bytes)
        self._bytes_since_progress = 0
        self._memory.room -= REQUEST_BYTES + heads.FIELD_BYTES * len(fields)
        self._phase = BODY
        # NB: without a Connection field the parser keeps only connections of HTTP/1.1.
        old = kept and parser.get_http_version() != "1.1"
        if common and hosts == 1 and not old and parser.should_keep_alive():
            request = Request(method, url.decode(), tuple(fields), b"", self._peer)  # type: ignore[arg-type]
            self._incoming = exchange = H1Exchange(self, request, keep=True)
            if length:
                self._left = length
                if length > self._listener.whole_bytes:
                    self._begin_body(exchange, length)
                    return
            if self._learning:
                self._read = RequestHead(request.method, request.target, request.headers, length)
        else:
            self._uncommon(url, fields, special)

    def _uncommon(self, url: bytes, fields: heads.Fields, special: heads.Fields) -> None:
        """Take a head with uncommon fields."""
        parser = self._parser
        method = parser.get_method().decode("latin-1")
        framing = heads.framing(parser.get_http_version(), special, keep=parser.should_keep_alive())
        target, host = heads.origin_form(method, url)
        if host is not None:  # the target is an http URL, which names the host
            fields = [field for field in fields if field[0] != b"host"]
            fields.insert(0, (b"host", host))
        if framing.named:
            fields = [field for field in fields if field[0] not in framing.named]
        request = Request(method, target, tuple(fields), b"", self._peer)
        self._incoming = exchange = H1Exchange(self, request, keep=framing.keep)
        exchange.old = framing.old
        self._left = -1 if framing.chunked else framing.length
        self._continue = exchange.expects = framing.expects and self._left != 0
        upgrades = framing.keep and parser.should_upgrade()
        if self._left and parser.should_upgrade():
            # NB: httptools reads no body after an `Upgrade`: it would read the body as the next request.
            self._behind_upgrade = (exchange, self._left)
            self._incoming = None
        elif self._left:
            self._begin_body(exchange, None if framing.chunked else framing.length)
        elif upgrades and target == "*" and framing.upgrade.lower() in self._listener.successors:
            # NB: only for the server itself (`*`): a proxy forwards upgrades of paths.
            if self._listener.closing or self._current is not None or self._line:
                expected = "expected no further connection of this kind, or one that has no other request"
                raise PenstockError(Reason.DRAINING, expected)
            self._successor = framing.upgrade.lower()
            self._incoming = None
        elif framing.upgrade and upgrades:
            request.upgrade = framing.upgrade
            if self._listener.streams is not None:
                self._undecided = exchange

    def _begin_body(self, exchange: H1Exchange, length: int | None) -> None:
        """Ask whether the body is to be a stream; refuse a whole one that is too large."""
        request = exchange.request
        wanted = self._listener.streams
        if wanted is not None and (length is None or length > self._listener.whole_bytes):
            request.length = length  # for `wanted`
            try:
                stream = wanted(request)
            except Exception as error:
                log("handler failed", level="error", error=repr(error))
                raise PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler") from error
            if stream:
                request.stream = self._reader = streams.Inbound(self)
                self._enqueue(exchange)
                if self._mode == DROP:
                    raise _EndedError
                return
            request.length = None
        if length is not None and length > self._front.max_body_bytes:
            raise self._too_large(f"{length}")
        if length is not None and not self._memory.fits(length):
            raise does_not_fit(length)

    def on_body(self, part: bytes) -> None:
        """Take a piece of a body, unframed."""
        self._bytes_since_progress = 0
        size = len(part)
        if self._left > 0:
            self._left -= size
        self._body_bytes += size
        if self._reader is not None:
            self._since = self._front.now
            self._reader.feed(part)
            return
        incoming = self._incoming
        if incoming is None or incoming.connection is None:
            # Answered before its end: drop a little of it, to keep the connection (RFC 9112 section 9.3).
            if self._body_bytes > limits.DRAIN_BYTES:
                self._end_now()
            return
        if self._body_bytes > self._front.max_body_bytes:
            raise self._too_large("a larger one")
        self._pieces.append(part)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        if self._last:
            raise _EndedError
        exchange, self._incoming = self._incoming, None
        self._bytes_since_progress = self._left = 0
        if self._held:
            self._hold(0)
        self._phase = PLAIN
        self._since = self._front.now
        if self._special or self._fields:  # trailers
            self._fields, self._special = [], []
            self._known = None  # a trailer can make the parser end the connection
        if exchange is None:
            return
        request = exchange.request
        exchange.complete = True
        exchange.plain = exchange.keep and not exchange.old and request.method != "HEAD"
        if self._body_bytes:
            self._body_bytes = 0
            pieces = self._pieces
            if pieces:
                request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
        self._continue = False
        if not exchange.keep:
            self._last = True
        if self._reader is not None:
            self._stream_came(exchange, self._reader)
        elif request.stream is not None:
            pass  # the service has it already
        elif self._current is None and not self._line and not self._paused:
            self._current = exchange
            try:
                self._service(exchange)
            except (Exception, asyncio.CancelledError) as error:
                exchange.fail(error)
        else:
            self._enqueue(exchange)
        if self._last and self._mode != TUNNEL:
            self._mode = DROP
            raise _EndedError

    # -- requests in ----------------------------------------------------------------------------------------

    def _take(self, head: RequestHead, data: bytes) -> None:
        """Take a whole request with a head that came before, as the parser's callbacks would."""
        self._last_head = head
        self._fresh = False
        self._since = self._front.now
        self._memory.room -= head.size
        body = data[len(data) - head.length :] if head.length else b""
        request = Request(head.method, head.target, head.fields, body, self._peer)
        exchange = H1Exchange(self, request, keep=True)
        exchange.complete = True
        exchange.plain = head.plain
        self._enqueue(exchange)

    def _enqueue(self, entry: H1Exchange) -> None:
        """Pass an exchange to the service, now or when its turn comes."""
        if self._current is None and not self._line and not self._paused:
            self._current = entry
            try:
                self._service(entry)
            except (Exception, asyncio.CancelledError) as error:
                entry.fail(error)
            return
        if not self._front.pipelining:
            actual = "found one behind another"
            self._refuse(PenstockError(Reason.BAD_REQUEST, f"expected one request at a time, {actual}"))
            return
        self._put_in_line(entry)
        if self._current is None:
            self._soon()

    def _advance(self) -> None:
        """Continue after an answer: serve the line, read what was held back."""
        self._scheduled = False
        line = self._line
        while line and self._current is None and not self._paused and not self._transport.is_closing():
            entry = line.popleft()
            if isinstance(entry, PenstockError):
                self._end_with(entry)
                return
            self._line_bytes -= entry.counted
            self._current = entry
            try:
                self._service(entry)
            except (Exception, asyncio.CancelledError) as error:
                entry.fail(error)
        if line is not None and len(line) <= limits.MAX_PIPELINED and self._line_bytes <= limits.BUFFER_BYTES:
            self._resume(LINE_IS_LONG)
        if self._current is not None or line or self._lingering or self._transport.is_closing():
            return
        self._continue_in_turn()
        if self._mode == UNDECIDED and self._undecided is None:
            behind, self._behind = self._behind, b""
            self._mode = PARSE
            self._resume(MUCH_BEHIND)
            if behind:
                self.data_received(behind)

    def _refuse(self, error: PenstockError) -> None:
        """Answer an error after the exchanges in line; read nothing more."""
        self._last = True
        self._mode = DROP
        self._phase = PLAIN
        reader, self._reader = self._reader, None
        incoming, self._incoming = self._incoming, None
        if incoming is not None and incoming.connection is None:  # its answer has been sent, or begun
            if incoming is self._current:
                self._close_in_background()
                self._cut()
            else:
                self._end_now()
        elif incoming is not None and incoming is self._current:
            self._close_in_background()
        elif self._line and self._line[-1] is incoming:
            self._line.pop()
            self._line_bytes -= incoming.counted
        if reader is not None:
            reader.fail(error.detail)
        if self._lingering or self._transport.is_closing():
            return
        if self._current is None and not self._line:
            self._end_with(error)
            return
        self._put_in_line(error)

    def _too_large(self, actual: str) -> PenstockError:
        fields = self._incoming.request.headers if self._incoming is not None else ()
        return heads.body_too_large(fields, self._front.max_body_bytes, actual)

    # -- switching protocols ------------------------------------------------------------------------------

    def switch(self, headers: Headers) -> Tunnel:
        """Answer 101 and become a tunnel."""
        if self._transport.is_closing():
            raise ClientGone("the client went away")
        if self._undecided is None:
            raise ValueError("expected a listener whose connections may switch protocols")
        self._transport.write(heads.interim_head(101, headers))
        self._tunnel = tunnel = streams.FrontTunnel(self)
        self._current = self._undecided = None
        self._last = True
        self._mode = TUNNEL
        behind, self._behind = self._behind, b""
        self._resume(MUCH_BEHIND)
        tunnel.feed(behind)
        return tunnel

    def _switched(self, rest: memoryview) -> None:
        """Continue after the parser has stopped behind a head that asks to switch protocols."""
        if self._successor:
            self._hand_over(bytes(rest))
            return
        while True:
            if self._behind_upgrade is not None:
                if not self._go_on_with_body(*self._behind_upgrade):
                    return
            else:
                self._parser = httptools.HttpRequestParser(self)
            if self._mode == TUNNEL and self._tunnel is not None:
                self._tunnel.feed(bytes(rest))
                return
            if self._mode or self._last:
                return
            if self._undecided is not None:
                self._mode = UNDECIDED
                self._behind = bytes(rest)
                return
            if not rest:
                if self._phase:
                    self._unfinished()
                return
            # The server can ignore an `Upgrade` (RFC 9110 section 7.8); the bytes after it are parsed.
            self._bytes_since_progress = len(rest)
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self._unreadable(error, bytes(rest))
                return
            else:
                if self._phase:
                    self._unfinished()
                return

    def _go_on_with_body(self, exchange: H1Exchange, left: int) -> bool:
        """Receive the body of a request with an ignored `Upgrade`; return False if no more is received."""
        self._behind_upgrade = None
        self._incoming, self._left, self._phase = exchange, left, BODY
        self._parser = parser_in_body(self, left)
        try:
            self._begin_body(exchange, None if left < 0 else left)
        except PenstockError as error:
            self._refuse(error)
        except _EndedError:
            pass
        return self._mode == PARSE

    # -- time and the end -----------------------------------------------------------------------------------

    def overdue(self, now: float) -> bool:
        """Whether the peer is late.

        Args:
            now: the value of `H1Front.now`, in seconds.
        """
        if self._paused:
            untaken = untaken_bytes(self._transport)
            if untaken != self._stuck_bytes:
                self._stuck_bytes, self._stuck_since = untaken, now
            return now - self._stuck_since > limits.WRITE_SECONDS + limits.SWEEP_SECONDS
        if self._tunnel is not None or self._holders or self._undecided is not None:
            return False
        if self._current is not None and (self._reader is None or self._continue):
            return False  # the client waits for the service
        if self._lingering:
            patience = limits.LINGER_SECONDS
        elif self._phase == PLAIN:
            # NB: `_since` can be a whole sweep old when a connection is made.
            ends = self._fresh and self._listener.closes_idle
            patience = limits.SWEEP_SECONDS if ends else limits.IDLE_SECONDS
        else:
            patience = limits.HEAD_SECONDS if self._phase == HEAD else limits.BODY_SECONDS
        return now - self._since > patience + limits.SWEEP_SECONDS

    def expire(self) -> None:
        """Close because the peer is late; answer 408 if it was in the middle of a request."""
        if self._paused or self._lingering:
            self._cut()
        elif self._phase == PLAIN:
            if nothing_waits(self._transport):
                self._transport.close()
        else:
            self._refuse(
                PenstockError(Reason.BAD_REQUEST, "expected the rest of the request in time", status=408)
            )
