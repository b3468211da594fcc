"""Reads the requests of one connection: the parser's callbacks fill an exchange, the connection takes it.

In words:

- `mode` says where received bytes go: to the parser (`PARSE`); past it, to a body of known length (`BYPASS`);
  to a tunnel (`TUNNEL`); into `_behind` while it is undecided whether the connection will switch protocols
  (`UNDECIDED`); nowhere, once no further request is read (`DROP`).
- `phase` says what comes next: a request, the rest of a head, the rest of a body.
- `incoming` is the exchange being received, with its body's stream in `inbound`, if it has one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import httptools

from penstock_wire._mypyc import mypyc_attr
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request
from penstock_wire.http.head_cache import HeadCache, RequestHead
from penstock_wire.http.memory import PIECE_BYTES, REQUEST_BYTES, MemoryBound, does_not_fit
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits, streams
from penstock_wire.http.server.exchange import H1Exchange, Owner
from penstock_wire.http.server.turns import TakesTurns
from penstock_wire.http.server.upgrade_body import parser_in_body
from penstock_wire.process import log

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server

PLAIN: Final = 0
HEAD: Final = 1
BODY: Final = 2

PARSE: Final = 0
BYPASS: Final = 1
TUNNEL: Final = 2
UNDECIDED: Final = 3
DROP: Final = 4

LINE_IS_LONG: Final = 1  # reasons to pause reading
_STREAM_IS_FULL: Final = 2
_MUCH_BEHIND: Final = 4
NOT_ITS_TURN: Final = 8

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_SPECIAL = heads.SPECIAL
_METHODS = heads.METHODS
_MAX_FIELDS = limits.MAX_FIELDS


@mypyc_attr(native_class=False)
class _EndedError(Exception):
    """Stops the parser within the received bytes: nothing after that place will be served."""


class RequestReader(TakesTurns):
    """Reads the requests of one connection; a `streams.Carrier`.

    Args:
        connection: takes the requests.
        front: its front.
        listener: the address that it came to.
    """

    __slots__ = (
        "_behind",
        "_behind_upgrade",
        "_bytes_since_progress",
        "_candidate",
        "_connection",
        "_fields",
        "_front",
        "_held",
        "_host",
        "_known",
        "_last_head",
        "_learning",
        "_listener",
        "_memory",
        "_parser",
        "_pieces",
        "_special",
        "_successor",
        "_transport",
        "_url",
        "body_bytes",
        "fresh",
        "holders",
        "inbound",
        "incoming",
        "last",
        "left",
        "mode",
        "peer",
        "phase",
        "since",
        "tunnel",
        "undecided",
        "wants_continue",
    )
    __deletable__ = ("_connection",)

    def __init__(self, connection: Owner, front: Server, listener: ListenerState) -> None:
        self._connection = connection
        self._front = front
        self._listener = listener
        self._memory: MemoryBound = front.memory
        self._transport: asyncio.Transport
        self.peer = ""
        self._parser: Any = httptools.HttpRequestParser(self)
        self.mode = PARSE
        self.phase = PLAIN
        self.since = front.now
        """When the phase began, or its last progress, without the time that the service took."""
        self.fresh = True
        """No request has come yet."""
        self.last = False
        """No further request is read."""
        self.holders = 0
        """Reasons to pause reading."""
        # the head that is being received
        self._url = b""
        self._fields: heads.Fields = []
        self._special: heads.Fields = []
        self._host = b""  # the last well-formed Host
        # heads that came before
        self._known: HeadCache | None = listener.known
        self._last_head: RequestHead | None = None  # the last that came again
        self._learning = False  # the request being parsed can be worth keeping
        self._candidate: RequestHead | None = None  # the last to keep, while parsing
        # the request that is being received
        self.incoming: H1Exchange | None = None
        self.inbound: streams.Inbound | None = None
        self._pieces: list[bytes] = []
        self.body_bytes = 0
        """Bytes of the body that have come."""
        self.left = 0
        """Bytes of the body to come, -1 = unknown."""
        self.wants_continue = False
        """The client gets 100 Continue when its turn comes."""
        self._bytes_since_progress = 0  # received since the last complete head or part of a body
        self._held = 0  # bytes of it that the front counts as unfinished
        # switching protocols
        self.undecided: H1Exchange | None = None
        """The exchange whose service can switch protocols."""
        self.tunnel: streams.FrontTunnel | None = None
        self._behind = b""
        self._behind_upgrade: tuple[H1Exchange, int] | None = (
            None  # a head with a body that the parser does not read
        )
        self._successor = b""  # the Penstock protocol that the client asks for

    def begin(self, transport: asyncio.Transport, peer: str) -> None:
        """Read from a new connection.

        Args:
            transport: of the connection.
            peer: the client's address.
        """
        self._transport = transport
        self.peer = peer

    # -- the end --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Read no further request; bytes that still come are dropped."""
        self.last = True
        self.mode = DROP
        self.phase = PLAIN
        self.undecided = None
        self._fields, self._special, self._pieces, self._behind = [], [], [], b""
        self._hold(0)

    def close(self) -> None:
        """Read nothing more; drop the references to the connection, and to this."""
        self.stop()
        tunnel, self.tunnel = self.tunnel, None
        if tunnel is not None:
            tunnel.fail("the client went away")
        self._parser = None
        del self._connection

    def let_go(self, why: str) -> H1Exchange | None:
        """Return the exchange being received, which gets no more of its body.

        Args:
            why: what the reader of its body's stream gets as the reason.
        """
        inbound, self.inbound = self.inbound, None
        incoming, self.incoming = self.incoming, None
        if inbound is not None:
            inbound.fail(why)
        return incoming

    def drop_body(self, why: str) -> None:
        """Drop the rest of the body that is being received.

        Args:
            why: what the reader of its stream gets as the reason.
        """
        inbound, self.inbound = self.inbound, None
        if inbound is not None:
            inbound.fail(why)
        self.body_bytes = 0  # dropped bytes count from here

    def resting(self) -> bool:
        """Whether nothing of a further request has come."""
        return self.phase == PLAIN and not self._behind

    def overdue(self, now: float) -> bool:
        """Whether what is waited for is late.

        Args:
            now: the value of `H1Front.now`, in seconds.
        """
        if self.phase == PLAIN:
            # NB: `since` can be a whole sweep old when a connection is made.
            ends = self.fresh and self._listener.closes_idle
            patience = limits.SWEEP_SECONDS if ends else limits.IDLE_SECONDS
        else:
            patience = limits.HEAD_SECONDS if self.phase == HEAD else limits.BODY_SECONDS
        return now - self.since > patience + limits.SWEEP_SECONDS

    # -- calls from streams (`streams.Carrier`), and 100 Continue ------------------------------------------

    def hold(self, source: streams.Inbound) -> None:
        self._front.unread.add(self)
        self.pause(_STREAM_IS_FULL)

    def release(self, source: streams.Inbound) -> None:
        self._front.unread.discard(self)
        self.since = self._front.now
        self.resume(_STREAM_IS_FULL)

    def wanted(self) -> None:
        if self.wants_continue and self._connection.current is self.incoming:
            self._send_continue()

    def continue_in_turn(self) -> None:
        """Send 100 Continue once all earlier requests are answered; for a stream its reader does so."""
        if self.wants_continue and self.inbound is None and not self._connection.busy():
            self._send_continue()

    def _send_continue(self) -> None:
        self.wants_continue = False
        self.since = self._front.now  # until now the service was late, not the client
        if not self.body_bytes:  # RFC 9110 section 10.1.1: not if the body has begun to come
            self._transport.write(_CONTINUE)

    # -- pausing, and what is kept --------------------------------------------------------------------------

    def pause(self, holder: int) -> None:
        """Pause reading for one reason."""
        if not self.holders and not self._transport.is_closing():
            self._transport.pause_reading()
        self.holders |= holder

    def resume(self, holder: int) -> None:
        """Resume reading if there is no other reason to pause."""
        if self.holders & holder:
            self.holders &= ~holder
            if not self.holders and not self._transport.is_closing():
                self._transport.resume_reading()

    def await_turn(self) -> None:
        self.pause(NOT_ITS_TURN)

    def take_turn(self) -> None:
        self.resume(NOT_ITS_TURN)

    def kept(self, current: H1Exchange | None) -> int:
        """Return the bytes that are kept of what is not in line.

        Args:
            current: the exchange under way, which is not counted.
        """
        pieces, incoming = self._pieces, self.incoming
        kept = len(self._behind)
        if self.phase:
            fields = heads.size("", tuple(self._fields)) + heads.size("", tuple(self._special))
            kept += max(self._bytes_since_progress, fields + len(self._url))
        if pieces:
            kept += self.body_bytes + PIECE_BYTES * len(pieces)
        if incoming is not None and incoming is not current:
            kept += incoming.kept() if self.inbound is None else self.inbound.kept()
        if self.tunnel is not None:
            kept += self.tunnel.kept()
        return kept

    def _count_unfinished(self) -> int:
        """Count the bytes held of an incomplete request, without a stream's body; return `_hold`'s result."""
        held = self._bytes_since_progress + heads.FIELD_BYTES * (len(self._fields) + len(self._special))
        incoming = self.incoming
        if incoming is not None and incoming.connection is not None:
            held += heads.size(incoming.request.target, incoming.request.headers)
            if self.inbound is None:
                held += self.body_bytes + max(0, self.left)
        return self._hold(held)

    def _hold(self, held: int) -> int:
        """Set the bytes held of an unfinished request; return those of all connections."""
        self._front.unfinished_bytes += held - self._held
        self._held = held
        return self._front.unfinished_bytes

    # -- bytes in -------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take received bytes: feed the parser, unless `mode` says otherwise."""
        self._memory.came(len(data))
        if self.mode:
            self._around(data)
            return
        known = self._known
        # NB: the parser has no part of the next request, so the meaning of these bytes depends on them alone.
        look = (
            known is not None
            and not (self.phase or self._bytes_since_progress or self.last)
            and known.awake()
        )
        if look and known is not None:
            head = known.find(data, self._last_head)
            if isinstance(head, RequestHead):
                if len(data) - len(head.raw) == head.length:
                    self._take(head, data)
                else:  # as `http.client` sends, and so `requests`
                    self._await_body(head)
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
            if known is not None and self._candidate is not None:
                known.learn(data, self._candidate, whole=not self.phase)
            if self.phase:
                self._unfinished()
        if look:
            self._learning = False
            self._candidate = None

    def _take(self, head: RequestHead, data: bytes) -> None:
        """Take a whole request with a head that came before, as the parser's callbacks would."""
        self._last_head = head
        self.fresh = False
        self.since = self._front.now
        self._memory.room -= head.size
        body = data[len(data) - head.length :] if head.length else b""
        request = Request(head.method, head.target, head.fields, body, self.peer)
        exchange = H1Exchange(self._connection, request, keep=True)
        exchange.complete = True
        exchange.plain = head.plain
        self._connection.enqueue(exchange)

    def _await_body(self, head: RequestHead) -> None:
        """Begin a request with a head that came before; its body comes in the next pieces."""
        self._last_head = head
        self.fresh = False
        self.since = self._front.now
        self._memory.room -= head.size
        request = Request(head.method, head.target, head.fields, b"", self.peer)
        self.incoming = H1Exchange(self._connection, request, keep=True)
        self.left = head.length
        self.phase = BODY
        self._unfinished()

    def _unreadable(self, error: Exception, data: bytes) -> None:
        http2 = self._front.http2
        before = self._bytes_since_progress - len(data)
        left = heads.PREFACE[before:] if 0 <= before < len(heads.PREFACE) else b""
        if http2 is not None and left and data.startswith(left) and not self._connection.busy():
            self._connection.hand_over(http2, data[len(left) :])
        elif not self.last:  # else this connection itself stopped the parser
            cause = error.__context__
            refusal = cause if isinstance(cause, PenstockError) else heads.cannot_read(error, data)
            self._connection.refuse(refusal)

    def _around(self, data: bytes) -> None:
        """Take received bytes that are not for the parser."""
        mode = self.mode
        if mode == BYPASS:
            left = self.left
            if len(data) < left:
                self.on_body(data)
                return
            self.mode = PARSE
            self.on_body(data[:left])
            self._parser = httptools.HttpRequestParser(self)  # the old one still waits for this body
            rest = data[left:]
            try:
                self.on_message_complete()
            except _EndedError:
                return
            if rest:
                self.feed(rest)
        elif mode == TUNNEL and self.tunnel is not None:
            self.tunnel.feed(data)
        elif mode == UNDECIDED:
            self._behind += data
            if len(self._behind) > limits.BUFFER_BYTES:
                self.pause(_MUCH_BEHIND)

    def _unfinished(self) -> None:
        """Check an incompletely received request against the limits."""
        if self.last:
            return
        front = self._front
        if self._bytes_since_progress > front.max_head_bytes:
            self._connection.refuse(heads.head_too_large(self._url, front.max_head_bytes))
        elif max(len(self._fields), len(self._special)) > _MAX_FIELDS:
            error = heads.fields_too_large(f"expected at most {_MAX_FIELDS} header fields")
            self._connection.refuse(error)
        elif front.max_unfinished_bytes and self._count_unfinished() > front.max_unfinished_bytes:
            self._connection.refuse(heads.no_room())
        elif self.phase == BODY:
            if self.left > 0:
                self.mode = BYPASS  # the next bytes are body to its end, and need no parser
            self.continue_in_turn()

    # -- the parser's callbacks -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Take the first byte of a request."""
        if self.last:
            raise _EndedError
        self.fresh = False
        self.phase = HEAD
        self.since = self._front.now

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
        self.phase = BODY
        # NB: without a Connection field the parser keeps only connections of HTTP/1.1.
        old = kept and parser.get_http_version() != "1.1"
        if common and hosts == 1 and not old and parser.should_keep_alive():
            request = Request(method, url.decode(), tuple(fields), b"", self.peer)  # type: ignore[arg-type]
            self.incoming = exchange = H1Exchange(self._connection, request, keep=True)
            if length:
                self.left = length
                if length > self._listener.whole_bytes:
                    self._begin_body(exchange, length)
                    return
            if self._learning:
                self._candidate = RequestHead(request.method, request.target, request.headers, length)
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
        request = Request(method, target, tuple(fields), b"", self.peer)
        self.incoming = exchange = H1Exchange(self._connection, request, keep=framing.keep)
        exchange.old = framing.old
        self.left = -1 if framing.chunked else framing.length
        self.wants_continue = exchange.expects = framing.expects and self.left != 0
        upgrades = framing.keep and parser.should_upgrade()
        if self.left and parser.should_upgrade():
            # NB: httptools reads no body after an `Upgrade`: it would read the body as the next request.
            self._behind_upgrade = (exchange, self.left)
            self.incoming = None
        elif self.left:
            self._begin_body(exchange, None if framing.chunked else framing.length)
        elif upgrades and target == "*" and framing.upgrade.lower() in self._listener.successors:
            # NB: only for the server itself (`*`): a proxy forwards upgrades of paths.
            if self._listener.closing or self._connection.busy():
                expected = "expected no further connection of this kind, or one that has no other request"
                raise PenstockError(Reason.DRAINING, expected)
            self._successor = framing.upgrade.lower()
            self.incoming = None
        elif framing.upgrade and upgrades:
            request.upgrade = framing.upgrade
            if self._listener.streams is not None:
                self.undecided = exchange

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
                request.stream = self.inbound = streams.Inbound(self)
                self._connection.enqueue(exchange)
                if self.mode == DROP:
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
        if self.left > 0:
            self.left -= size
        self.body_bytes += size
        if self.inbound is not None:
            self.since = self._front.now
            self.inbound.feed(part)
            return
        incoming = self.incoming
        if incoming is None or incoming.connection is None:
            # Answered before its end: drop a little of it, to keep the connection (RFC 9112 section 9.3).
            if self.body_bytes > limits.DRAIN_BYTES:
                self._connection.end_now()
            return
        if self.body_bytes > self._front.max_body_bytes:
            raise self._too_large("a larger one")
        self._pieces.append(part)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        if self.last:
            raise _EndedError
        exchange, self.incoming = self.incoming, None
        self._bytes_since_progress = self.left = 0
        if self._held:
            self._hold(0)
        self.phase = PLAIN
        self.since = self._front.now
        if self._special or self._fields:  # trailers
            self._fields, self._special = [], []
            self._known = None  # a trailer can make the parser end the connection
        if exchange is None:
            return
        request = exchange.request
        exchange.complete = True
        exchange.plain = exchange.keep and not exchange.old and request.method != "HEAD"
        if self.body_bytes:
            self.body_bytes = 0
            pieces = self._pieces
            if pieces:
                request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
        self.wants_continue = False
        if not exchange.keep:
            self.last = True
        inbound = self.inbound
        if inbound is not None:
            self.inbound = None
            self._connection.stream_came(exchange, inbound.kept())
            inbound.finish()
        elif request.stream is None:  # else the service has it already
            self._connection.enqueue(exchange)
        if self.last and self.mode != TUNNEL:
            self.mode = DROP
            raise _EndedError

    def _too_large(self, actual: str) -> PenstockError:
        fields = self.incoming.request.headers if self.incoming is not None else ()
        return heads.body_too_large(fields, self._front.max_body_bytes, actual)

    # -- switching protocols --------------------------------------------------------------------------------

    def into(self, tunnel: streams.FrontTunnel) -> None:
        """Read no further request: all bytes go to a tunnel."""
        self.tunnel = tunnel
        self.undecided = None
        self.last = True
        tunnel.feed(self._go_on(TUNNEL))

    def decided(self) -> None:
        """Read on after an exchange that did not switch protocols."""
        if self.mode == UNDECIDED and self.undecided is None:
            behind = self._go_on(PARSE)
            if behind:
                self.feed(behind)

    def _go_on(self, mode: int) -> bytes:
        """Take what came while it was undecided."""
        behind, self._behind = self._behind, b""
        self.mode = mode
        self.resume(_MUCH_BEHIND)
        return behind

    def _switched(self, rest: memoryview) -> None:
        """Continue after the parser has stopped behind a head that asks to switch protocols."""
        if self._successor:
            fields = ((b"connection", b"upgrade"), (b"upgrade", self._successor))
            self._transport.write(heads.interim_head(101, fields))
            self._connection.hand_over(self._listener.successors[self._successor], bytes(rest))
            return
        while True:
            if self._behind_upgrade is not None:
                if not self._go_on_with_body(*self._behind_upgrade):
                    return
            else:
                self._parser = httptools.HttpRequestParser(self)
            if self.mode == TUNNEL and self.tunnel is not None:
                self.tunnel.feed(bytes(rest))
                return
            if self.mode or self.last:
                return
            if self.undecided is not None:
                self.mode = UNDECIDED
                self._behind = bytes(rest)
                return
            if not rest:
                if self.phase:
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
                if self.phase:
                    self._unfinished()
                return

    def _go_on_with_body(self, exchange: H1Exchange, left: int) -> bool:
        """Receive the body of a request with an ignored `Upgrade`; return False if no more is received."""
        self._behind_upgrade = None
        self.incoming, self.left, self.phase = exchange, left, BODY
        self._parser = parser_in_body(self, left)
        try:
            self._begin_body(exchange, None if left < 0 else left)
        except PenstockError as error:
            self._connection.refuse(error)
        except _EndedError:
            pass
        return self.mode == PARSE
