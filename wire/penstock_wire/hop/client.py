"""A router's end of a hop: many calls under way on one connection.

When a connection ends, all its calls fail. These fail as surely not executed: requests that had not left this
process; requests that the server's goodbye excludes; and, if a kernel resets the connection, the request that
was sent last of all, since a kernel resets only a connection with unread bytes.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final, Protocol

from penstock_wire.framing.call import FramedCall
from penstock_wire.framing.client import FramedClient
from penstock_wire.headers import Headers
from penstock_wire.hop import frames, heads
from penstock_wire.hop.bodies import BodySender, HopAllowance
from penstock_wire.hop.end import HopEnd
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectionLost,
    Opened,
    Request,
    UpstreamError,
)
from penstock_wire.http.client.head import MAX_HEAD_BYTES
from penstock_wire.http.client.peer_liveness import nothing_waits
from penstock_wire.http.client.pool import LOOK_SECONDS
from penstock_wire.http.server.head import METHODS
from penstock_wire.process import log

_pack: Final = frames.HEADER.pack
_METHODS: Final = frozenset(METHODS.values())


def _nothing() -> None:
    """Do nothing."""


class HopPool(Protocol):
    """The pool that a connection belongs to: also a `ClientPool`."""

    def leaves(self, connection: FramedClient) -> None:
        """See `ClientPool.leaves`."""
        ...

    def forget(self, connection: FramedClient) -> None:
        """See `ClientPool.forget`."""
        ...

    def silent(self, connection: FramedClient) -> None:
        """See `ClientPool.silent`."""
        ...

    def room(self, connection: HopClient, free: int, waiting: int, capacity: int) -> None:
        """Take a server's room: items that start at once now, that wait, and that start at once when idle."""
        ...

    def recalled(self, connection: HopClient, count: int) -> None:
        """Take the number of items whose requests a server has handed back after a recall."""
        ...


class HopClient(FramedClient, HopEnd):
    """The router's end of one connection.

    Args:
        pool: the pool that it belongs to.
        key: host and port of the peer.
        loop: the running loop.
        transport: the connection.
    """

    def __init__(
        self,
        pool: HopPool,
        key: tuple[str, int],
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
    ) -> None:
        super().__init__(pool, key, loop, transport, frames.HEADER_BYTES)
        self._hop_pool = pool
        self._flushed = 0  # the last request that was given to the transport
        self._tail = 0  # the request that ends with the last bytes sent; 0 = none
        self._unread = 0  # the request that the server surely did not read; 0 = none
        self._slots: list[heads.AnswerHead | None] = [None] * frames.SLOTS
        self._sent = heads.SlotTable()
        self._latest: Headers | None = None  # fields of the last request; its target and method follow
        self._latest_target = ""
        self._latest_method = ""
        self._latest_slot = 0

    # -- requests out ---------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the server takes no request here now, for a while."""
        return self._paused or len(self._calls) >= frames.MAX_REQUESTS

    def takes(self, request: Request) -> bool:
        """Whether a request can be sent here now."""
        if not self.reusable or self.is_full or self.ended or request.fresh or request.upgrade:
            return False
        if request.method not in _METHODS or self.transport.is_closing():
            return False
        if request.expects:
            return False  # a hop cannot answer `Expect`
        # NB: the loop may not yet have reported the end of an idle connection.
        return bool(self._calls) or (
            time.monotonic() - self.idle_since < LOOK_SECONDS or nothing_waits(self.transport)
        )

    def begin(
        self, request: Request, timeout: float, idle: float, whole_bytes: int, opened: Opened
    ) -> FramedCall:
        """Send a request; see `Upstream.begin`."""
        shared, lines = request.headers, request.lines
        try:
            if not lines:
                shared, own = heads.split(shared)
                lines = heads.write_lines(own)
            if len(lines) > frames.MAX_OWN:
                shared, lines = request.fields, b""
            slot = self._slot(request.method, request.target, shared)
        except ValueError as error:
            raise UpstreamError(f"the request for {self.where} cannot be sent: {error}") from error
        body = request.body
        self._number = number = self._number + 1
        call = FramedCall(self, self._loop, number, request, timeout, idle, whole_bytes, opened)
        self._calls[number] = call
        size = len(lines)
        stream = request.stream
        flags = frames.TAKES_TRAILERS if request.trailers else 0
        if stream is None and len(body) <= frames.PIECE_BYTES:
            flags |= frames.END
            self.send(_pack(size + len(body), number, size, frames.REQUEST, flags, slot) + lines + body)
            self._tail = number
        else:
            length = len(body) if stream is None else request.length
            length_field = b"" if length is None else frames.LONG.pack(length)
            if length is not None:
                flags |= frames.LENGTH
            self.send(
                _pack(size + len(length_field), number, size, frames.REQUEST, flags, slot)
                + length_field
                + lines
            )
            sender = BodySender(self, number, _nothing)
            if stream is None:
                call.sender = sender
                sender.finish(body)
            else:
                call.send_stream(sender, stream, length)
        call.deadline = deadline = time.monotonic() + timeout
        self._timer.ring_at(deadline)
        if number >= frames.LAST_NUMBER - 1:  # numbers are used up: further requests need another connection
            self.reusable = False
            self._pool.leaves(self)
        return call

    def _slot(self, method: str, target: str, fields: Headers) -> int:
        if fields is self._latest and target == self._latest_target and method == self._latest_method:
            return self._latest_slot
        key = (method, target, fields)
        slot = self._sent.find(key)
        if slot < 0:
            block = heads.write_request(method, target, fields, self.where)
            if len(block) > frames.MAX_PAYLOAD:
                raise ValueError(f"expected a head of at most {frames.MAX_PAYLOAD} bytes")
            slot = self._sent.put(key, len(block), len(fields))
            self.send(frames.frame(frames.HEAD, 0, block, slot=slot))
        self._latest, self._latest_target, self._latest_method = fields, target, method
        self._latest_slot = slot
        return slot

    def send(self, data: bytes) -> None:
        self._tail = 0
        super().send(data)

    def _flush(self) -> None:
        self._flushed = self._number
        super()._flush()

    def recall(self, count: int) -> None:
        """Ask for unstarted requests of `count` items back; they are answered as not executed."""
        self.send(frames.recall(count))

    # -- answers in -----------------------------------------------------------------------------------------

    def frame_received(
        self, kind: int, flags: int, slot: int, number: int, own: int, data: bytes, start: int, end: int
    ) -> None:
        if kind == frames.ANSWER:
            self._answered(flags, slot, number, own, data, start, end)
        elif kind == frames.HEAD:
            if slot >= frames.SLOTS or (slot and end - start > frames.SLOT_BYTES):
                raise ValueError(f"expected a head in one of {frames.SLOTS} slots, found {slot}")
            self._slots[slot] = heads.read_answer(data[start:end])
        elif kind == frames.GOODBYE:
            last = frames.read_number(data[start:end])
            why = data[start + frames.NUMBER.size : end].decode("utf-8", "replace")
            self._leave(last, why)
        elif kind == frames.ROOM:
            free, waiting, last = frames.read_room(data[start:end])
            if last > self._number:
                raise ValueError(f"expected a number up to {self._number}, found {last}")
            # Requests that the server has not yet counted will use their part of the room.
            # NB: the slot of this frame is the capacity. Older sidecars send 0, older routers ignore it.
            self._hop_pool.room(self, max(0, free - (self._number - last)), waiting, slot)
        elif kind == frames.RECALL:
            self._hop_pool.recalled(self, frames.read_number(data[start:end]))
        elif kind in (frames.BODY, frames.CREDIT, frames.CANCEL, frames.INTERIM, frames.TRAILERS):
            call = self._calls.get(number)
            if call is not None:
                self._for_call(call, kind, flags, data[start:end])
            elif not 0 < number <= self._number:
                raise ValueError(f"expected a number up to {self._number}, found {number}")
        else:
            raise ValueError(f"expected a server's frame, found kind {kind}")

    def _answered(
        self, flags: int, slot: int, number: int, own: int, data: bytes, start: int, end: int
    ) -> None:
        head = self._slots[slot] if slot < len(self._slots) else None
        if head is None:
            raise ValueError(f"expected a slot with a head, found {slot}")
        length: int | None = None
        if flags & frames.LENGTH:
            length = frames.read_length(data, start, end)
            start += frames.LONG.size
        body = start + own
        if body > end:
            raise ValueError("expected own fields within their frame")
        call = self._calls.get(number)
        headers, lines = head.fields, b""
        if own:
            lines = data[start:body]
            if not heads.are_usual(lines) or (call is not None and call.whole_bytes < 0):
                headers, lines = headers + heads.read_answer_lines(lines), b""
        if call is None:  # it was given up
            if not 0 < number <= self._number:
                raise ValueError(f"expected a number up to {self._number}, found {number}")
        elif call.answered:
            raise ValueError(f"expected one answer to request {number}, found another")
        elif flags & frames.END:
            del self._calls[number]
            call.deadline = math.inf
            self._rest()
            call.whole(head.status, headers, data[body:end], length, lines)
        elif body < end:
            raise ValueError("expected a body behind an answer's head only where it is whole")
        else:
            call.allowance = HopAllowance(self, number)
            call.begins(head.status, headers + heads.read_answer_lines(lines), length)

    def _for_call(self, call: FramedCall, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.BODY:
            try:
                ended = call.piece(payload, ended=bool(flags & frames.END))
            except AnswerUnreadable as error:
                self.give_up(call, error)
                return
            if ended:
                self._is_over(call)
        elif kind == frames.TRAILERS:
            call.trailers(heads.end_to_end(heads.read_lines(payload)))
            call.piece(b"", ended=True)
            self._is_over(call)
        elif kind == frames.CREDIT:
            if call.sender is not None:
                call.sender.add(frames.read_number(payload))
        elif kind == frames.CANCEL:
            del self._calls[call.number]
            self._rest()
            call.fail(ConnectionLost(f"the answer of {self.where} ended before its end"))
        else:
            if len(payload) < frames.STATUS.size:
                raise ValueError("expected the status of an interim answer")
            status = int(frames.STATUS.unpack_from(payload)[0])
            if not 102 <= status <= 199:
                raise ValueError(f"expected an interim answer, found {status}")
            fields = heads.end_to_end(heads.read_lines(payload[frames.STATUS.size :]))
            call.interim_bytes += frames.HEADER_BYTES + len(payload)
            if call.interim_bytes > MAX_HEAD_BYTES:
                why = f"{self.where} sent more than {MAX_HEAD_BYTES} bytes of interim answers"
                self.give_up(call, AnswerUnreadable(why))
            else:
                call.interim(status, fields)

    def _is_over(self, call: FramedCall) -> None:
        del self._calls[call.number]
        call.deadline = math.inf
        self._rest()

    def _cancel(self, call: FramedCall) -> None:
        self.send(frames.frame(frames.CANCEL, call.number))

    def _take_frame(self, data: bytes, offset: int, size: int) -> int:
        return self._take_hop_frame(data, offset, size)

    # -- the end --------------------------------------------------------------------------------------------

    def _leave(self, last: int, why: str) -> None:
        """Handle a goodbye: fail the calls that the server does not accept."""
        if why:
            log("a hop's server ended it", level="warning", server=self.where, error=why)
        self._is_left(last)

    def broken(self, why: str) -> None:
        log("a hop's server does not keep to the protocol", level="warning", server=self.where, error=why)
        self.send(frames.goodbye(0, why))
        self._flush()
        self.fail(AnswerUnreadable(f"{self.where} does not keep to {frames.PROTOCOL.decode()}: {why}"))

    def _is_unread(self, number: int) -> bool:
        return number > self._flushed or number == self._unread

    def _lost(self, *, reset: bool) -> None:
        tail = self._calls.get(self._tail)
        if reset and tail is not None and not tail.answered:
            self._unread = self._tail
        super()._lost(reset=reset)
