"""A `Passthrough` before a model in memory, and the requests that it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.passthrough.passthrough import Passthrough
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.headers import Headers, get
from penstock_wire.http import (
    Request,
    Response,
    Tunnel,
    UpstreamTimeout,
)
from penstock_wire.http.messages import Trailers


class Line:
    """A `Tunnel` in memory: what it reads is put in, what it is given is kept."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.ended = self.aborted = False

    async def read(self) -> bytes:
        message = await self.inbox.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def write(self, data: bytes) -> None:
        self.sent.append(data)

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted = True


class Answer:
    """An `UpstreamAnswer` whose body is a `Line`, or is whole."""

    def __init__(self, status: int = 200, *, body: bytes | None = b"ok", headers: Headers = ()) -> None:
        self.status = status
        self.headers = headers
        self.length = None if body is None else len(body)
        self.line = Line()
        self.stream = self.line
        self.tunnel: Tunnel | None = None
        self.trailers: Trailers | None = None
        self.aborted = False
        self._body = body

    def whole(self) -> bytes | None:
        return self._body

    def abort(self) -> None:
        self.aborted = True


class Model:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Request, float, float, asyncio.Future[Any]]] = []
        self.cancelled = 0

    async def open(self, request: Request, timeout: float, idle: float) -> Any:
        answered = asyncio.get_running_loop().create_future()
        self.calls.append((request, timeout, idle, answered))
        try:
            async with asyncio.timeout(timeout):
                return await answered
        except TimeoutError:
            raise UpstreamTimeout("no answer") from None
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def answer(self, number: int, with_: Any = None) -> None:
        answered = self.calls[number][3]
        if isinstance(with_, Exception):
            answered.set_exception(with_)
        else:
            answered.set_result(with_ or Answer())

    @property
    def targets(self) -> list[str]:
        return [request.target for request, *_ in self.calls]


class Asked:
    """An `Exchange`."""

    def __init__(self, target: str = "/", *, method: str = "POST", **fields: str) -> None:
        headers = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
        self.request = Request(method, target, headers, b"body")
        self.gone: Callable[[], object] | None = None
        self.answers: list[Response] = []
        self.client = Line()
        self.switched: Headers | None = None
        self.interims: list[tuple[int, Headers]] = []

    def interim(self, status: int, headers: Headers) -> None:
        self.interims.append((status, headers))

    def answer(self, response: Response) -> None:
        self.gone = None
        self.answers.append(response)

    def switch(self, headers: Headers) -> Tunnel:
        self.gone = None
        self.switched = headers
        return self.client

    def leave(self) -> None:
        assert self.gone is not None
        gone, self.gone = self.gone, None
        gone()

    @property
    def status(self) -> int:
        (answer,) = self.answers
        return answer.status

    @property
    def reason(self) -> str:
        (answer,) = self.answers
        return (get(answer.headers, b"x-penstock-reason") or b"").decode()

    def field(self, name: bytes) -> bytes | None:
        (answer,) = self.answers
        return get(answer.fields, name)


class Bench:
    """A `Passthrough` before a `Model`."""

    def __init__(self, *, slots: int = 1, **batching: Any) -> None:
        loop = asyncio.get_running_loop()
        self.late = 0.0  # seconds that the loop's timers are behind the clock
        self.model = Model()
        self.metrics = Metrics()
        self.firsts = 0
        self.rooms: list[tuple[int, int]] = []
        """How many would begin at once, and how many wait, whenever these may have changed."""
        self.passthrough = Passthrough(
            open=self.model.open,
            settings=settings(slots, **batching),
            observer=self.metrics,
            clock=lambda: loop.time() + self.late,
            backend=lambda: "b",
            pod="p",
            first=self._first,
            on_room=self._note_room,
        )

    def _first(self) -> None:
        self.firsts += 1

    def _note_room(self) -> None:
        if "passthrough" in vars(self):  # else it is being made
            self.rooms.append((self.passthrough.free, self.passthrough.queued))

    def ask(self, target: str = "/", **fields: str) -> Asked:
        asked = Asked(target, **fields)
        self.passthrough.begin(asked)
        return asked

    @property
    def load(self) -> tuple[int, int]:
        return self.passthrough.queued, self.passthrough.ongoing


def settings(slots: int, **batching: Any) -> Settings:
    return Settings(batching=Batching(**batching), max_ongoing_requests=slots)
