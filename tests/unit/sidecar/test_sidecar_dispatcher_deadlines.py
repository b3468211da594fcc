"""Objective, refusal on arrival, dropping, cold start, levels and pauses, through the whole dispatcher."""

from __future__ import annotations

import asyncio

import pytest

from penstock_wire.control.settings import Batching, Priority
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Response
from tests.support.models.scripted_model import Scripted, got

pytestmark = pytest.mark.usefixtures("sending")


async def learned(s: Scripted, rounds: int = 3) -> None:
    """Let it see some batches."""
    for _ in range(rounds):
        await s.ask("warm")


async def test_what_the_queue_would_answer_too_late_is_refused_on_arrival_with_a_computed_retry_after():
    s = Scripted(base=1.0, max_batch_size=1)
    await learned(s)
    running = [s.ask(number, timeout=5.0) for number in range(4)]
    await asyncio.sleep(0.1)
    with pytest.raises(PenstockError) as caught:
        await s.ask("late", timeout=4.9)
    refused = caught.value
    assert (refused.reason, refused.status, refused.not_admitted) == (Reason.DEADLINE, 503, True)
    # What is left of the running batch (of 1.05 s), three that wait (1 s each), its own (1.05 s).
    assert refused.retry_after == pytest.approx(0.95 + 3 * 1.0 + 1.05 - 4.9, abs=0.01)
    urgent = s.ask("in time", timeout=6.0)
    assert got(await urgent) == ["in time"]
    await asyncio.gather(*running)


async def test_nothing_is_predicted_while_a_slot_is_free_and_nothing_waits():
    s = Scripted(base=5.0)
    await learned(s, 1)
    s.base = 0.5
    assert got(await s.ask(1, timeout=1.0)) == [1]


async def test_an_earlier_deadline_is_judged_by_what_goes_before_it_alone():
    s = Scripted(base=1.0, max_batch_size=1)
    await learned(s)
    patient = [s.ask(number) for number in range(6)]
    await asyncio.sleep(0.1)
    assert got(await s.ask("urgent", timeout=3.0)) == ["urgent"]
    await asyncio.gather(*patient)


async def test_from_the_head_goes_what_would_be_late_while_others_wait():
    s = Scripted(base=1.0, max_batch_size=2)
    await learned(s)
    s.base = 3.0  # slower than anybody could know
    first = s.ask(0)
    await asyncio.sleep(0.1)
    doomed, fine = s.ask("doomed", timeout=3.5), s.ask("fine", timeout=20.0)
    outcome = await doomed
    assert isinstance(outcome, PenstockError)
    assert (outcome.reason, outcome.status, outcome.not_admitted) == (Reason.DEADLINE, 504, False)
    assert s.loop.time() == pytest.approx(1006.0, abs=0.01)
    assert got(await first) == [0]
    assert got(await fine) == ["fine"]
    assert s.batches()[-2:] == [[0], ["fine"]]


async def test_a_free_slot_always_runs_the_last_one_whose_client_still_waits():
    s = Scripted(base=0.1, max_batch_size=1, latency_objective_ms=500)
    await learned(s)
    s.base = 2.0
    slow = s.ask(0)
    await asyncio.sleep(0.1)
    outcomes = [s.ask(number) for number in (1, 2)]
    await slow
    s.base = 0.1
    first = await outcomes[0]
    assert isinstance(first, PenstockError)  # past the objective, and another waits
    assert got(await outcomes[1]) == [2]  # past the objective, but the last
    assert got(await s.ask(3)) == [3]


async def test_one_slow_start_does_not_lock_a_healthy_model_out():
    s = Scripted(base=3.0, max_batch_size=4, latency_objective_ms=400)
    await asyncio.gather(s.ask("slow"), return_exceptions=True)
    s.base = 0.05
    served = 0
    for _ in range(200):
        outcomes = await asyncio.gather(*(s.ask(n) for n in range(4)), return_exceptions=True)
        served += sum(not isinstance(each, BaseException | PenstockError) for each in outcomes)
        await asyncio.sleep(0.05)
    assert served > 600


@pytest.mark.parametrize("rounds", [0, 30], ids=["of a new model", "of one that ran"])
@pytest.mark.parametrize("slots", [1, 2, 8])
async def test_batches_that_a_stall_of_the_machine_kept_up_cost_no_other_its_answer(rounds: int, slots: int):
    """All other batches have expired by its end: it would say that each further one takes as long."""
    s = Scripted(base=0.4, max_batch_size=4, max_concurrent_batches=slots)
    await learned(s, rounds)
    s.base = 20.0
    stalled = [s.ask(f"stalled {number}", timeout=30.0) for number in range(4 * slots)]
    await asyncio.sleep(0.1)
    assert s.running == slots
    s.base = 0.4
    waiting = [s.ask(number, timeout=30.0) for number in range(60)]
    await asyncio.gather(*stalled)
    await asyncio.sleep(0.1)
    later = [s.ask(f"later {number}", timeout=30.0) for number in range(60)]
    outcomes = await asyncio.gather(*waiting, *later, return_exceptions=True)
    assert [each for each in outcomes if isinstance(each, BaseException)] == []


async def test_two_long_batches_in_a_row_show_that_the_model_is_slow_now():
    s = Scripted(base=0.4, max_batch_size=4)
    await learned(s, 30)
    s.base = 20.0
    await learned(s, 2)
    running = s.ask(0, timeout=30.0)
    await asyncio.sleep(0.1)
    with pytest.raises(PenstockError, match=r"predicted one after 4\d\.\d+ s"):
        await s.ask(1, timeout=30.0)
    await running


async def test_with_an_objective_batches_double_from_a_cold_start_and_end_at_the_size_that_keeps_it():
    s = Scripted(base=0.01, item=0.01, max_batch_size=64, latency_objective_ms=300, max_queued_items=1000)
    outcomes = await asyncio.gather(*(s.ask(n, timeout=20.0) for n in range(200)), return_exceptions=True)
    sizes = [len(batch) for batch in s.batches()]
    assert sizes[:4] == [1, 2, 4, 8]
    # L(W) · 1.5 ≤ 0.3 s: (0.01 + 0.01 · W) · 1.05 ≤ 0.2 s.
    assert max(sizes) <= 18
    assert any(not isinstance(each, BaseException) for each in outcomes)


async def test_the_objective_never_outlasts_the_clients_own_deadline():
    s = Scripted(latency_objective_ms=10_000)
    work = s.work(1, timeout=2.0)
    assert (work.deadline, work.expires) == (1002.0, 1002.0)
    work = s.work(1, timeout=20.0)
    assert (work.deadline, work.expires) == (1010.0, 1020.0)


async def test_more_urgent_levels_go_first_and_a_change_of_levels_counts_for_the_queued():
    s = Scripted(max_batch_size=1, priority=Priority(levels=3, default=2))
    first = s.ask(0)
    await asyncio.sleep(0.1)
    tasks = [s.ask(n, x_penstock_priority=level) for n, level in ((1, "3"), (2, "x"), (3, "1"))]
    await asyncio.gather(first, *tasks)
    assert s.batches() == [[0], [3], [2], [1]]
    first = s.ask(0)
    await asyncio.sleep(0.1)
    tasks = [s.ask(n, x_penstock_priority=level) for n, level in ((1, "3"), (2, "1"))]
    await asyncio.sleep(0.1)
    s.apply(Batching(max_batch_size=1))
    await asyncio.gather(first, *tasks)
    assert s.batches()[4:] == [[0], [1], [2]]
    # Where an edge's field names the level, a client's own claim is none.
    s.apply(Batching(max_batch_size=1, priority=Priority(levels=3, default=2, header="X-Tier")))
    claims = [{"x_penstock_priority": "1"}, {"x_penstock_priority": "1", "x_tier": "3"}, {"x_tier": "1"}]
    await asyncio.gather(*(s.ask(number, **claim) for number, claim in enumerate([{}, *claims])))
    assert s.batches()[7:] == [[3], [0], [1], [2]]


async def test_a_pause_sends_nothing_and_quiet_means_that_no_batch_is_with_the_model():
    s = Scripted()
    first = s.ask(1)
    await asyncio.sleep(0.1)
    s.dispatcher.pause()
    second = s.ask(2)
    await s.dispatcher.quiet()
    assert s.loop.time() == pytest.approx(1001)
    await asyncio.sleep(5)
    assert s.batches() == [[1]]
    s.dispatcher.resume()
    assert got(await first) + got(await second) == [1, 2]
    assert s.runs[1].begun == pytest.approx(1006)


async def test_a_cached_rejection_does_not_outlive_what_a_search_has_taught():
    """While a failed batch is searched nothing leaves the queue, and each run shows how fast the model is."""
    s = Scripted(
        base=1.0,
        behaviour=lambda run: Response(400, (), b"no") if "bad" in run.items else None,
        max_batch_size=16,
        max_queued_items=200,
    )
    await s.ask(*range(4))  # a cold start: the first batch takes 1 s
    s.base = 0.05
    tasks = [s.ask("bad" if number in (7, 15) else number) for number in range(16)]
    await asyncio.sleep(0.01)
    tasks += [s.ask(number, timeout=2.5) for number in range(10)]
    await asyncio.sleep(0.01)
    seen = set()
    while len(s.runs) < 8:
        work = s.work("x", timeout=2.5)
        admission, fields = s.dispatcher.admission, s.dispatcher.keys.read(work.request.headers)
        by_head = admission.check_head("/p", fields, work.arrived, work.deadline, work.expires)
        work.future = s.loop.create_future()
        try:
            s.dispatcher.accept(work)
            rejected = False
        except PenstockError:
            rejected = True
        assert by_head is None or rejected
        seen.add(rejected)
        await asyncio.sleep(0.05)
    assert seen == {True, False}
    s.dispatcher.refuse_queued(PenstockError(Reason.DRAINING, "enough"))
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_request_is_judged_by_the_batch_that_it_will_be_in():
    """One item in 200 ms comes: its own batch takes 1.4 s or so, where a full one would take 2.6."""
    s = Scripted(base=1.0, item=0.05, max_batch_size=32)
    await asyncio.gather(*[s.ask(number) for number in range(33)])
    tasks = []
    for number in range(60):
        tasks.append(s.ask(number, timeout=3.5))
        await asyncio.sleep(0.2)
    outcomes = await asyncio.gather(*tasks)
    assert [got(outcome) for outcome in outcomes] == [[number] for number in range(60)]
    assert max(len(run.items) for run in s.runs[3:]) < 10


async def test_a_cached_rejection_holds_no_longer_than_half_of_the_time_to_the_next_cut():
    """Beyond that fewer may have come than were expected."""
    s = Scripted(base=1.0, max_batch_size=32)
    await learned(s)
    running = s.ask("running")
    await asyncio.sleep(0.05)
    # What is left of the running batch is 1.00 s, and its own takes 1.05 s.
    work = s.work("late", timeout=1.4)
    admission, fields = s.dispatcher.admission, s.dispatcher.keys.read(work.request.headers)
    with pytest.raises(PenstockError):
        s.dispatcher.accept(work)
    kept = []
    for wait in (0.0, 0.45, 0.1):
        await asyncio.sleep(wait)
        by_head = admission.check_head("/p", fields, s.loop.time(), work.deadline, work.expires)
        kept.append(by_head is not None)
    assert kept == [True, True, False]
    # Whoever was refused has arrived, and counts in the rate of arrivals with the next cut.
    assert s.dispatcher.pace.wait_estimator.refused == 3
    await running
