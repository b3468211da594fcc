"""One request on a hop, as the service of its server sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.hop.bodies import Allowance, BodyReceiver, BodySender
from penstock_wire.http import ClientGone, Request, Response, Tunnel
from penstock_wire.http.server import streams
from penstock_wire.process import log


class AnswerLine(Protocol):
    """The connection, as its exchanges see it: `server.HopConnection`."""

    def answer(self, exchange: HopExchange, response: Response) -> None:
        """Send the answer of an exchange."""
        ...

    def interim(self, exchange: HopExchange, status: int, headers: Headers) -> None:
        """Send an interim answer of an exchange."""
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
        "number",
        "pieces",
        "receiver",
        "request",
        "sender",
        "since",
        "task",
    )

    def __init__(self, connection: AnswerLine, number: int, request: Request) -> None:
        self.connection: AnswerLine | None = connection
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
        self.task: asyncio.Task[None] | None = None
        self.credits = 0  # credits that its client had given at the last look
        self.since = 0.0  # when its client last made progress

    def answer(self, response: Response) -> None:
        """See `Exchange.answer`."""
        line, self.connection = self.connection, None
        if line is not None:
            self.gone = None
            line.answer(self, response)
        elif response.stream is not None:
            streams.close_in_background(response.stream)

    def fail(self, error: BaseException) -> None:
        """Log an exception of the service and answer 500."""
        log("handler failed", level="error", error=repr(error))
        self.answer(PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler").response())

    def interim(self, status: int, headers: Headers) -> None:
        """See `Exchange.interim`."""
        if self.connection is not None:
            self.connection.interim(self, status, headers)

    def switch(self, headers: Headers) -> Tunnel:
        """See `Exchange.switch`: requests on a hop never ask for it."""
        raise ValueError("expected a request that asks to switch protocols")

    def write(self, data: bytes) -> bool:
        """See `streams.Sink`."""
        if self.sender is None or self.sender.stopped:
            raise ClientGone("the client went away")
        return self.sender.feed(data)

    async def writable(self) -> None:
        """See `streams.Sink`."""
        if self.sender is not None:
            await self.sender.drained()
