"""How a failed batch ends for each of its requests: isolation, its limits, what a run again may not do."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import ATTEMPT
from penstock_wire.http import ConnectionLost, Request, Response, UpstreamTimeout
from tests.support import fake_loop
from tests.support.scripted_model import Run, Scripted, got

pytestmark = pytest.mark.usefixtures("sending")


def failing(*bad: object, status: int = 400):
    """A model that fails each run that holds one of these; the answer names the run's items."""

    def behave(run: Run) -> Response | None:
        if any(item in bad for item in run.items):
            return Response(status=status, headers=((b"x-why", b"bad"),), body=repr(run.items).encode())
        return None

    return behave


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_the_one_bad_request_gets_its_own_answer_byte_for_byte_and_its_neighbours_theirs(status: int):
    async def main():
        s = Scripted(max_batch_size=8, behaviour=failing(5, status=status))
        tasks = [s.ask(number) for number in range(8)]
        outcomes = await asyncio.gather(*tasks)
        for number, outcome in enumerate(outcomes):
            if number == 5:
                assert isinstance(outcome, Response)
                assert (outcome.status, outcome.body) == (status, b"[5]")
                assert (b"x-why", b"bad") in outcome.headers
            else:
                assert got(outcome) == [number]
        # The batch, and the runs again: marked, one after the other in the batch's slot, in halves.
        assert [run.fields.get(ATTEMPT) for run in s.runs] == [None] + [b"%d" % n for n in range(1, 7)]
        assert max(run.running for run in s.runs) == 1
        assert s.batches()[:3] == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7]]
        assert s.dispatcher.counts.batches == 1
        assert b"isolation_runs_total 6.0" in s.metrics.text()
        await s.close()

    fake_loop.run(main())


@pytest.mark.parametrize(
    "fault",
    [
        Response(status=429, body=b"x"),
        Response(status=502, body=b"x"),
        Response(status=503, body=b"x"),
        Response(status=504, body=b"x"),
        Response(status=404, body=b"x"),
        ConnectionLost("cut"),
        UpstreamTimeout("slow"),
    ],
)
def test_only_a_complete_answer_that_may_be_one_requests_fault_is_isolated(fault: Response | Exception):
    async def main():
        s = Scripted(behaviour=lambda _: fault)
        await asyncio.gather(s.ask(1), s.ask(2))
        assert s.batches() == [[1, 2]]
        await s.close()

    fake_loop.run(main())


def test_a_policy_of_fail_gives_all_the_models_answer():
    async def main():
        s = Scripted(behaviour=failing(1), on_batch_error="Fail")
        for outcome in await asyncio.gather(s.ask(1), s.ask(2)):
            assert isinstance(outcome, Response)
            assert (outcome.status, outcome.body) == (400, b"[1, 2]")
        assert s.batches() == [[1, 2]]
        await s.close()

    fake_loop.run(main())


def test_an_answer_that_cannot_be_split_is_isolated_too():
    async def main():
        def behave(run: Run) -> Response | None:
            return Response(status=200, body=b'{"predictions": []}') if len(run.items) > 2 else None

        s = Scripted(behaviour=behave, max_batch_size=4)
        outcomes = await asyncio.gather(*(s.ask(number) for number in range(4)))
        assert [got(outcome) for outcome in outcomes] == [[0], [1], [2], [3]]
        await s.close()

    fake_loop.run(main())


def test_a_run_again_that_gets_no_answer_ends_the_search():
    async def main():
        def behave(run: Run) -> Response | Exception | None:
            if run.items == [0, 1]:
                return ConnectionLost("cut")
            return Response(status=500, body=b"all") if len(run.items) > 1 else None

        s = Scripted(behaviour=behave)
        lost, lost_too, rest, rest_too = await asyncio.gather(*(s.ask(number) for number in range(4)))
        for outcome in (lost, lost_too):
            assert isinstance(outcome, PenstockError)
            assert outcome.reason is Reason.MODEL_UNREACHABLE
            assert not outcome.not_admitted
        for outcome in (rest, rest_too):
            assert isinstance(outcome, Response)
            assert (outcome.status, outcome.body) == (500, b"all")
        assert s.batches() == [[0, 1, 2, 3], [0, 1]]
        await s.close()

    fake_loop.run(main())


def test_who_has_left_or_expired_meanwhile_is_not_run_again():
    async def main():
        s = Scripted(base=1.0, behaviour=failing(0), max_batch_size=4)
        bad, gone = s.ask(0), s.ask(1)
        short = s.ask(2, timeout=1.5)
        stays = s.ask(3)
        await asyncio.sleep(0.5)
        gone.cancel()
        outcome = await short
        assert isinstance(outcome, PenstockError)
        assert outcome.reason is Reason.DEADLINE
        assert got(await stays) == [3]
        assert isinstance(await bad, Response)
        assert s.batches() == [[2, 0, 1, 3], [2, 0], [3], [0]]
        await s.close()

    fake_loop.run(main())


def test_a_request_larger_than_a_batch_keeps_the_parts_that_passed_beside_a_bad_neighbour():
    async def main():
        s = Scripted(max_batch_size=4, behaviour=failing("bad"))
        large, bad = s.ask(*range(6)), s.ask("bad")
        assert got(await large) == list(range(6))
        outcome = await bad
        assert isinstance(outcome, Response)
        assert outcome.body == b"['bad']"
        assert s.batches() == [[0, 1, 2, 3], [4, 5, "bad"], [4, 5], ["bad"]]
        await s.close()

    fake_loop.run(main())


class SlowToBegin(Scripted):
    """A model that takes ten seconds more over what begins with item 0."""

    async def send(self, request: Request, timeout: float) -> Response:
        if json.loads(request.body)["instances"][0] == 0:
            await asyncio.sleep(10)
        return await super().send(request, timeout)


def test_a_passed_part_of_a_request_whose_rest_still_runs_is_not_told_its_neighbours_fault():
    async def main():
        s = SlowToBegin(max_batch_size=4, max_concurrent_batches=2, behaviour=failing("bad"))
        large, bad = s.ask(*range(6)), s.ask("bad")
        outcome = await bad
        assert isinstance(outcome, Response)
        assert outcome.status == 400
        assert not large.done()
        assert got(await large) == list(range(6))
        await s.close()

    fake_loop.run(main())


def test_isolation_has_a_budget_and_what_it_does_not_cover_gets_the_batchs_answer():
    async def main():
        s = Scripted(base=0.1, behaviour=failing("bad"), max_batch_size=4)
        first = await asyncio.gather(*(s.ask(item) for item in (1, "bad", 2, 3)))
        assert [got(first[0]), got(first[2]), got(first[3])] == [[1], [2], [3]]
        again = await asyncio.gather(*(s.ask(item) for item in (1, "bad", 2, 3)))
        assert [isinstance(each, Response) and each.status for each in again] == [400] * 4
        await asyncio.sleep(40.0)  # four runs again, one in ten seconds
        third = await asyncio.gather(*(s.ask(item) for item in (1, "bad", 2, 3)))
        assert got(third[0]) == [1]
        await s.close()

    fake_loop.run(main())


@pytest.mark.parametrize(("gap", "batches"), [(0.01, 1500), (0.2, 600), (1.0, 400), (20.0, 60)])
def test_over_time_runs_again_are_a_tenth_of_the_batches_or_one_in_ten_seconds(gap: float, batches: int):
    """However often a batch fails: each search that begins is ended, and paid before the next."""

    async def main():
        s = Scripted(base=0.001, behaviour=failing("bad"), max_batch_size=8)
        began = s.loop.time()
        found = 0
        for number in range(batches):
            asked = [s.ask("bad"), *(s.ask(f"{number}.{place}") for place in range(7))]
            outcomes = await asyncio.gather(*asked)
            statuses = {each.status for each in outcomes if isinstance(each, Response)}
            neighbours = [isinstance(each, Response) and each.status == 200 for each in outcomes[1:]]
            assert statuses <= {200, 400}
            assert all(neighbours) or not any(neighbours), "a search was begun and not ended"
            found += all(neighbours)
            await asyncio.sleep(gap)
        times = [run.begun for run in s.runs if ATTEMPT in run.fields]
        due = max(0.1 * batches, (s.loop.time() - began) / 10)
        search = 2 * 3
        assert 0.8 * due <= len(times) <= due + 2 * search
        assert found == len(times) // search
        await s.close()

    fake_loop.run(main())


def test_a_slot_stays_taken_until_the_model_is_done_though_nobody_waits_any_more():
    async def main():
        s = Scripted(base=5.0)
        late = s.ask(1, timeout=2.0)
        await asyncio.sleep(0.1)
        following = s.ask(2)
        outcome = await late
        assert isinstance(outcome, PenstockError)
        assert s.loop.time() == pytest.approx(1002, abs=0.01)
        assert got(await following) == [2]
        assert [run.begun - 1000 for run in s.runs] == pytest.approx([0, 5])
        await s.close()

    fake_loop.run(main())
