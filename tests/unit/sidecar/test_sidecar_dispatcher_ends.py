"""The dispatcher on a clock of its own: requests whose time, client or process ends while they wait."""

from __future__ import annotations

import asyncio

import pytest

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Response
from tests.support.clocks import fake_loop
from tests.support.models.scripted_model import Scripted, got

pytestmark = pytest.mark.usefixtures("sending")


async def test_a_request_whose_time_is_over_as_a_slot_falls_free_is_not_sent():
    """Its timer may not have rung yet; and the last one that waits is not dropped for being late."""
    s = Scripted(base=2.0, max_batch_size=1)
    first = s.ask(0)
    await asyncio.sleep(0.0003)
    late = s.ask(1, timeout=2.0)
    outcome = await late
    assert isinstance(outcome, PenstockError)
    assert outcome.reason is Reason.DEADLINE
    assert got(await first) == [0]
    assert got(await s.ask(2)) == [2]
    assert s.batches() == [[0], [2]]


async def test_a_process_that_stops_at_once_answers_all_that_is_with_the_model():
    s = Scripted(base=2.0, max_batch_size=2, max_concurrent_batches=2)
    asked = [s.ask(number) for number in range(4)]
    await asyncio.sleep(1.0)
    await s.dispatcher.abort()
    outcomes = await asyncio.gather(*asked)
    assert [outcome.reason for outcome in outcomes] == [Reason.MODEL_UNREACHABLE] * 4
    assert not any(outcome.not_admitted for outcome in outcomes)
    assert (s.dispatcher.queued, s.dispatcher.ongoing) == (0, 0)


class TestDeadlines:
    async def test_the_line_with_the_earliest_deadline_goes_first(self):
        s = Scripted(max_batch_size=4)
        tasks = [s.ask(0)]
        await asyncio.sleep(0.1)
        tasks += [s.ask(1, target="/a"), s.ask(2, target="/b", timeout=5.0), s.ask(3, target="/a")]
        await asyncio.gather(*tasks)
        assert s.batches() == [[0], [2], [1, 3]]

    async def test_an_expired_request_is_answered_at_its_deadline_and_never_sent(self):
        s = Scripted(base=10.0)
        first = s.ask(0)
        await asyncio.sleep(0.1)
        late = await s.ask(1, timeout=2.0)
        assert s.loop.time() == pytest.approx(1002.1, abs=0.001)
        assert isinstance(late, PenstockError)
        assert (late.reason, late.status) == (Reason.DEADLINE, 504)
        assert "in the queue" in late.detail
        assert got(await first) == [0]
        assert s.batches() == [[0]]

    async def test_a_request_with_the_model_is_answered_at_its_own_deadline_while_its_mates_go_on(self):
        s = Scripted(base=5.0)
        short, long = s.ask(1, timeout=2.0), s.ask(2, timeout=20.0)
        outcome = await short
        assert isinstance(outcome, PenstockError)
        assert "with the model" in outcome.detail
        assert s.loop.time() == pytest.approx(1002, abs=0.001)
        assert got(await long) == [2]
        assert s.runs[0].timeout == pytest.approx(20.0)

    async def test_a_deadline_that_passed_on_arrival_is_refused_with_503(self):
        s = Scripted()
        with pytest.raises(PenstockError) as caught:
            await s.ask(1, timeout=0.0)
        assert (caught.value.reason, caught.value.status) == (Reason.DEADLINE, 503)
        assert s.runs == []


class TestLeaving:
    async def test_a_client_that_went_away_leaves_the_queue_and_is_never_sent(self):
        s = Scripted()
        first = s.ask(0)
        await asyncio.sleep(0.1)
        gone, stays = s.ask(1), s.ask(2)
        await asyncio.sleep(0.1)
        assert s.dispatcher.queued == 2
        gone.cancel()
        await fake_loop.settle()
        assert s.dispatcher.queued == 1
        await asyncio.gather(first, stays)
        assert s.batches() == [[0], [2]]

    async def test_the_answer_to_a_client_that_left_while_ongoing_is_dropped(self):
        s = Scripted()
        gone, stays = s.ask(1), s.ask(2)
        await asyncio.sleep(0.1)
        gone.cancel()
        assert got(await stays) == [2]
        assert s.batches() == [[1, 2]]
        assert (s.dispatcher.queued, s.dispatcher.ongoing) == (0, 0)

    @pytest.mark.parametrize("behind", ["departs", "expires"])
    async def test_a_batch_for_which_nobody_waits_gives_its_slot_back(self, behind: str):
        """Where the model ends a run that is given up; it counts as none, and the next batch goes at once."""
        s = Scripted(base=10, cancellable=True, max_batch_size=2, max_concurrent_batches=1)
        gone, late = s.ask(1), s.ask(2, timeout=0.2 if behind == "expires" else 30)
        last = s.ask(3)
        await asyncio.sleep(0.1)
        gone.cancel()
        await asyncio.sleep(0.05)
        assert (s.running, len(s.runs)) == (1, 1)  # one still waits
        if behind == "departs":
            late.cancel()
        await asyncio.sleep(0.1)
        assert (s.running, s.batches()[1:]) == (1, [[3]])
        assert got(await last) == [3]
        await asyncio.gather(late, return_exceptions=True)

    @pytest.mark.parametrize("method", ["ends", "blocks"])
    async def test_whether_it_does_is_a_matter_of_its_method(self, method: str):
        """A call that goes on without its client keeps its slot."""
        s = Scripted(base=10, cancellable=b"ends")
        gone, behind = s.ask(1, x_penstock_method=method), s.ask(2)
        await asyncio.sleep(0.1)
        gone.cancel()
        await asyncio.sleep(0.1)
        assert s.batches() == ([[1], [2]] if method == "ends" else [[1]])
        assert got(await behind) == [2]

    async def test_nor_is_it_searched_further(self):
        s = Scripted(behaviour=lambda run: Response(500, (), b""), cancellable=True)
        asked = [s.ask(number) for number in range(8)]
        await asyncio.sleep(1.5)
        assert (s.running, len(s.runs)) == (1, 2)
        for each in asked:
            each.cancel()
        await fake_loop.settle()
        assert (s.running, s.dispatcher.ongoing, len(s.runs)) == (0, 0, 2)

    async def test_the_rest_of_a_split_request_leaves_with_its_client(self):
        s = Scripted(max_batch_size=2)
        gone = s.ask(*range(10))
        await asyncio.sleep(1.5)
        gone.cancel()
        await asyncio.sleep(5)
        assert s.batches() == [[0, 1], [2, 3]]
        await asyncio.wait_for(s.dispatcher.idle(), 1)


async def test_what_fails_in_the_sending_is_told_and_not_sent_again(monkeypatch: pytest.MonkeyPatch):
    """The bytes may have gone out before the fault; and the slot is free again."""
    begun: list[object] = []

    def begin(self: Scripted, request: object, *_: object) -> None:
        begun.append(request)
        raise RuntimeError("a defect")

    monkeypatch.setattr(Scripted, "tasks", False)
    with monkeypatch.context() as broken:
        broken.setattr(Scripted, "begin", begin)
        s = Scripted()
        outcome = await s.ask(0)
    assert isinstance(outcome, PenstockError)
    assert outcome.reason is Reason.MODEL_UNREACHABLE
    assert not outcome.not_admitted
    assert (len(begun), s.runs, s.dispatcher.ongoing) == (1, [], 0)
