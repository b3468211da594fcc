"""A gRPC call that passes to the model as it is, its messages both ways as they come.

If all of it has come in one turn of the loop, as that of a unary call has, its body is whole: the router can
send it to another pod. Otherwise the body is a stream, of which a client sends only what is read.
"""

from __future__ import annotations

import asyncio

from penstock_wire.framing.bodies import Allowance, BodyReceiver
from penstock_wire.headers import get
from penstock_wire.http import Response
from penstock_wire.http.messages import Trailers
from penstock_wire.http.server import streams
from penstock_wire.http2 import frames, status
from penstock_wire.http2.call import Call
from penstock_wire.http2.head import GRPC, answer_block, literal
from penstock_wire.process import log


class _Credit(Allowance):
    """Credit for a call's body."""

    __slots__ = ("call",)

    def __init__(self, call: PassedCall) -> None:
        super().__init__(call.carrier, call.number, frames.STREAM_WINDOW)
        self.call: PassedCall | None = call  # until it ends

    def credit(self, size: int) -> bytes:
        if self.call is None:
            return b""
        self.call.due -= size
        return frames.window_update(self.number, size)


class PassedCall(Call):
    """One call, on its stream."""

    __slots__ = ("_credit", "_trailers")

    def begun(self) -> None:
        self._credit: _Credit | None = None
        self._trailers: Trailers | None = None
        super().begun()
        self.request.trailers = True
        if not self.answered:
            asyncio.get_running_loop().call_soon(self._begin_stream)

    def _begin_stream(self) -> None:
        if self.complete or self.answered or self.stopped:
            return
        self._credit = credit = _Credit(self)
        self.receiver = receiver = BodyReceiver(credit)
        for piece in self.pieces:
            receiver.feed(piece)
        self.pieces.clear()
        self.request.stream = receiver
        self.carrier.start(self)

    def take(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        if self.receiver is not None:
            self.receiver.feed(piece)
        elif not self.answered:
            self.pieces.append(piece)

    def ended(self) -> None:
        if self.receiver is not None:
            self.receiver.finish()
        elif not self.answered:
            self.request.body = self.body()
            self.carrier.start(self)

    def stop(self) -> None:
        if self.receiver is not None and not self.complete:
            self.receiver.fail("the call ended before its request did")
        if self._credit is not None:
            self._credit.call = None  # it refers to this
        super().stop()

    # -- the answer -----------------------------------------------------------------------------------------

    def respond(self, response: Response) -> None:
        if not (get(response.headers, b"content-type") or b"").startswith(GRPC):
            super().respond(response)
            return
        try:
            block = answer_block(response.status, response.headers, response.lines)
        except (ValueError, TypeError) as error:
            log("answer cannot be sent", level="error", error=repr(error))
            if response.stream is not None:
                streams.close_in_background(response.stream)
            self._end_with(status.INTERNAL, "the model's answer cannot be sent")
            return
        self._trailers = response.trailers
        if response.stream is None:
            self.send(block, response.body, self._rendered())
        else:
            self.carrier.send_head(self, block, ended=False)
            self.carrier.run(self, response.stream, response.length)

    def _respond(self, response: Response) -> None:
        if not self.stopped and 200 <= response.status < 300:
            self._end_with(status.UNKNOWN, "expected an answer of gRPC from the model")
        else:
            super()._respond(response)

    def _rendered(self) -> bytes:
        if self._trailers is None:
            return b""
        return b"".join([literal(name, value) for name, value in self._trailers.fields])

    def sent(self) -> None:
        self.task = None
        if not self.stopped:
            trailers = self._rendered()
            self.finish(last=self._end_frames(trailers) if trailers else b"")

    def break_off(self) -> None:
        self.task = None
        if not self.stopped:
            self.send_trailers(status.trailers(status.UNAVAILABLE, "the answer broke off before its end"))
