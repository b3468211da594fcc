"""Refusals under overload: from the head alone, as `accept` would say, cheap, and a few at a time."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.admission.error_responses import AT_ONCE, ErrorResponder
from penstock_sidecar.admission.errors import full
from penstock_sidecar.batching.dispatcher import Dispatcher
from penstock_sidecar.handler import SidecarHandler
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.passthrough.passthrough import STREAM_BYTES, Passthrough
from penstock_sidecar.protocols.instances import INSTANCES_PROTOCOL
from penstock_wire.control.settings import Batching, Cost, Fairness, Priority, Settings
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import QUEUE, RETRY
from penstock_wire.http import Request, Response, Tunnel
from tests.support.clocks import fake_loop
from tests.support.models.scripted_model import Scripted


class Heard:
    """An exchange that keeps its answers."""

    def __init__(self, body: bytes = b'{"instances": [1]}', *headers: tuple[bytes, bytes]) -> None:
        self.request = Request(method="POST", target="/p", headers=headers, body=body)
        self.gone: Callable[[], object] | None = None
        self.answers: list[Response] = []

    def answer(self, response: Response) -> None:
        self.answers.append(response)

    def switch(self, headers: tuple[tuple[bytes, bytes], ...]) -> Tunnel:
        raise AssertionError(headers)


class World:
    """A handler before a model that never answers, and its dispatcher."""

    def __init__(self, **batching: int) -> None:
        self.metrics = Metrics()
        policy = Batching(**{"max_batch_size": 1, "max_queued_items": 2, **batching})  # type: ignore[arg-type]
        self.sent: list[Request] = []
        self.passthrough = Passthrough(
            open=self.send, settings=Settings(batching=policy), observer=self.metrics, clock=time.monotonic
        )
        self.dispatcher = Dispatcher(
            send=self.send,
            protocol=INSTANCES_PROTOCOL,
            batching=policy,
            observer=self.metrics,
            clock=time.monotonic,
            unbatched=self.passthrough,
        )
        self.handler = SidecarHandler(
            dispatcher=self.dispatcher,
            protocol=INSTANCES_PROTOCOL,
            passthrough=self.passthrough,
            observer=self.metrics,
            clock=time.monotonic,
        )
        self.task = asyncio.create_task(self.dispatcher.run())

    async def send(self, request: Request, *_: object, **__: object) -> Response:
        self.sent.append(request)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def fill(self) -> list[Heard]:
        """One request with the model, and a full queue."""
        first = Heard()
        self.handler.begin(first)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert self.dispatcher.ongoing == 1
        heard = [Heard(), Heard()]
        for work in heard:
            self.handler.begin(work)
        assert self.dispatcher.queued == 2
        return [first, *heard]

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.dispatcher.abort()


def reason(answer: Response) -> str:
    return str(json.loads(answer.body)["reason"])


async def test_a_full_queue_refuses_without_reading_the_body():
    world = World()
    await world.fill()
    for body in (b"no JSON", b'{"instances": [1, 2, 3]}', b""):
        heard = Heard(body)
        world.handler.begin(heard)
        assert [(answer.status, reason(answer)) for answer in heard.answers] == [(503, "queue_full")]
    assert world.metrics.totals(batches=0, batch_items=0).refused == {"queue_full": 3}


async def test_an_item_that_does_not_say_its_cost_is_refused_while_that_is_asked_for():
    world = World()
    for policy, answers in (
        (Batching(cost=Cost(path="$.text")), [(422, "bad_shape")]),
        (Batching(cost=Cost(path="$")), [(422, "bad_shape")]),  # an object is neither text, array nor number
        (Batching(), []),
    ):
        world.dispatcher.apply(Settings(batching=policy))
        heard = Heard(b'{"instances": [{"text": "five!"}, {"words": ""}]}')
        world.handler.begin(heard)
        assert [(answer.status, reason(answer)) for answer in heard.answers] == answers
    await world.close()


@pytest.mark.interpreted
async def test_what_a_request_costs_is_counted_once_whichever_pods_it_comes_to():
    """By the handler, where costs count: not where another pod has counted it."""
    world = World(max_batch_size=4)
    long = b'{"instances": ["%s"]}' % (b"x" * 500)
    for number in range(100):
        cost = 4 * (500 if number % 2 else 50)
        world.dispatcher.pace.latency_model.observe(time.monotonic(), "/p", 4, 1e-4 * cost, cost, cost // 4)
    try:
        for headers in ((), ((RETRY, b"1"),)):
            world.handler.begin(Heard(long, *headers))
            alone = world.dispatcher.pace.latency_model.load("/p", 1, 502, 502)
            assert world.dispatcher.counts.work_beyond == pytest.approx(alone - 1) != 0.0
    finally:
        await world.close()


@pytest.mark.interpreted
async def test_a_fault_of_ours_is_logged_with_its_requests_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    world = World()

    def broken(_: Request) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(world.dispatcher, "accept", broken)
    heard = Heard(b'{"instances": [1]}', (b"x-request-id", b"the-one"))
    world.handler.begin(heard)
    assert [(answer.status, reason(answer)) for answer in heard.answers] == [(500, "internal")]
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["message"], line["request_id"]) == ("request failed", "the-one")


async def test_while_there_is_room_what_cannot_be_read_is_told_so():
    world = World(max_queued_items=3)
    await world.fill()
    heard = Heard(b'{"instances": [1')
    world.handler.begin(heard)
    assert [answer.status for answer in heard.answers] == [400]


async def test_who_finds_too_little_room_for_all_items_is_refused_and_who_fits_is_not():
    world = World(max_queued_items=4)
    await world.fill()
    large, small = Heard(b'{"instances": [1, 2, 3]}'), Heard(b'{"instances": [1, 2]}')
    world.handler.begin(large)
    assert [reason(answer) for answer in large.answers] == ["queue_full"]
    assert "room for 3 more" in json.loads(large.answers[0].body)["detail"]
    world.handler.begin(small)
    assert not small.answers


async def test_who_leaves_makes_room_at_once():
    world = World()
    waiting = await world.fill()
    refused, taken = Heard(), Heard()
    world.handler.begin(refused)
    assert refused.answers
    assert waiting[-1].gone is not None
    waiting[-1].gone()
    world.handler.begin(taken)
    assert not taken.answers


async def test_in_one_turn_of_the_loop_a_few_are_told_and_the_others_in_order_after_it():
    world = World()
    await world.fill()
    order: list[int] = []
    heard = [Heard(b"x" * 1000) for _ in range(3 * AT_ONCE + 1)]
    for number, work in enumerate(heard):
        work.answer = lambda answer, number=number: order.append(number)  # type: ignore[method-assign, misc]
        world.handler.begin(work)
    assert order == list(range(AT_ONCE))
    assert not any(work.request.body for work in heard[AT_ONCE:])  # who waits to be told takes no memory
    for turn in (2, 3):
        await asyncio.sleep(0)
        assert order == list(range(turn * AT_ONCE))
    later = Heard()
    world.handler.begin(later)
    assert not later.answers
    await asyncio.sleep(0)
    assert order == list(range(len(heard)))
    assert len(later.answers) == 1
    await asyncio.sleep(0)
    soon = Heard()
    world.handler.begin(soon)
    assert len(soon.answers) == 1


ERRORS = (
    full('a "detail" \\ with marks', retry_after=2.5),
    PenstockError(Reason.DRAINING, "ends", not_admitted=True),
    PenstockError(Reason.DEADLINE, "late", status=503, retry_after=61.0),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ERRORS),
            st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40),
            st.sampled_from(("", "backend")),
        ),
        max_size=40,
    )
)
def test_an_answer_made_from_what_is_kept_is_the_errors_own(cases: list[tuple[PenstockError, str, str]]):
    backend = ""
    responder = ErrorResponder(backend=lambda: backend, pod="pod", queued=lambda: 7)
    for error, request_id, backend in cases:
        own = error.response(request_id=request_id, backend=backend, pod="pod")
        own.headers = (*own.headers, (QUEUE, b"7"))
        kept = responder.response(error, request_id.encode())
        assert (kept.status, kept.body) == (own.status, own.body)
        assert sorted(kept.fields) == sorted(own.headers)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_turned_away_would_not_be_accepted_whatever_happens_meanwhile(seed: int):
    """Nor is anybody kept out for longer than the queue is: the full look is asked each time."""

    async def main() -> int:
        chance = random.Random(seed)
        levels, fair = chance.choice(((1, False), (3, False), (1, True), (3, True)))
        s = Scripted(
            base=0.02,
            item=0.001,
            max_batch_size=4,
            max_queued_items=chance.choice((0, 3, 40)),
            max_concurrent_batches=chance.choice((1, 2)),
            latency_objective_ms=chance.choice((60, 90, None)),
            batch_wait_timeout_ms=chance.choice((0, 5)),
            priority=Priority(levels=levels, default=min(2, levels)),
            fairness=Fairness(header="x-tenant") if fair else None,
        )
        dispatcher = s.dispatcher
        rejected_by_head = 0
        for _ in range(600):
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.0, 0.001, 0.004)))
            s.base = chance.choice((s.base, s.base, 0.02, 0.04))
            if chance.random() < 0.05:
                (dispatcher.pause if chance.random() < 0.5 else dispatcher.resume)()
            if chance.random() < 0.05 and s.asked:
                chance.choice(s.asked).cancel()
            work = s.work(
                *range(chance.choice((1, 1, 1, 2, 5))),
                timeout=chance.choice((30.0, 30.0, 30.0, 0.1, 0.05)),
                target=chance.choice(("/p", "/p", "/q")),
                **chance.choice(({}, {}, {"x_tenant": "a"}, {"x_tenant": "b"})),
                x_penstock_priority=chance.choice("123"),
            )
            fields = dispatcher.keys.read(work.request.headers)
            refused = dispatcher.admission.check_head(
                work.request.target, fields, work.arrived, work.deadline, work.expires
            )
            work.future = s.loop.create_future()
            try:
                dispatcher.accept(work)
            except PenstockError as error:
                # NB: what a part was cut of may have to give way by its items, and does not.
                begun = any(each.taken for each in dispatcher.queue)
                full_for_all = error.reason is Reason.QUEUE_FULL and work.size == 1 and not begun
                assert refused is not None or not full_for_all
                rejected_by_head += refused is not None
            else:
                assert refused is None, (refused, work.size)
                s.asked.append(asyncio.ensure_future(_outcome(s, work)))
        dispatcher.resume()
        await asyncio.gather(*s.asked, return_exceptions=True)
        await s.close()
        return rejected_by_head

    assert fake_loop.run(main()) > 0


async def _outcome(s: Scripted, work: object) -> None:
    await work.future  # type: ignore[attr-defined]


async def test_a_body_that_was_not_taken_in_is_refused_though_there_is_room_when_its_turn_comes():
    world = World()
    waiting = await world.fill()
    heard = Heard(b"")
    heard.request.length = STREAM_BYTES + 1
    assert world.handler.streams(heard.request)
    assert waiting[-1].gone is not None
    waiting[-1].gone()
    assert not world.handler.streams(heard.request)

    class Body:
        async def read(self) -> bytes:
            raise AssertionError

    heard.request.stream = Body()  # type: ignore[assignment]
    world.handler.begin(heard)
    assert [(answer.status, reason(answer)) for answer in heard.answers] == [(503, "queue_full")]


@pytest.mark.parametrize("length", [None, 10, STREAM_BYTES, 1 << 40])
async def test_bodies_of_unknown_short_or_impossible_length_are_judged_when_they_have_come(
    length: int | None,
):
    world = World()
    await world.fill()
    request = Request(method="POST", target="/p", headers=(), body=b"", length=length)
    assert not world.handler.streams(request)


async def test_what_passes_through_is_refused_a_few_at_a_time_too():
    world = World(max_queued_items=0)
    world.passthrough.apply(Settings(batching=Batching(max_queued_items=0), max_ongoing_requests=1))
    first = Heard()
    world.passthrough.begin(first)
    refused = [Heard() for _ in range(AT_ONCE + 1)]
    for flow in refused:
        world.passthrough.begin(flow)
    assert [len(flow.answers) for flow in refused] == [1] * AT_ONCE + [0]
    await asyncio.sleep(0)
    assert [reason(flow.answers[0]) for flow in refused] == ["queue_full"] * len(refused)
    await world.passthrough.abort()
    assert [reason(answer) for answer in first.answers] == ["model_unreachable"]
