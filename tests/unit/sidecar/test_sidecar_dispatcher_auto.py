"""`maxConcurrentBatches: auto` through the whole dispatcher: what it learns from, and what it does not."""

from __future__ import annotations

import asyncio

import pytest

from penstock_wire.control.settings import Batching
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import AnswerUnreadable, ConnectFailed, ConnectionLost, Response, UpstreamTimeout
from tests.support.clocks import fake_loop
from tests.support.clocks.waiting import until
from tests.support.models.scripted_model import Behaviour, Run, Scripted

pytestmark = pytest.mark.usefixtures("sending")


def four_slots(behaviour: Behaviour | None = None, *, base: float = 0.1) -> Scripted:
    """Batches of one request, four at once to begin with."""
    s = Scripted(base=base, behaviour=behaviour, max_batch_size=1, max_concurrent_batches=4)
    s.apply(Batching(max_batch_size=1, max_concurrent_batches="auto"))
    return s


async def one_by_one(s: Scripted, batches: int) -> None:
    """So many batches, each sent when the one before is over."""
    for number in range(batches):
        await s.ask(number)


def said(status: int) -> Response:
    return Response(status=status, body=b"x")


@pytest.mark.parametrize(
    "sign",
    [*[said(status) for status in (500, 502, 503, 504, 429)], ConnectionLost("cut"), UpstreamTimeout("slow")],
)
def test_an_overloaded_models_errors_losses_and_timeouts_take_slots_back(sign: Response | Exception):
    async def main():
        s = four_slots(lambda _: sign)
        await one_by_one(s, 3)
        assert s.dispatcher.slots == 3
        await one_by_one(s, 20)
        assert s.dispatcher.slots == 1
        await s.close()

    fake_loop.run(main())


@pytest.mark.parametrize(
    "sign",
    [
        *[said(status) for status in (400, 401, 403, 404, 413, 422, 301)],
        Response(status=200, body=b'{"predictions": [1, 2, 3]}'),
        AnswerUnreadable("garbage"),
        ConnectFailed("refused"),
    ],
)
def test_what_callers_did_wrong_and_a_broken_model_say_nothing_of_slots(sign: Response | Exception):
    async def main():
        # NB: of several items, so that an answer of another number is not passed through as it is.
        s = Scripted(behaviour=lambda _: sign, max_batch_size=4, max_concurrent_batches=4)
        s.apply(Batching(max_batch_size=4, max_concurrent_batches="auto", on_batch_error="Fail"))
        for _ in range(12):
            await asyncio.gather(s.ask(1), s.ask(2))
        assert s.dispatcher.slots == 4
        await s.close()

    fake_loop.run(main())


def test_runs_of_isolation_are_no_batches():
    """Neither does the search for a bad request take slots, nor does what it passes count as throughput."""

    async def main():
        def behave(run: Run) -> Response | None:
            failing = len(run.items) == 8 and said(400)
            return failing or (said(500) if "bad" in run.items else None)

        s = Scripted(base=0.1, behaviour=behave, max_batch_size=8, max_concurrent_batches=4)
        s.apply(Batching(max_batch_size=8, max_concurrent_batches="auto"))
        for _ in range(4):
            await asyncio.gather(*(s.ask("bad" if number < 2 else number) for number in range(8)))
            await asyncio.sleep(200.0)
        assert len(s.runs) > 16
        assert s.dispatcher.slots == 4
        await s.close()

    fake_loop.run(main())


def test_a_trial_survives_what_callers_do_wrong_and_ends_with_a_lost_batch():
    async def main():
        answers: list[Response | Exception | None] = []
        s = Scripted(
            base=0.1,
            behaviour=lambda _: answers.pop(0) if answers else None,
            max_batch_size=1,
            max_concurrent_batches="auto",
            max_queued_items=1000,
        )
        asked = [s.ask(number, timeout=1000.0) for number in range(500)]
        await until(lambda: s.dispatcher.slots == 2)
        answers += [said(404), said(400)]
        await asyncio.sleep(0.15)
        assert not answers
        assert s.dispatcher.slots == 2
        answers.append(ConnectionLost("cut"))
        await asyncio.sleep(0.15)
        assert s.dispatcher.slots == 1
        s.dispatcher.refuse_queued(PenstockError(Reason.DRAINING, "enough"))
        await asyncio.gather(*asked)
        await s.close()

    fake_loop.run(main())


def test_callers_that_give_the_model_less_time_than_it_takes_cost_no_slots():
    async def main():
        s = four_slots(base=1.0)
        await one_by_one(s, 3)
        s.behaviour = lambda _: UpstreamTimeout("slow")
        s.base = 0.2
        for number in range(8):
            await s.ask(number, timeout=0.2)
        assert s.dispatcher.slots == 4
        s.base = 5.0
        for number in range(3):
            await s.ask(number, timeout=10.0)
        assert s.dispatcher.slots == 3
        await s.close()

    fake_loop.run(main())


def test_a_model_that_dies_with_all_its_batches_costs_one_step():
    async def main():
        s = four_slots(lambda _: ConnectionLost("cut"), base=1.0)
        await asyncio.gather(*(s.ask(number) for number in range(4)))
        assert len(s.runs) == 4
        assert s.dispatcher.slots == 3
        await s.close()

    fake_loop.run(main())
