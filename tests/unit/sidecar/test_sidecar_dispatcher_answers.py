"""How a failed batch ends for each of its requests: isolation, its limits, what a run again may not do."""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client import generate_latest

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import ATTEMPT
from penstock_wire.http import AnswerUnreadable, ConnectionLost, Request, Response, UpstreamTimeout
from tests.support.clocks import fake_loop
from tests.support.models.scripted_model import Run, Scripted, got

pytestmark = pytest.mark.usefixtures("sending")


def failing(*bad: object, status: int = 400):
    """A model that fails each run that holds one of these; the answer names the run's items."""

    def behave(run: Run) -> Response | None:
        if any(item in bad for item in run.items):
            return Response(status=status, headers=((b"x-why", b"bad"),), body=repr(run.items).encode())
        return None

    return behave


@pytest.mark.parametrize("status", [400, 413, 422, 500])
async def test_the_one_bad_request_gets_its_own_answer_byte_for_byte_and_its_neighbours_theirs(status: int):
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
    # The batch, and the runs again: marked, one after the other in the batch's slot. The second half is
    # known to hold the bad request without a run; so is 5, which runs for its own answer.
    assert [run.fields.get(ATTEMPT) for run in s.runs] == [None] + [b"%d" % n for n in range(1, 6)]
    assert [run.request.fresh for run in s.runs] == [False] + [True] * 5
    assert max(run.running for run in s.runs) == 1
    assert s.batches() == [list(range(8)), [0, 1, 2, 3], [4, 5], [4], [5], [6, 7]]
    assert s.dispatcher.counts.batches == 1
    assert b"isolation_runs_total 5.0" in generate_latest(s.metrics)


@pytest.mark.parametrize(
    "fault",
    [
        Response(status=429, body=b"x"),
        Response(status=502, body=b"x"),
        Response(status=503, body=b"x"),
        Response(status=504, body=b"x"),
        Response(status=408, body=b"x"),
        ConnectionLost("cut"),
        UpstreamTimeout("slow"),
    ],
)
async def test_only_a_complete_answer_that_may_be_one_requests_fault_is_isolated(fault: Response | Exception):
    s = Scripted(behaviour=lambda _: fault)
    await asyncio.gather(s.ask(1), s.ask(2))
    assert s.batches() == [[1, 2]]


def failed_with_others(outcome: object, *, status: int = 502) -> PenstockError:
    """The answer that holds nothing of what others have sent."""
    assert isinstance(outcome, PenstockError)
    assert (outcome.reason, outcome.status) == (Reason.BATCH_FAILED, status)
    assert not outcome.not_admitted, "it may have been executed"
    return outcome


async def test_with_a_policy_of_fail_no_request_gets_what_the_model_said_of_others():
    s = Scripted(behaviour=failing(1), on_batch_error="Fail")
    for outcome in await asyncio.gather(s.ask(1), s.ask(2)):
        error = failed_with_others(outcome)
        assert error.detail == ("the model answered 400 to a batch of 2 requests; it may have been executed")
    assert s.batches() == [[1, 2]]
    alone = await s.ask(1)
    assert isinstance(alone, Response)
    assert (alone.status, alone.body) == (400, b"[1]")


@pytest.mark.parametrize(("status", "expected"), [(429, 429), (503, 503), (504, 504), (502, 502), (501, 502)])
async def test_a_model_that_has_too_much_to_do_says_so_to_all_in_words_of_ours(status: int, expected: int):
    busy = Response(status=status, headers=((b"retry-after", b"7"),), body=b"ids of others")
    s = Scripted(behaviour=lambda _: busy)
    for outcome in await asyncio.gather(s.ask(1), s.ask(2)):
        answer = failed_with_others(outcome, status=expected).response()
        assert b"ids of others" not in answer.body
        retry_after = dict(answer.headers).get(b"retry-after")
        assert retry_after == (b"7" if expected in (429, 503) else None)


async def test_an_answer_that_cannot_be_split_is_isolated_too():
    def behave(run: Run) -> Response | None:
        return Response(status=200, body=b'{"predictions": []}') if len(run.items) > 2 else None

    s = Scripted(behaviour=behave, max_batch_size=4)
    outcomes = await asyncio.gather(*(s.ask(number) for number in range(4)))
    assert [got(outcome) for outcome in outcomes] == [[0], [1], [2], [3]]


async def test_a_run_again_that_gets_no_answer_ends_the_search():
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
        failed_with_others(outcome)
    assert s.batches() == [[0, 1, 2, 3], [0, 1]]


async def test_who_has_left_or_expired_meanwhile_is_not_run_again():
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
    assert s.batches() == [[2, 0, 1, 3], [2, 0], [0, 3], [0], [3]]


async def test_a_request_larger_than_a_batch_keeps_the_parts_that_passed_beside_a_bad_neighbour():
    s = Scripted(max_batch_size=4, behaviour=failing("bad"))
    large, bad = s.ask(*range(6)), s.ask("bad")
    assert got(await large) == list(range(6))
    outcome = await bad
    assert isinstance(outcome, Response)
    assert outcome.body == b"['bad']"
    assert s.batches() == [[0, 1, 2, 3], [4, 5, "bad"], [4, 5], ["bad"]]


class SlowToBegin(Scripted):
    """A model that takes ten seconds more over what begins with item 0."""

    async def send(self, request: Request, timeout: float) -> Response:
        if json.loads(request.body)["instances"][0] == 0:
            await asyncio.sleep(10)
        return await super().send(request, timeout)


async def test_a_passed_part_of_a_request_whose_rest_still_runs_is_not_told_its_neighbours_fault():
    s = SlowToBegin(max_batch_size=4, max_concurrent_batches=2, behaviour=failing("bad"))
    large, bad = s.ask(*range(6)), s.ask("bad")
    outcome = await bad
    assert isinstance(outcome, Response)
    assert outcome.status == 400
    assert not large.done()
    assert got(await large) == list(range(6))


async def test_a_slot_stays_taken_until_the_model_is_done_though_nobody_waits_any_more():
    s = Scripted(base=5.0)
    late = s.ask(1, timeout=2.0)
    await asyncio.sleep(0.1)
    following = s.ask(2)
    outcome = await late
    assert isinstance(outcome, PenstockError)
    assert s.loop.time() == pytest.approx(1002, abs=0.01)
    assert got(await following) == [2]
    assert [run.begun - 1000 for run in s.runs] == pytest.approx([0, 5])


@pytest.mark.parametrize(("status", "named"), [(500, ["id-(5.)"]), (422, [])])
async def test_a_search_logs_the_request_that_the_model_failed_on(
    capsys: pytest.CaptureFixture[str], status: int, named: list[str]
):
    """Where the model failed, not where it refused: that concerns the caller alone."""
    s = Scripted(max_batch_size=8, behaviour=failing(5, status=status))
    await asyncio.gather(*(s.ask(number) for number in range(8)))
    await s.close()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    alone = [line["request_ids"][0] for line in lines if line.get("requests") == 1]
    assert alone == named


async def test_a_bad_request_with_a_short_deadline_ends_no_search_for_the_others():
    """Batches are in the order of deadlines, so the first half that is run again has the nearest ones."""
    s = Scripted(base=0.3, behaviour=failing("bad"), max_batch_size=4)
    blocks = s.ask("first")
    await asyncio.sleep(0.1)
    short, valid = s.ask("bad", timeout=0.7), s.ask("valid", timeout=30.0)
    assert got(await blocks) == ["first"]
    outcome = await short
    assert isinstance(outcome, PenstockError)
    assert outcome.reason is Reason.DEADLINE
    assert got(await valid) == ["valid"]


async def test_an_answer_that_cannot_be_read_is_the_fault_of_one_request_too():
    """As a server makes it that puts what it was sent into a field of its answer."""

    def behave(run: Run) -> Exception | None:
        return AnswerUnreadable("a field with a control character") if "odd" in run.items else None

    s = Scripted(behaviour=behave, max_batch_size=8)
    outcomes = await asyncio.gather(*(s.ask(item) for item in (1, 2, "odd", 3, 4)))
    assert [got(outcome) for outcome in (*outcomes[:2], *outcomes[3:])] == [[1], [2], [3], [4]]
    assert isinstance(outcomes[2], PenstockError)
    assert outcomes[2].reason is Reason.BAD_ANSWER
    assert "control character" in outcomes[2].detail


async def test_an_answer_that_cannot_be_read_goes_to_nobody_else():
    s = Scripted(behaviour=lambda _: AnswerUnreadable("secret of 1"), on_batch_error="Fail")
    for outcome in await asyncio.gather(s.ask(1), s.ask(2)):
        assert isinstance(outcome, PenstockError)
        assert outcome.reason is Reason.BAD_ANSWER
        assert "secret" not in outcome.detail


def test_a_credential_that_batches_do_not_carry_is_said_once(capsys: pytest.CaptureFixture[str]):
    """A model knows callers by a field of no known name: all are answered, and one line says why."""

    def behaviour(run: Run) -> Response | None:
        return None if run.fields.get(b"x-badge") else Response(status=401)

    async def main():
        s = Scripted(behaviour=behaviour)

        async def ask(*badges: str) -> list[int]:
            answers = await asyncio.gather(*(s.ask(1, x_badge=badge, user_agent=badge) for badge in badges))
            return [answer.status for answer in answers]

        assert await ask("1", "1") == [200, 200]
        assert s.metrics.warning == ""
        assert await ask("1", "2", "3") == await ask("2", "3", "1") == [200] * 3
        assert await ask("1", "", "3") == [200, 401, 200]  # who is refused alone, too, shows nothing
        assert b"penstock_sidecar_unauthorized_batches_total 2.0" in generate_latest(s.metrics)
        await s.close()
        return s.metrics.warning

    warning = fake_loop.run(main())
    assert warning.endswith("name its header in batchKeyHeaders. Headers in which they differ: x-badge")
    logged = [line for line in capsys.readouterr().err.splitlines() if "do not carry" in line]
    assert [json.loads(line)["detail"] for line in logged] == [warning]
