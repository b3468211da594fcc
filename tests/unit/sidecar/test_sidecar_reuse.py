"""Requests that are the same as one in flight wait for its answer; nobody gets less than by running alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from penstock_sidecar.admission.errors import handed_back
from penstock_sidecar.queue.request import Outcome
from penstock_wire.control.settings import Batching, Fairness, Priority
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Response
from tests.support.clocks import fake_loop
from tests.support.models.scripted_model import Asked, Run, Scripted, got

pytestmark = pytest.mark.usefixtures("sending")

REUSE: dict[str, Any] = {"reuse": "InFlight", "max_batch_size": 1}


async def left(asked: asyncio.Task[Outcome]) -> None:
    """Its client goes."""
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


async def test_equal_requests_run_once_and_are_counted():
    s = Scripted(**REUSE)
    asked = [s.ask(item) for item in ("a", "b", "a", "b", "a")]
    asked.append(s.ask("a", target="/other"))
    asked.append(s.ask("a", members={"p": 1}))
    assert [got(each) for each in await asyncio.gather(*asked)] == [
        ["a"],
        ["b"],
        ["a"],
        ["b"],
        ["a"],
        ["a"],
        ["a"],
    ]
    assert len(s.runs) == 4
    assert s.dispatcher.counts.reused == 3
    assert got(await s.ask("a")) == ["a"]
    assert len(s.runs) == 5, "nothing is kept of what is answered"
    await s.close()


async def test_without_it_each_runs_and_so_do_streams():
    for options, fields in (({"max_batch_size": 1}, {}), (REUSE, {"accept": "text/event-stream"})):
        s = Scripted(**options)
        tasks = [s.ask("a", **fields) for _ in range(2)]
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (len(s.runs), s.dispatcher.counts.reused) == (2, 0)
        await s.close()


@pytest.mark.parametrize("running", [True, False], ids=["that runs", "that waits"])
async def test_the_first_callers_leaving_does_not_cancel_the_others_and_the_last_ones_does(running: bool):
    s = Scripted(cancellable=True, base=1.0, **REUSE)
    begun = s.loop.time()
    before = None if running else s.ask("before")
    await fake_loop.settle()
    first, second, third = [s.ask("a") for _ in range(3)]
    await asyncio.sleep(0.1)
    await left(first)
    await left(third)
    assert got(await second) == ["a"]
    alone, other = s.ask("c"), s.ask("c")
    await asyncio.sleep(0.1)
    await left(alone)
    await left(other)
    await s.dispatcher.idle()
    assert s.running == 0
    assert s.loop.time() - begun < 2.5, "the call of nobody was ended"
    assert [run.items for run in s.runs] == [*([] if running else [["before"]]), ["a"], ["c"]]
    if before is not None:
        assert got(await before) == ["before"]
    await s.close()


async def test_an_error_is_not_shared():
    def behave(run: Run) -> Response | None:
        return Response(status=400) if run is s.runs[0] else None

    s = Scripted(behaviour=behave, **REUSE)
    asked = [s.ask("a") for _ in range(3)]
    outcomes = await asyncio.gather(*asked)
    assert [outcome.status for outcome in outcomes] == [400, 200, 200]
    assert len(s.runs) == 3
    await s.close()


async def test_deadlines_are_each_its_own():
    s = Scripted(base=3.0, **REUSE)
    waits, hasty = s.ask("a", timeout=30.0), s.ask("a", timeout=2.0)
    await asyncio.sleep(0.1)
    joins, soon = s.ask("a", timeout=30.0), s.ask("a", timeout=1.0)
    begun = s.loop.time()
    outcome = await soon
    assert isinstance(outcome, PenstockError)
    assert outcome.reason is Reason.DEADLINE
    assert s.loop.time() - begun == pytest.approx(1.0, abs=0.01)
    assert got(await joins) == got(await waits) == ["a"]
    assert isinstance(await hasty, PenstockError)
    await s.close()


async def test_cookies_and_what_another_credential_gets_are_not_shared():
    cookie = ((b"set-cookie", b"me"), (b"x-kept", b"1"))

    def behave(run: Run) -> Response:
        return Response(200, cookie, b"{}")

    s = Scripted(behaviour=behave, **REUSE)
    tasks = [s.ask("a", authorization=name) for name in ("x", "x", "y")]
    first, second, other = await asyncio.gather(*tasks)
    assert isinstance(first, Response)
    assert isinstance(second, Response)
    assert isinstance(other, Response)
    assert (first.headers, second.headers, other.headers) == (cookie, cookie[1:], cookie)
    assert len(s.runs) == 2
    await s.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("accept_encoding", "gzip"), ("range", "bytes=0-3"), ("if_range", '"x"')],
)
async def test_an_answer_of_another_form_is_not_shared(field: str, value: str):
    s = Scripted(**REUSE)
    tasks = [s.ask("a", **fields) for fields in ({field: value}, {}, {field: value})]
    assert [got(each) for each in await asyncio.gather(*tasks)] == [["a"]] * 3
    assert len(s.runs) == 2
    await s.close()


async def test_a_part_of_an_answer_is_not_shared():
    s = Scripted(behaviour=lambda _: Response(206, (), b"part"), **REUSE)
    await asyncio.gather(*[s.ask("a") for _ in range(2)])
    assert len(s.runs) == 2
    await s.close()


async def test_a_leader_whose_client_has_gone_is_sent_with_its_body():
    """Its connection empties the request when it gives way."""
    s = Scripted(**REUSE)
    s.ask("before")
    await fake_loop.settle()
    work = s.work("a")
    request = work.request
    first = asyncio.create_task(s.answer(work))
    await fake_loop.settle()
    second = s.ask("a")
    await fake_loop.settle()
    await left(first)
    body, request.body = request.body, b""
    assert work.request.body == body
    assert got(await second) == ["a"]
    await s.close()


async def test_a_leader_runs_for_nobody_once_its_last_follower_expires():
    s = Scripted(cancellable=True, base=20.0, **REUSE)
    first = s.ask("a")
    await asyncio.sleep(0.1)
    second = s.ask("a", timeout=1.0)
    await asyncio.sleep(0.1)
    await left(first)
    assert isinstance(await second, PenstockError)
    await s.dispatcher.idle()
    assert s.loop.time() - 1000 == pytest.approx(1.1, abs=0.1)
    await s.close()


@pytest.mark.parametrize(("level", "runs"), [("2", 2), ("1", 3)], ids=["equal", "of two levels"])
@pytest.mark.parametrize("end", ["expires", "is handed back"])
async def test_followers_of_a_request_without_an_answer_run_once(end: str, level: str, runs: int):
    """The first who waits leads the others that it does not delay."""
    s = Scripted(priority=Priority(levels=2, default=2, header="x-level"), **REUSE)
    s.ask("before")
    await asyncio.sleep(0.1)
    work = s.work("a", timeout=0.5 if end == "expires" else 5.0, x_level="1")
    lead = asyncio.create_task(s.answer(work))
    await fake_loop.settle()
    asked = [s.ask("a", timeout=10.0 - place / 10, x_level="2") for place in range(10)]
    asked += [s.ask("a", x_level=level) for _ in range(10)]
    await fake_loop.settle()
    if end != "expires":
        s.dispatcher.settle(work, handed_back())
    assert isinstance(await lead, PenstockError)
    assert [got(each) for each in await asyncio.gather(*asked)] == [["a"]] * 20
    assert (len(s.runs), s.dispatcher.counts.reused) == (runs, 20)
    assert s.dispatcher._in_flight.runs == {}
    await s.close()


async def test_followers_of_a_request_that_expires_are_refused_with_the_others():
    s = Scripted(**REUSE)
    s.ask("before", timeout=5.0)
    await asyncio.sleep(0.1)
    lead = s.ask("a", timeout=0.5)
    await fake_loop.settle()
    asked = [s.ask("a") for _ in range(20)]
    await fake_loop.settle()
    s.dispatcher.refuse(PenstockError(Reason.DRAINING, "expected"))
    outcomes = await asyncio.gather(lead, *asked)
    assert [getattr(each, "reason", None) for each in outcomes] == [Reason.DEADLINE] + [Reason.DRAINING] * 20
    await s.dispatcher.idle()
    assert (len(s.runs), s.dispatcher._in_flight.runs) == (1, {})
    await s.close()


async def test_followers_are_limited_as_the_queue_is():
    s = Scripted(max_queued_items=5, **REUSE)
    outcomes = await asyncio.gather(*[s.ask("a") for _ in range(40)], return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, PenstockError)]
    assert {each.reason for each in refused} == {Reason.QUEUE_FULL}
    assert (len(s.runs), s.dispatcher.counts.reused) == (6, 5)
    assert len(refused) == 40 - 6 - 5
    await s.close()


async def test_a_request_does_not_follow_one_of_a_share_that_waits_longer():
    s = Scripted(fairness=Fairness(header="x-tenant"), **REUSE)
    for number in range(20):
        s.ask(number, timeout=60.0, x_tenant="heavy")
    s.ask("a", timeout=60.0, x_tenant="heavy")
    await asyncio.sleep(0.5)
    assert got(await s.ask("a", timeout=60.0, x_tenant="light")) == ["a"]
    assert s.loop.time() < 1004
    await s.close()


async def test_a_request_does_not_follow_one_that_runs_in_part_and_waits_at_a_later_level():
    s = Scripted(reuse="InFlight", max_batch_size=2, priority=Priority(levels=9, default=9, header="x-level"))
    s.ask(*range(4), x_level="9")
    await asyncio.sleep(0.5)
    s.ask(*range(4), x_level="1")
    await fake_loop.settle()
    assert s.dispatcher.counts.reused == 0
    await s.close()


async def test_a_follower_that_runs_after_all_has_the_key_of_the_policy_in_effect():
    s = Scripted(
        behaviour=lambda run: Response(500) if run is s.runs[0] else None, reuse="InFlight", max_batch_size=4
    )
    asked = [s.ask("a", x_adapter="A") for _ in range(2)]
    await asyncio.sleep(0.1)
    s.apply(Batching(reuse="InFlight", max_batch_size=4, batch_key_headers=("x-adapter",)))
    asked.append(s.ask("c"))
    await asyncio.gather(*asked)
    assert sorted(s.batches()) == [["a"], ["a"], ["c"]]
    await s.close()


@pytest.mark.parametrize("seed", range(6))
async def test_ledger_of_duplicates_with_cancels_errors_and_refusals(seed: int):
    """Each request that is not cancelled gets one outcome: the answer to its item, or its own error."""
    draw = random.Random(seed)
    Asked.twice.clear()

    def behave(_: Run) -> Response | None:
        return Response(status=draw.choice([400, 500, 503])) if draw.random() < 0.1 else None

    s = Scripted(
        base=0.5,
        behaviour=behave,
        cancellable=bool(seed % 2),
        reuse="InFlight",
        max_batch_size=3,
        max_queued_items=20,
        priority=Priority(levels=2, default=2, header="x-level"),
    )
    asked: list[tuple[int, asyncio.Task[Outcome]]] = []
    for _ in range(300):
        item = draw.randrange(6)
        asked.append((item, s.ask(item, timeout=draw.choice([1.0, 30.0]), x_level=draw.choice("12"))))
        if draw.random() < 0.3:
            draw.choice(asked)[1].cancel()
        if draw.random() < 0.5:
            await asyncio.sleep(draw.random() * 0.2)
    outcomes = await asyncio.gather(*[task for _, task in asked], return_exceptions=True)
    for (item, _), outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, Response) and outcome.status == 200:
            assert got(outcome) == [item]
        else:
            assert isinstance(outcome, (Response, PenstockError, asyncio.CancelledError)), outcome
    await s.dispatcher.idle()
    assert (Asked.twice, s.running, s.dispatcher.queued, s.dispatcher.ongoing) == ([], 0, 0, 0)
    assert s.dispatcher._in_flight.runs == {}
    assert s.dispatcher.counts.reused > 20
    await s.close()
