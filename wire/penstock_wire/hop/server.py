"""A sidecar's end of a hop: each request is an exchange of the same `Service` as those of HTTP/1.1.

In words:

- `_exchanges` has the requests without a complete answer, `_receiving` those of them with incomplete bodies.
- A fault of one request (its head, its body's size) is answered there; a fault that no Penstock client makes
  (an unknown number or slot, bytes without credit) ends the connection, with the reason.
- An end is announced: first "send nothing more", while requests on the way are still accepted, then "nothing
  beyond this number is accepted". The client closes, so that no reset overtakes what was written.

Its limits are those of the HTTP/1.1 connections that it counts among (`http.server.limits`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.framing.bodies import BodyReceiver
from penstock_wire.framing.connection import Framed
from penstock_wire.framing.served import LEFT, STAYS, Served
from penstock_wire.headers import PER_CONNECTION, Headers
from penstock_wire.hop import frames, heads
from penstock_wire.hop.bodies import BodySender, HopAllowance
from penstock_wire.hop.end import HopEnd
from penstock_wire.hop.exchange import HopExchange
from penstock_wire.hop.rooms import Room, Rooms
from penstock_wire.http import Request, Response
from penstock_wire.http.memory import REQUEST_BYTES, Keeper, does_not_fit
from penstock_wire.http.messages import NO_BODY_STATUS
from penstock_wire.http.server import head as h1_heads
from penstock_wire.http.server import limits, streams
from penstock_wire.process import log

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server

_pack = frames.HEADER.pack
_PIECE: Final = frames.PIECE_BYTES


class HopConnection(Framed, HopEnd, Served):
    """The sidecar's end of one connection.

    Args:
        front: its front.
        listener: the address that it came to.
        loop: the running loop.
        transport: the connection.
        peer: the client's address.
        known: cache of decoded heads.
        rooms: gives the room; None if it is unknown.
    """

    def __init__(
        self,
        front: Server,
        listener: ListenerState,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        peer: str,
        known: heads.KnownHeads,
        rooms: Rooms | None = None,
    ) -> None:
        super().__init__(loop, transport, frames.HEADER_BYTES)
        self._rooms = rooms
        self._announced_room: Room = (0, 0, 0)  # the room announced last
        self._announced_number = 0  # the last request that it included
        self._recalls = False  # the client asks for requests back
        self._asked_back = 0  # items that it asks for
        self._turned = False  # room, or a queue, has begun or ended, or the queue has doubled
        self.memory = front.memory
        self._service = listener.service
        self._max_head_bytes = front.max_head_bytes
        self._known = known
        self._slots: list[heads.RequestHead | None] = [None] * frames.SLOTS
        self._sent = heads.SlotTable()
        self._latest: Headers | None = None  # the fields of the last answer
        self._latest_status = 0
        self._latest_slot = 0
        self._last = 0  # the last accepted number
        self._exchanges: dict[int, HopExchange] = {}
        self._receiving: dict[int, HopExchange] = {}
        self._serve_in(front, listener, peer)

    # -- requests in ----------------------------------------------------------------------------------------

    def _take_frame(self, data: bytes, offset: int, size: int) -> int:
        return self._take_hop_frame(data, offset, size)

    def frame_received(
        self, kind: int, flags: int, slot: int, number: int, own: int, data: bytes, start: int, end: int
    ) -> None:
        if kind == frames.REQUEST:
            self._take(flags, slot, number, own, data, start, end)
        elif kind == frames.HEAD:
            if slot >= frames.SLOTS or (slot and end - start > frames.SLOT_BYTES):
                raise ValueError(f"expected a head in one of {frames.SLOTS} slots, found {slot}")
            self._slots[slot] = self._known.read(data[start:end], self._max_head_bytes)
        elif kind == frames.BODY:
            self._body(number, data[start:end], ended=bool(flags & frames.END))
        elif kind == frames.CREDIT:
            exchange = self._exchanges.get(number)
            if exchange is None:
                self._check_past(number)
            elif exchange.sender is None:
                raise ValueError("expected credit for an answer that has begun")
            else:
                exchange.sender.add(frames.read_number(data[start:end]))
        elif kind == frames.CANCEL:
            exchange = self._exchanges.get(number)
            if exchange is None:
                self._check_past(number)
            else:
                self._drop(exchange, "the client gave its request up")
        elif kind == frames.RECALL:
            self._asked_back += frames.read_number(data[start:end])
            self._recalls = True
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)
        elif kind == frames.GOODBYE:
            why = data[start + frames.NUMBER.size : end].decode("utf-8", "replace")
            log("a hop's client ended it", level="warning", peer=self._peer, error=why)
            self._finish()
        else:
            raise ValueError(f"expected a client's frame, found kind {kind}")

    def _recall(self) -> None:
        """Hand back unstarted requests of at most as many items as asked for, the latest first.

        Once per turn of the loop, however often the client asks: each time it can look at all requests.
        """
        count, self._asked_back = self._asked_back, 0
        self._recalls = False
        done = 0
        for exchange in list(reversed(self._exchanges.values())):
            if done >= count:
                break
            recall = exchange.request.recall
            if recall is not None:
                done += recall()
        self.send(frames.recall(done))

    def room_is(self, room: Room) -> None:
        """Announce the room, after this turn's answers, if room or a queue has begun, ended or doubled.

        Args:
            room: see `Rooms.share`.
        """
        announced = self._announced_room
        doubled = room[1] >= 2 * announced[1] > 0  # as other clients may send here, too
        if doubled or bool(room[0]) != bool(announced[0]) or bool(room[1]) != bool(announced[1]):
            self._turned = True
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        recalled = self._recalls
        if recalled:
            self._recall()
        if self._rooms is not None and (self._turned or self._out) and self._leaving == STAYS:
            self._turned = False
            room = self._rooms.share()
            # NB: a client subtracts what it sends from the announced room, and after a recall assumes that
            # nothing waits, until the next announcement.
            if room != self._announced_room or recalled or (room[0] and self._announced_number != self._last):
                self._announced_room, self._announced_number = room, self._last
                free, waiting, capacity = room
                self._out.append(frames.room(free, waiting, self._last, capacity))
        super()._flush()

    def _check_past(self, number: int) -> None:
        """Refuse a number that has not come; frames can still name one that was answered.

        Raises:
            ValueError: it has not come.
        """
        if not 0 < number <= self._last and self._leaving != LEFT:
            raise ValueError(f"expected a number up to {self._last}, found {number}")

    def _take(self, flags: int, slot: int, number: int, own: int, data: bytes, start: int, end: int) -> None:
        if number <= self._last:
            raise ValueError(f"expected a number beyond {self._last}, found {number}")
        if self._leaving == LEFT:
            return  # it was sent before the client read our goodbye
        head = self._slots[slot] if slot < frames.SLOTS else None
        if head is None:
            raise ValueError(f"expected a slot with a head, found {slot}")
        if len(self._exchanges) >= frames.MAX_REQUESTS:
            raise ValueError(f"expected at most {frames.MAX_REQUESTS} requests at once, found more")
        length: int | None = None
        if flags & frames.LENGTH:
            length = frames.read_length(data, start, end)
            start += frames.LONG.size
        body = start + own
        whole = bool(flags & frames.END)
        if body > end or (not whole and body < end):
            raise ValueError("expected own fields, and a body behind them only where it is whole")
        self._last = number
        self._progress.since = self._front.now
        self.memory.room -= REQUEST_BYTES
        request = Request(head.method, head.target, head.fields, b"", self._peer)
        request.trailers = bool(flags & frames.TAKES_TRAILERS)
        exchange = HopExchange(self, number, request)
        exchange.since = self._progress.since
        self._exchanges[number] = exchange
        error = head.error
        if error is None:
            try:
                request.headers = heads.joined(head, data[start:body], self._max_head_bytes)
                request.shared = head.fields
            except PenstockError as refusal:
                error = refusal
        most = self._front.max_body_bytes
        if error is None and end - body > most:
            error = h1_heads.body_too_large(request.headers, most, f"{end - body}")
        if not whole:
            exchange.allowance = HopAllowance(self, number)
            exchange.length = length
            if error is None:
                self._begin_body(exchange, length)
                return
        if error is not None:
            exchange.answer(error.response())
            return
        if body < end:
            request.body = data[body:end]
        self._serve(exchange)

    def _serve(self, exchange: HopExchange) -> None:
        try:
            self._service(exchange)
        except (Exception, asyncio.CancelledError) as error:
            exchange.fail(error)

    def _begin_body(self, exchange: HopExchange, length: int | None) -> None:
        """Ask whether the body is to be a stream; refuse a whole one that is too large."""
        request = exchange.request
        wanted = self._listener.streams
        if wanted is not None and (length is None or length > self._listener.whole_bytes):
            request.length = length  # for `wanted`
            try:
                stream = wanted(request)
            except Exception as error:
                exchange.fail(error)
                return
            if stream:
                self._receiving[exchange.number] = exchange
                allowance = exchange.allowance
                assert allowance is not None  # noqa: S101 - for mypy
                request.stream = exchange.receiver = BodyReceiver(allowance)
                self._serve(exchange)
                return
            request.length = None
        most = self._front.max_body_bytes
        if length is not None and length > most:
            exchange.too_large(most, f"{length}")
        elif length is not None and not self.memory.fits(length):
            exchange.answer(does_not_fit(length).response())
        else:
            self._receiving[exchange.number] = exchange

    def _body(self, number: int, piece: bytes, *, ended: bool) -> None:
        exchange = self._receiving.get(number)
        if exchange is None:
            self._check_past(number)  # answered before its end, or given up
            return
        size = len(piece)
        allowance, length = exchange.allowance, exchange.length
        assert allowance is not None  # noqa: S101 - for mypy
        allowance.take(size)
        exchange.body_bytes += size
        received = exchange.body_bytes
        if length is not None and (received > length or (ended and received < length)):
            raise ValueError(f"expected a body of {length} bytes, found {received}")
        exchange.since = self._front.now
        receiver = exchange.receiver
        if receiver is not None:
            receiver.feed(piece)
            if ended:
                del self._receiving[number]
                receiver.finish()
            return
        front = self._front
        if received > front.max_body_bytes:
            exchange.too_large(front.max_body_bytes, "a larger one")
            return
        front.unfinished_bytes += size
        if size:
            exchange.pieces.append(piece)
        if ended:
            exchange.request.body = b"".join(exchange.pieces)
            exchange.allowance = None
            self._receive_no_more(exchange, "")
            self._serve(exchange)
        elif front.max_unfinished_bytes and front.unfinished_bytes > front.max_unfinished_bytes:
            exchange.answer(h1_heads.no_room().response())
        else:
            allowance.give(size)

    def _receive_no_more(self, exchange: HopExchange, why: str) -> None:
        if self._receiving.pop(exchange.number, None) is None:
            return
        if exchange.receiver is not None:
            exchange.receiver.fail(why)
        else:
            self._front.unfinished_bytes -= sum(map(len, exchange.pieces))
            exchange.pieces = []

    # -- answers out ----------------------------------------------------------------------------------------

    def answer(self, exchange: HopExchange, response: Response) -> None:
        """Send the answer of an exchange."""
        body, lines, status = response.body, response.lines, response.status
        try:
            slot = self._slot(status, response.headers)
            if len(lines) > frames.MAX_OWN:
                raise ValueError(f"expected at most {frames.MAX_OWN} bytes of its own fields")
        except (PenstockError, ValueError, TypeError) as error:
            log("answer cannot be sent", level="error", error=repr(error))
            if response.stream is not None:
                streams.close_in_background(response.stream)
            ours = PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler")
            response = (error if isinstance(error, PenstockError) else ours).response()
            body, lines, status = response.body, response.lines, response.status
            slot = self._slot(status, response.headers)
        number, own, stream = exchange.number, len(lines), response.stream
        bodiless = status in NO_BODY_STATUS or exchange.request.method == "HEAD"
        trailers = response.trailers if exchange.request.trailers else None
        if stream is None and len(body) <= _PIECE and not bodiless and trailers is None:
            self.send(_pack(own + len(body), number, own, frames.ANSWER, frames.END, slot) + lines + body)
            self._end(exchange)
            return
        # An answer to HEAD can describe a body that it leaves out.
        length = len(body) if stream is None and response.length is None else response.length
        if status in NO_BODY_STATUS or (bodiless and not length and response.length is None):
            length = None
        flags = 0 if length is None else frames.LENGTH
        length_field = b"" if length is None else frames.LONG.pack(length)
        if bodiless:
            flags |= frames.END
        self.send(
            _pack(len(length_field) + own, number, own, frames.ANSWER, flags, slot) + length_field + lines
        )
        if bodiless:
            if stream is not None:
                streams.close_in_background(stream)
            self._end(exchange)
            return
        exchange.sender = sender = BodySender(self, number, functools.partial(self._end, exchange))
        exchange.since = self._front.now
        exchange.trailers = trailers
        if stream is None:
            sender.finish(body, exchange.last_frame())
        else:
            broken = functools.partial(self._break_off, exchange)
            work = streams.send_all(exchange, stream, length, exchange.sent, broken)
            exchange.task = streams.sending(self._loop, work, stream)

    def _slot(self, status: int, fields: Headers) -> int:
        if fields is self._latest and status == self._latest_status:
            return self._latest_slot
        key = (status, fields)
        slot = self._sent.find(key)
        if slot < 0:
            kept = fields
            for name, _ in fields:
                if name in PER_CONNECTION:
                    kept = tuple([field for field in fields if field[0] not in PER_CONNECTION])
                    break
            block = heads.write_answer(status, kept)
            if len(block) > frames.MAX_PAYLOAD:
                raise PenstockError(Reason.BAD_ANSWER, f"its head has more than {frames.MAX_PAYLOAD} bytes")
            slot = self._sent.put(key, len(block), len(kept))
            self.send(frames.frame(frames.HEAD, 0, block, slot=slot))
        self._latest, self._latest_status, self._latest_slot = fields, status, slot
        return slot

    def interim(self, exchange: HopExchange, status: int, headers: Headers) -> None:
        """Send an interim answer of an exchange."""
        try:
            block = heads.write_lines(headers)
            if not 102 <= status <= 199 or len(block) > frames.MAX_OWN:
                raise ValueError(f"expected an interim answer, found {status}, {len(block)} bytes")
        except ValueError as error:
            log("interim answer cannot be sent", level="warning", error=repr(error))
            return
        self.send(frames.frame(frames.INTERIM, exchange.number, frames.STATUS.pack(status) + block))

    def _break_off(self, exchange: HopExchange) -> None:
        """End an answer early, so that no client takes the part that was sent for the whole."""
        exchange.task = None
        if exchange.number in self._exchanges:
            self.send(frames.frame(frames.CANCEL, exchange.number))
            self._end(exchange)

    def _end(self, exchange: HopExchange) -> None:
        """Remove an exchange that was answered, or that is not answered any further."""
        self._exchanges.pop(exchange.number, None)
        self._progress.since = self._front.now
        if exchange.sender is not None:
            exchange.sender.stop()
        if self._receiving:
            self._receive_no_more(exchange, "the request was answered before its end")

    def _drop(self, exchange: HopExchange, why: str) -> None:
        """End an exchange early and call its service's `gone`."""
        self._receive_no_more(exchange, why)
        self._end(exchange)
        if exchange.task is not None:
            exchange.task.cancel()
        exchange.connection = None
        gone, exchange.gone = exchange.gone, None
        if gone is not None:
            try:
                gone()
            except Exception as error:
                log("handler failed", level="error", error=repr(error))

    # -- memory ---------------------------------------------------------------------------------------------

    def keepers(self) -> Sequence[Keeper]:
        """See `memory.Connection.keepers`: many clients share it, and each request gives way by itself."""
        return [self, *self._exchanges.values()]

    def cut(self, exchange: HopExchange) -> None:
        """End an answer that has begun."""
        task = exchange.task
        self._break_off(exchange)
        if task is not None:
            task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._resume_reading()
        super().resume_writing()

    # -- time and the end -----------------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`; calls `gone` of each exchange."""
        self.ended = True
        self._front.connections.discard(self)
        self._listener.leave(self)
        if self._rooms is not None:
            self._rooms.leave(self)
        for exchange in list(self._exchanges.values()):
            self._drop(exchange, "the client went away")

    def broken(self, why: str) -> None:
        log("a hop's client does not keep to the protocol", level="warning", peer=self._peer, error=why)
        self.send(frames.goodbye(self._last, why))
        self._finish()

    def _finish(self) -> None:
        """Read nothing more, send what waits to be sent, and close."""
        self.ended = True
        self._leaving = LEFT
        self._flush()
        self.transport.close()

    def _busy(self) -> bool:
        return bool(self._exchanges)

    def _say_goodbye(self, *, last: bool) -> None:
        self.send(frames.goodbye(self._last if last else frames.LAST_NUMBER))

    def _any_late(self, now: float) -> bool:
        return any(self._late(exchange, now) for exchange in list(self._exchanges.values()))

    def _late(self, exchange: HopExchange, now: float) -> bool:
        """Whether the client keeps one exchange waiting too long, for its body or for credit."""
        sender = exchange.sender
        if sender is not None and sender.is_stuck:
            if sender.credits != exchange.credits:
                exchange.credits, exchange.since = sender.credits, now
            return now - exchange.since > limits.WRITE_SECONDS + limits.SWEEP_SECONDS
        if exchange.number not in self._receiving:
            return False
        if exchange.request.trailers and exchange.connection is None:  # its client sends when it likes
            return False
        if exchange.receiver is not None and not exchange.receiver.waited_for:
            exchange.since = now
        return now - exchange.since > limits.BODY_SECONDS + limits.SWEEP_SECONDS

    def _end_late(self) -> None:
        for exchange in list(self._exchanges.values()):
            if not self._late(exchange, self._front.now):
                continue
            if exchange.connection is None:  # it was answered
                self.cut(exchange)
            else:
                receiver = exchange.receiver
                gone, exchange.gone = exchange.gone, None
                late = PenstockError(Reason.BAD_REQUEST, "expected the rest of the body in time", status=408)
                exchange.answer(late.response())
                if receiver is not None and gone is not None:
                    gone()
