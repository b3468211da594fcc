"""A dispatcher before a model made of a function: for tests on the fake loop."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any, ClassVar

from penstock_sidecar.batching.dispatcher import Dispatcher
from penstock_sidecar.batching.streaming import StreamedSends
from penstock_sidecar.interfaces import Done
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.protocols.instances import INSTANCES_PROTOCOL
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.request import Outcome, QueuedRequest
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.headers import METHOD, get
from penstock_wire.http import GiveUp, Request, Response, UpstreamAnswer
from penstock_wire.item_streams import ITEM_STREAMS_TYPE
from tests.support.http.called_back import call_back
from tests.support.models.model_stream import ModelStream

Behaviour = Callable[["Run"], Response | Exception | None]


@dataclasses.dataclass(kw_only=True)
class Run:
    """One request that the model got."""

    request: Request
    items: list[Any]
    begun: float
    running: int
    timeout: float

    @property
    def fields(self) -> dict[bytes, bytes]:
        return dict(self.request.headers)


class Asked(QueuedRequest):
    """A request whose outcome is awaited; `twice` has those that were answered a second time."""

    __slots__ = ("future",)

    twice: ClassVar[list[Asked]] = []

    future: asyncio.Future[Outcome]

    def finish(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)
        elif not self.future.cancelled():
            self.twice.append(self)


class Streaming(ModelStream):
    """An answer in pieces; `over` is called when nobody reads it any more."""

    over: Callable[[], None] | None = None

    def abort(self) -> None:
        super().abort()
        over, self.over = self.over, None
        if over is not None:
            over()


class Scripted:
    """A dispatcher and its model.

    Args:
        base: seconds a batch takes.
        item: seconds that each item adds.
        behaviour: what a run ends with, None for the right answer (`{"got": item}` for each item).
        cancellable: it ends a run that is given up; of a method's name, one of this method alone.
    """

    streaming = 0.1
    """Seconds between the first part of a streamed answer and its end."""
    tasks: bool = False
    """Batches are sent in tasks, as where the model is in doubt; else without, as mostly."""

    def __init__(
        self,
        *,
        base: float = 1.0,
        item: float = 0.0,
        behaviour: Behaviour | None = None,
        cancellable: bool | bytes = False,
        **batching: Any,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.base, self.item, self.behaviour = base, item, behaviour
        self.runs: list[Run] = []
        self.running = 0
        self.metrics = Metrics()
        self.dispatcher = Dispatcher(
            send=self.send,
            begin=None if self.tasks else self.begin,
            protocol=INSTANCES_PROTOCOL,
            batching=Batching(**batching),
            observer=self.metrics,
            clock=self.loop.time,
            cancellable=lambda request: cancellable in (True, get(request.headers, METHOD)),
            streamed=StreamedSends(open=self.open, cut=lambda _: None, clock=self.loop.time),
        )
        self.task = asyncio.create_task(self.dispatcher.run())
        self.asked: list[asyncio.Task[Outcome]] = []

    def apply(self, batching: Batching) -> None:
        """Another policy."""
        self.dispatcher.apply(Settings(batching=batching))

    async def send(self, request: Request, timeout: float) -> Response:
        items = json.loads(request.body)["instances"] if request.method == "POST" else []
        self.running += 1
        run = Run(request=request, items=items, begun=self.loop.time(), running=self.running, timeout=timeout)
        self.runs.append(run)
        try:
            await asyncio.sleep(self.base + self.item * len(items))
        finally:
            self.running -= 1
        answer = None if self.behaviour is None else self.behaviour(run)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        predictions = [{"got": item} for item in items]
        return Response(
            status=200,
            headers=((b"content-type", b"application/json"),),
            body=json.dumps({"predictions": predictions}).encode(),
        )

    async def open(self, request: Request, timeout: float, idle: float) -> UpstreamAnswer:
        """As `send`, for who accepts a stream: a right answer begins then, and ends a while later."""
        response = await self.send(request, timeout)
        try:
            predictions = json.loads(response.body)["predictions"]
        except (ValueError, KeyError):
            predictions = None
        if response.status != 200 or predictions is None:
            answer = Streaming(*response.headers)
            answer.status = response.status
            answer.pieces.put_nowait(response.body)
            answer.end()
            return answer
        answer = Streaming((b"content-type", ITEM_STREAMS_TYPE))
        self.running += 1

        def over() -> None:
            self.running -= 1

        answer.over = over
        # NB: an answer that is short lacks the first items.
        count = len(json.loads(request.body)["instances"])
        said = range(count - len(predictions), count)
        answer.say(*[{"i": index, "data": each} for index, each in zip(said, predictions, strict=True)])

        def ends() -> None:
            answer.say(*[{"i": index, "end": True} for index in said])
            answer.end()

        self.loop.call_later(self.streaming, ends)
        return answer

    def begin(self, request: Request, timeout: float, done: Done) -> GiveUp:
        """As `send`, calling back."""
        return call_back(self.send(request, timeout), done)

    def work(
        self,
        *items: Any,
        timeout: float = 30.0,
        target: str = "/p",
        members: dict[str, Any] | None = None,
        **fields: str,
    ) -> Asked:
        """A request for these items; `members` are others of its body, the rest are header fields."""
        headers = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
        body = json.dumps({"instances": items, **(members or {})}).encode()
        request = Request(method="POST", target=target, headers=headers, body=body)
        parsed = INSTANCES_PROTOCOL.parse(request)
        keys, now = self.dispatcher.keys, self.loop.time()
        read = keys.read(headers)
        deadline, expires = self.dispatcher.admission.deadlines(now, round(timeout * 1000))
        return Asked(
            keys.key("POST", target, read.fields, parsed.parameters, read.share)
            if parsed.items
            else BatchKey("POST", target, read.fields, parsed.parameters, lone=True),
            request,
            f"id-{items}".replace(",", ".").encode(),
            parsed.items,
            read.shared,
            now,
            deadline,
            expires,
            read.level,
            read.share,
        )

    async def answer(self, work: Asked) -> Outcome:
        """Accept a request and wait for its outcome; cancelled, its client leaves (raises PenstockError)."""
        work.future = self.loop.create_future()
        self.dispatcher.accept(work)
        try:
            return await work.future
        except asyncio.CancelledError:
            if not work.done:
                self.dispatcher.leave(work)
            raise

    def ask(self, *items: Any, **options: Any) -> asyncio.Task[Outcome]:
        """Send a request; its outcome is the task's result."""
        task = asyncio.create_task(self.answer(self.work(*items, **options)))
        self.asked.append(task)
        return task

    def batches(self) -> list[list[Any]]:
        """The items of each run."""
        return [run.items for run in self.runs]

    async def close(self) -> None:
        """End the dispatcher."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.dispatcher.abort()


def got(outcome: Outcome) -> list[Any]:
    """The items that an answer is about."""
    assert isinstance(outcome, Response), outcome
    assert outcome.status == 200, outcome
    return [prediction["got"] for prediction in json.loads(outcome.body)["predictions"]]
