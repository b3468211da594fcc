"""A batch that the model answers by item: one run, each item its own status, its neighbours untouched."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client import generate_latest

from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import ITEM_ANSWERS
from penstock_wire.http import Response
from tests.support.models.scripted_model import Behaviour, Run, Scripted, got

pytestmark = pytest.mark.usefixtures("sending")

FORM = ((b"content-type", b"application/vnd.penstock.items+json"), (b"x-model", b"m7"), (b"etag", b"1"))


def by_item(answers: dict[Any, dict[str, Any]], **members: Any) -> Behaviour:
    """A model that answers these items by themselves, where it is asked for that."""

    def behave(run: Run) -> Response | None:
        if ITEM_ANSWERS not in run.fields or not any(item in answers for item in run.items):
            return None
        predictions = [None if item in answers else {"got": item} for item in run.items]
        own = [
            {"index": index, "status": 422, **answers[item]}
            for index, item in enumerate(run.items)
            if item in answers
        ]
        body = json.dumps({"predictions": predictions, "answers": own[::-1], **members})
        return Response(status=200, headers=FORM, body=body.encode())

    return behave


def problem(outcome: Any) -> dict[str, Any]:
    """The document of one of our errors."""
    assert isinstance(outcome, PenstockError), outcome
    document: dict[str, Any] = json.loads(outcome.response().body)
    return document


async def test_thirty_one_are_answered_200_and_one_422_in_one_run():
    ours = {"x-request-id": "id-6", "x-penstock-not-admitted": "1"}
    bad = {"headers": {"X-Why": "dark", **ours}, "body": {"detail": "too dark"}}
    s = Scripted(max_batch_size=32, behaviour=by_item({7: bad}, model="m7"))
    outcomes = await asyncio.gather(*(s.ask(number) for number in range(32)))
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Response)
        if number == 7:
            assert (outcome.status, outcome.body) == (422, b'{"detail": "too dark"}')
            assert outcome.headers == ((b"x-why", b"dark"), (b"content-type", b"application/json"))
        else:
            assert outcome.body == b'{"predictions":[{"got": %d}],"model":"m7"}' % number
            assert outcome.headers == ((b"content-type", b"application/json"), (b"x-model", b"m7"))
    assert s.batches() == [list(range(32))]
    assert s.runs[0].fields[ITEM_ANSWERS] == b"1"
    assert b"isolation_runs_total 0.0" in generate_latest(s.metrics)


async def test_a_lone_request_of_one_item_is_not_asked_for_item_answers_and_its_answer_passes_as_it_is():
    """Whatever its client says, and whatever the model answers."""
    answer = Response(status=200, headers=FORM, body=b'{"predictions":[null],"answers":[]} ')
    s = Scripted(behaviour=lambda _: answer)
    outcome = await s.ask(1, x_penstock_item_answers="1")
    assert isinstance(outcome, Response)
    assert (outcome.body, outcome.headers) == (answer.body, FORM)
    assert ITEM_ANSWERS not in s.runs[-1].fields


async def test_a_batch_that_was_drawn_up_before_asks_too():
    s = Scripted(max_batch_size=2, behaviour=by_item({3: {}}))
    outcomes = await asyncio.gather(*(s.ask(number) for number in range(4)))
    assert [run.fields[ITEM_ANSWERS] for run in s.runs] == [b"1", b"1"]
    assert [outcome.status for outcome in outcomes] == [200, 200, 200, 422]


async def test_a_request_of_several_items_gets_a_problem_that_names_them_and_its_neighbours_their_answers():
    own = {
        3: {"status": 422, "body": {"detail": "too dark", "big": 2**60}},
        4: {"status": 422, "bodyB64": "bm8="},
        9: {"status": 404, "body": "mate's"},
    }
    s = Scripted(behaviour=by_item(own))
    alone = await s.ask(2, 3, 4)
    before, failed, after, mate = await asyncio.gather(s.ask(1), s.ask(2, 3, 4), s.ask(5, 6), s.ask(9))
    assert problem(alone) == problem(failed)
    assert got(before) == [1]
    assert got(after) == [5, 6]
    assert isinstance(mate, Response)
    assert (mate.status, mate.body) == (404, b'"mate\'s"')
    document = problem(failed)
    assert (document["status"], document["reason"]) == (422, "model_answer")
    assert document["detail"] == "item 1: the model answered 422. item 2: the model answered 422"
    assert document["items"] == [
        {"index": 1, "status": 422, "body": {"detail": "too dark", "big": 2**60}},
        {"index": 2, "status": 422, "bodyB64": "bm8="},
    ]
    assert len(s.runs) == 2


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([404], 404), ([404, 422], 422), ([422, 500], 500), ([503, 503], 503), ([200], 500), ([302, 422], 500)],
)
async def test_the_status_of_a_request_of_several_items(statuses: list[int], expected: int):
    """The items' own where they agree on an error; else 422 where all are the client's faults."""
    own = {f"bad {number}": {"status": status} for number, status in enumerate(statuses)}
    s = Scripted(behaviour=by_item(own))
    failed, fine = await asyncio.gather(s.ask("ok", *own), s.ask(1))
    assert problem(failed)["status"] == expected
    assert got(fine) == [1]


async def test_a_problem_names_ten_items_and_counts_the_rest():
    own = {number: {} for number in range(25)}
    s = Scripted(behaviour=by_item(own))
    failed, _ = await asyncio.gather(s.ask(*own), s.ask("ok"))
    document = problem(failed)
    assert [item["index"] for item in document["items"]] == list(range(10))
    assert document["detail"].endswith("item 9: the model answered 422. And 15 more items")


async def test_the_items_of_a_request_larger_than_a_batch_have_their_indices_in_the_request():
    """All are run, so its answer does not depend on where it is cut; a 200 of its own cannot be joined."""
    for own, status in (({"body": 1}, 422), ({"status": 200, "body": 1}, 500)):
        s = Scripted(max_batch_size=2, behaviour=by_item({5: own, 9: {}}))
        first, large = s.ask(0), s.ask(*range(1, 12))
        document = problem(await large)
        assert document["status"] == status
        assert [item["index"] for item in document["items"]] == [4, 8]
        assert got(await first) == [0]
        assert s.batches() == [[0], [1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11]]
        assert s.dispatcher.queued == s.dispatcher.ongoing == 0
        await s.close()


async def test_the_last_item_of_a_request_larger_than_a_batch_is_named_too():
    s = Scripted(max_batch_size=3, behaviour=by_item({4: {"status": 200, "body": 1}}))
    large, mate = await asyncio.gather(s.ask(1, 2, 3, 4), s.ask(5))
    assert s.batches() == [[1, 2, 3], [4, 5]]
    assert [item["index"] for item in problem(large)["items"]] == [3]
    assert got(mate) == [5]


async def test_an_answer_that_cannot_be_sent_is_its_own_requests_502():
    own = {2: {"status": 99}, 4: {"headers": {"x": "a\nb"}}}
    s = Scripted(behaviour=by_item(own))
    fine, bad, several = await asyncio.gather(s.ask(1), s.ask(2), s.ask(3, 4))
    assert got(fine) == [1]
    assert (problem(bad)["status"], problem(bad)["reason"]) == (502, "bad_answer")
    assert problem(bad)["detail"] == "the model's answer: expected a status from 200 to 599, found 99"
    assert problem(several)["detail"].startswith("the model's answer to item 1: expected the value of field")
    assert len(s.runs) == 1


async def test_an_answer_that_names_no_item_is_a_bad_answer_to_the_batch():
    """It is run again in halves, as any answer that cannot be split."""

    def behave(run: Run) -> Response | None:
        if len(run.items) == 1:
            return None
        body = b'{"predictions":[1,2],"answers":[{"index":2,"status":422}]}'
        return Response(status=200, headers=FORM, body=body)

    s = Scripted(behaviour=behave)
    assert [got(outcome) for outcome in await asyncio.gather(s.ask(1), s.ask(2))] == [[1], [2]]
    await s.close()
    s = Scripted(behaviour=behave, on_batch_error="Fail")
    for outcome in await asyncio.gather(s.ask(1), s.ask(2)):
        assert problem(outcome)["reason"] == Reason.BAD_ANSWER


@pytest.mark.interpreted  # of a compiled class no method is replaced
@pytest.mark.parametrize(
    ("statuses", "items"),
    [
        ([], 4),
        ([422], 4),
        ([500, 502], 4),
        ([422, 422, 400, 404], 4),
        ([503], 3),
        ([429, 503, 422], 2),
        ([503, 503, 429, 503], 0),
    ],
)
async def test_what_is_learned_of_the_model_from_a_run_that_it_answered_by_item(
    statuses: list[int], items: int, monkeypatch: pytest.MonkeyPatch
):
    """A success, of the items that it did not refuse for its load; nothing where it refused all."""
    own = {number: {"status": status} for number, status in enumerate(statuses)}
    s = Scripted(base=0.5, behaviour=by_item(own))
    seen: list[tuple[int, float]] = []

    def note(pace: ModelPace, now: float, cls: str, count: int, seconds: float, *costs: int) -> bool:
        seen.append((count, round(seconds, 3)))
        return False

    monkeypatch.setattr(ModelPace, "succeeded", note)
    outcomes = await asyncio.gather(*(s.ask(number) for number in range(4)))
    assert [outcome.status for outcome in outcomes] == statuses + [200] * (4 - len(statuses))
    assert seen == ([(items, 0.5)] if items else [])
