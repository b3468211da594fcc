"""One request on a hop, as the service of its server sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.framing.bodies import Allowance, BodyReceiver
from penstock_wire.headers import Headers
from penstock_wire.hop import frames, heads
from penstock_wire.hop.bodies import BodySender
from penstock_wire.http import ClientGone, Request, Response, Tunnel
from penstock_wire.http.memory import PIECE_BYTES, REQUEST_BYTES, no_room
from penstock_wire.http.messages import Trailers
from penstock_wire.http.server import streams
from penstock_wire.http.server.head import body_too_large
from penstock_wire.process import log


class AnswerLine(Protocol):
    """The connection, as its exchanges see it: `server.HopConnection`."""

    def answer(self, exchange: HopExchange, response: Response) -> None:
        """Send the answer of an exchange."""
        ...

    def interim(self, exchange: HopExchange, status: int, headers: Headers) -> None:
        """Send an interim answer of an exchange."""
        ...

    def cut(self, exchange: HopExchange) -> None:
        """End an answer that has begun."""
        ...


class HopExchange:
    """An `Exchange`; its request is complete, or has a stream."""

    __slots__ = (
        "allowance",
        "body_bytes",
        "connection",
        "credits",
        "gone",
        "length",
        "line",
        "number",
        "pieces",
        "receiver",
        "request",
        "sender",
        "since",
        "task",
        "trailers",
    )

    def __init__(self, connection: AnswerLine, number: int, request: Request) -> None:
        self.line = connection
        self.connection: AnswerLine | None = connection  # until it is answered
        self.number = number
        self.request = request
        self.gone: Callable[[], object] | None = None
        # the request's body, if it comes in pieces
        self.allowance: Allowance | None = None
        self.receiver: BodyReceiver | None = None
        self.pieces: list[bytes] = []
        self.body_bytes = 0
        self.length: int | None = None
        # the answer's body, if it goes in pieces
        self.sender: BodySender | None = None
        self.trailers: Trailers | None = None
        self.task: asyncio.Task[None] | None = None
        self.credits = 0  # credits that its client had given at the last look
        self.since = 0.0  # when it came, or its client last made progress

    def kept(self) -> int:
        kept = REQUEST_BYTES + len(self.request.body)
        if self.pieces:
            kept += self.body_bytes + PIECE_BYTES * len(self.pieces)
        if self.receiver is not None:
            kept += self.receiver.kept()
        return kept if self.sender is None else kept + self.sender.unsent()

    def kept_since(self) -> float:
        return self.since

    def give_way(self) -> bool:
        """See `memory.Keeper.give_way`: what did not begin can go to another server, an answer is cut.

        A request on which the service works is left to it.
        """
        if self.sender is not None:
            if self.sender.stopped:
                return False
            self.line.cut(self)
        elif self.connection is None:
            return False
        elif self.allowance is not None and self.receiver is None:  # its body still comes
            self.answer(no_room(not_admitted=True).response())
        else:
            recall = self.request.recall
            return recall is not None and recall() > 0
        return True

    def answer(self, response: Response) -> None:
        line, self.connection = self.connection, None
        if line is not None:
            self.gone = None
            line.answer(self, response)
        elif response.stream is not None:
            streams.close_in_background(response.stream)

    def too_large(self, most: int, actual: str) -> None:
        """Answer 413; arguments as of `head.body_too_large`."""
        self.answer(body_too_large(self.request.headers, most, actual).response())

    def fail(self, error: BaseException) -> None:
        """Log an exception of the service and answer 500."""
        log("handler failed", level="error", error=repr(error))
        self.answer(PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler").response())

    def interim(self, status: int, headers: Headers) -> None:
        if self.connection is not None:
            self.connection.interim(self, status, headers)

    def switch(self, headers: Headers) -> Tunnel:
        """See `Exchange.switch`: requests on a hop never ask for it."""
        raise ValueError("expected a request that asks to switch protocols")

    def write(self, data: bytes) -> bool:
        if self.sender is None or self.sender.stopped:
            raise ClientGone("the client went away")
        return self.sender.feed(data)

    async def writable(self) -> None:
        if self.sender is not None:
            await self.sender.drained()

    def sent(self) -> None:
        """Take the end of the answer's stream."""
        self.task = None
        if self.sender is not None:
            self.sender.finish(last=self.last_frame())

    def last_frame(self) -> bytes:
        """Render the trailers, which are complete at the end of the body; empty if there are none."""
        if self.trailers is None or not self.trailers.fields:
            return b""
        return frames.frame(frames.TRAILERS, self.number, heads.write_lines(self.trailers.fields))
