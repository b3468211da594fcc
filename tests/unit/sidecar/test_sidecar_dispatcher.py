"""The dispatcher on a clock of its own: when batches are cut, what they hold, and how each request ends."""

from __future__ import annotations

import asyncio
import json
import traceback
from typing import Any

import pytest

from penstock_sidecar.batching import runner
from penstock_sidecar.queue.request import Outcome
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import NOT_ADMITTED, SERVER_TIMING, get
from penstock_wire.http import ConnectFailed, ConnectionLost, Response, UpstreamError, UpstreamTimeout
from tests.support.models.scripted_model import Asked, Run, Scripted, got

pytestmark = pytest.mark.usefixtures("sending")


async def test_an_idle_model_is_sent_the_first_request_at_once_and_a_busy_one_gathers():
    s = Scripted(base=1.0, max_batch_size=4)
    first = s.ask(0)
    await asyncio.sleep(0.1)
    rest = [s.ask(i) for i in range(1, 7)]
    assert got(await first) == [0]
    assert [got(await task) for task in rest] == [[i] for i in range(1, 7)]
    assert s.batches() == [[0], [1, 2, 3, 4], [5, 6]]
    assert [run.begun - 1000 for run in s.runs] == pytest.approx([0, 1, 2])


async def test_requests_of_one_turn_of_the_loop_share_a_batch_even_with_an_idle_model():
    s = Scripted(max_batch_size=4)
    tasks = [s.ask(i) for i in range(3)]
    await asyncio.gather(*tasks)
    assert s.batches() == [[0, 1, 2]]


async def test_a_whole_batch_that_waits_is_with_the_model_before_the_answers_go_out(
    monkeypatch: pytest.MonkeyPatch,
):
    s = Scripted(max_batch_size=2)
    seen: list[int] = []
    finish = Asked.finish

    def noting(work: Asked, outcome: Outcome) -> None:
        seen.append(s.dispatcher.counts.batches)
        finish(work, outcome)

    monkeypatch.setattr(Asked, "finish", noting)
    first = [s.ask(i) for i in range(2)]
    await asyncio.sleep(0.5)
    rest = [s.ask(i) for i in range(2, 4)]
    await asyncio.gather(*first, *rest)
    assert seen == [2, 2, 2, 2]


async def test_a_part_full_batch_takes_in_what_came_while_the_last_one_was_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    s = Scripted(max_batch_size=4)
    loop = asyncio.get_running_loop()
    finish = Asked.finish
    late = s.work(2)
    late.future = loop.create_future()

    def noting(work: Asked, outcome: Outcome) -> None:
        if work is not late and not late.queued and not late.future.done():
            loop.call_soon(s.dispatcher.accept, late)
            monkeypatch.undo()
        finish(work, outcome)

    monkeypatch.setattr(Asked, "finish", noting)
    first = s.ask(0)
    await asyncio.sleep(0.5)
    second = s.ask(1)
    await asyncio.gather(first, second, late.future)
    assert [sorted(batch) for batch in s.batches()] == [[0], [1, 2]]


async def test_slots_are_never_exceeded_and_all_are_used():
    s = Scripted(max_batch_size=1, max_concurrent_batches=3)
    await asyncio.gather(*(s.ask(i) for i in range(9)))
    assert max(run.running for run in s.runs) == 3
    assert [round(run.begun - 1000, 6) for run in s.runs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"target": "/a"}, {"target": "/b"}),
        ({"target": "/a?x=1"}, {"target": "/a?x=2"}),
        ({"authorization": "Bearer 1"}, {"authorization": "Bearer 2"}),
        ({"origin": "https://a.example"}, {"origin": "https://b.example"}),
        ({"origin": "https://a.example"}, {}),
        ({"x_penstock_method": "f"}, {"x_penstock_method": "g"}),
        ({"content_type": "application/json"}, {}),
        ({"x_tenant": "1"}, {"x_tenant": "2"}),
        ({"x_api_key": "1"}, {}),
        ({"api_key": "1"}, {"api_key": "2"}),
        ({"x_goog_api_key": "1"}, {"x_goog_api_key": "2"}),
        ({"ocp_apim_subscription_key": "1"}, {"ocp_apim_subscription_key": "2"}),
        ({"apikey": "1"}, {"apikey": "2"}),
        ({"proxy_authorization": "Basic 1"}, {"proxy_authorization": "Basic 2"}),
        ({"x_auth_request_email": "a@example"}, {"x_auth_request_email": "b@example"}),
        ({"x_amz_security_token": "1"}, {"x_amz_security_token": "2"}),
        ({"x_amzn_oidc_identity": "1"}, {"x_amzn_oidc_identity": "2"}),
        ({"x_forwarded_user": "a"}, {"x_forwarded_user": "b"}),
        ({"x_forwarded_client_cert": "Hash=1"}, {}),
        ({"signature_input": "sig1=()"}, {"signature_input": "sig2=()"}),
        ({"x_hub_signature_256": "sha256=1"}, {"x_hub_signature_256": "sha256=2"}),
        ({"x_acme_token": "1"}, {"x_acme_token": "2"}),
        ({"x_penstock_call_chain": "a, b, a"}, {}),  # which ends calls of the others, were it theirs
        ({"x_penstock_call_chain": "a, b, c, d, e, f, g, h, i"}, {"x_penstock_call_chain": "a"}),
        ({"x_penstock_call_chain": "no chain,,,,"}, {"x_penstock_call_chain": "a, b"}),
        ({"members": {"signature": "a"}}, {"members": {"signature": "b"}}),
        ({"members": {"signature": "a"}}, {}),
    ],
)
async def test_unlike_requests_never_share_a_batch(first: dict[str, Any], other: dict[str, Any]):
    s = Scripted(batch_key_headers=("X-Tenant",))
    await asyncio.gather(s.ask(1, **first), s.ask(2, **other), s.ask(3, **first), s.ask(4, **other))
    assert sorted(s.batches()) == [[1, 3], [2, 4]]


async def test_fields_outside_the_key_do_not_part_requests_and_are_sent_only_where_equal():
    s = Scripted()
    await asyncio.gather(
        s.ask(1, traceparent="t1", user_agent="me", x_other="1", x_penstock_call_chain="a, b"),
        s.ask(2, x_other="1", traceparent="t2", user_agent="me", x_more="2"),
        s.ask(3, traceparent="t1", user_agent="me", x_other="1", accept_encoding="br", range="bytes=0-"),
    )
    (run,) = s.runs
    assert (run.fields[b"user-agent"], run.fields[b"x-other"]) == (b"me", b"1")
    assert not {b"traceparent", b"x-more", b"accept-encoding", b"range"} & run.fields.keys()
    assert run.fields[b"x-penstock-call-chain"] == b"a, b"  # the deepest is that of all
    assert run.fields[b"content-type"] == b"application/json"
    assert run.fields[b"x-request-id"] == b"id-(1.),id-(2.),id-(3.)"
    assert int(run.fields[b"x-penstock-timeout-ms"]) == 30_000


async def test_fields_about_a_body_or_one_request_reach_no_batch():
    """Even if they are equal: a batch has another body, and its answer is read here."""
    fields = {"accept_encoding": "br", "content_md5": "1", "if_match": "x", "idempotency_key": "k"}

    s = Scripted()
    await asyncio.gather(s.ask(1, **fields, x_penstock_queue="1"), s.ask(2, **fields, x_penstock_queue="1"))
    (run,) = s.runs
    ours = {b"content-type", b"x-request-id", b"x-penstock-timeout-ms", b"x-penstock-item-answers"}
    assert run.fields.keys() == ours


async def test_a_batch_has_the_origin_of_its_requests():
    """A model that answers by origin (CORS) needs the origin."""
    s = Scripted()
    await asyncio.gather(*(s.ask(number, origin="https://a.example") for number in range(2)))
    (run,) = s.runs
    assert run.fields[b"origin"] == b"https://a.example"


async def test_a_batch_of_one_request_passes_byte_for_byte_with_its_own_fields():
    s = Scripted()
    work = s.work(1, x_other="kept", x_penstock_priority="1", x_penstock_method="f")
    work.request.body = b' {"instances" : [1e2 ], "more": 9007199254740993}'
    await s.answer(work)
    (run,) = s.runs
    assert run.request.body == work.request.body
    assert run.fields[b"x-other"] == b"kept"
    assert run.fields[b"x-penstock-method"] == b"f"
    assert b"x-penstock-priority" not in run.fields


async def test_a_request_without_items_goes_alone_and_as_it_is():
    s = Scripted()
    await asyncio.gather(s.ask(), s.ask(), s.ask(1), s.ask(2))
    assert sorted(s.batches()) == [[], [], [1, 2]]


class TestWaiting:
    async def test_a_part_full_batch_waits_from_the_arrival_of_its_oldest_request(self):
        s = Scripted(max_batch_size=4, batch_wait_timeout_ms=500)
        first = s.ask(1)
        await asyncio.sleep(0.3)
        second = s.ask(2)
        await asyncio.gather(first, second)
        assert s.batches() == [[1, 2]]
        assert s.runs[0].begun - 1000 == pytest.approx(0.5, abs=0.001)

    @pytest.mark.parametrize("full", [{"max_batch_size": 2}, {"max_batch_bytes": 2}, {"max_batch_cost": 2}])
    async def test_a_full_batch_does_not_wait(self, full: dict[str, int]):
        s = Scripted(batch_wait_timeout_ms=500, **full)
        await asyncio.gather(s.ask(1), s.ask(2))
        assert s.runs[0].begun == 1000

    async def test_time_spent_waiting_for_a_slot_counts(self):
        s = Scripted(base=2.0, max_batch_size=4, batch_wait_timeout_ms=500)
        first = s.ask(1)
        await asyncio.sleep(0.6)
        second = s.ask(2)
        await asyncio.gather(first, second)
        assert [run.begun - 1000 for run in s.runs] == pytest.approx([0.5, 2.5], abs=0.001)

    async def test_a_deadline_cuts_the_wait_short(self):
        s = Scripted(base=0.1, max_batch_size=4, batch_wait_timeout_ms=5000)
        await s.ask(0, timeout=10.0)
        begun = s.loop.time()
        assert got(await s.ask(1, timeout=1.0)) == [1]
        # A batch takes 0.1 s: twice that is kept free, and a quarter more of it against small changes.
        assert s.runs[1].begun - begun == pytest.approx(0.75, abs=0.001)

    async def test_a_wait_leaves_a_quarter_of_the_deadline_where_nothing_is_known(self):
        """400 ms under a wait of 2 s: sent at the deadline it would be answered too late, or not at all."""
        s = Scripted(base=0.001, max_batch_size=4, batch_wait_timeout_ms=2000)
        for _ in range(2):
            begun = s.loop.time()
            assert got(await s.ask(1, timeout=0.4)) == [1]
            assert s.loop.time() - begun == pytest.approx(0.301, abs=0.001)
            await asyncio.sleep(10)

    async def test_one_line_that_waits_does_not_hold_another_that_is_full(self):
        s = Scripted(max_batch_size=2, batch_wait_timeout_ms=500)
        waiting = s.ask(1, target="/a", timeout=5.0)
        await asyncio.gather(s.ask(2, target="/b"), s.ask(3, target="/b"))
        await waiting
        assert s.batches() == [[2, 3], [1]]


class TestLimits:
    async def test_a_full_queue_refuses_with_the_policys_status_and_a_computed_retry_after(self):
        s = Scripted(base=8.0, max_batch_size=2, max_queued_items=4)
        await s.ask(0)
        tasks = [s.ask(0)]
        await asyncio.sleep(0.1)
        tasks += [s.ask(i, i) for i in (1, 2)]
        await asyncio.sleep(0.1)
        with pytest.raises(PenstockError) as caught:
            await s.ask(3)
        refused = caught.value
        assert (refused.reason, refused.status) == (Reason.QUEUE_FULL, 503)
        assert refused.not_admitted
        # Four items wait; batches held one item in 8 s until now, so half of them take 16 s.
        assert refused.retry_after == pytest.approx(16.0)
        await asyncio.gather(*tasks)

    async def test_no_queue_means_that_only_free_slots_take_requests(self):
        s = Scripted(max_batch_size=1, max_queued_items=0, max_concurrent_batches=2)
        tasks = [s.ask(1), s.ask(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(PenstockError):
            await s.ask(3)
        assert [got(await task) for task in tasks] == [[1], [2]]

    async def test_a_batch_holds_no_more_bytes_than_allowed_but_one_larger_item_goes_alone(self):
        s = Scripted(max_batch_size=8, max_batch_bytes=10)
        tasks = [s.ask(0)]
        await asyncio.sleep(0.1)
        tasks += [s.ask("aaaa"), s.ask("b"), s.ask("cccc"), s.ask("x" * 20), s.ask("d")]
        await asyncio.gather(*tasks)
        assert s.batches() == [[0], ["aaaa", "b"], ["cccc"], ["x" * 20], ["d"]]

    async def test_a_request_larger_than_a_batch_is_split_and_joined_again(self):
        s = Scripted(max_batch_size=4)
        large, small = s.ask(*range(10)), s.ask(10)
        assert got(await large) == list(range(10))
        assert got(await small) == [10]
        assert s.batches() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]

    async def test_parts_that_are_answered_in_another_order_are_joined_in_their_own(self):
        s = Scripted(base=1.0, item=1.0, max_batch_size=2, max_concurrent_batches=2)
        assert got(await s.ask(0, 1, 2)) == [0, 1, 2]
        assert s.batches() == [[0, 1], [2]]  # which takes less

    async def test_requests_that_fit_a_batch_are_never_split(self):
        s = Scripted(max_batch_size=4)
        await asyncio.gather(s.ask(1, 1, 1), s.ask(2, 2, 2), s.ask(3))
        assert s.batches() == [[1, 1, 1], [2, 2, 2, 3]]

    async def test_a_request_larger_than_the_whole_queue_is_taken_when_nothing_waits(self):
        s = Scripted(max_batch_size=1, max_queued_items=2)
        assert got(await s.ask(*range(9))) == list(range(9))


class TestAnswers:
    @pytest.mark.parametrize(
        ("error", "reason", "not_admitted"),
        [
            (ConnectFailed("refused"), Reason.MODEL_UNREACHABLE, True),
            # As the SDK does while it loads.
            (Response(503, ((NOT_ADMITTED, b"1"),)), Reason.NOT_READY, True),
            (ConnectionLost("cut"), Reason.MODEL_UNREACHABLE, False),
            (UpstreamTimeout("slow"), Reason.DEADLINE, False),
            (RuntimeError("a defect"), Reason.INTERNAL, False),
        ],
    )
    async def test_a_failed_run_answers_all_of_its_batch_and_the_next_goes_on(
        self,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception | Response,
        reason: Reason,
        not_admitted: bool,
    ):
        if not isinstance(error, UpstreamError | Response):
            monkeypatch.setattr(Scripted, "tasks", True)  # who calls back has errors of upstreams only

        s = Scripted(behaviour=lambda run: error if "bad" in run.items else None)
        tasks = [s.ask("bad"), s.ask(1)]
        await asyncio.sleep(0.1)
        after = s.ask(2)
        for task in tasks:
            outcome = await task
            assert isinstance(outcome, PenstockError)
            assert outcome.reason == reason
            assert outcome.not_admitted == not_admitted
        assert got(await after) == [2]

    @pytest.mark.parametrize(
        "body",
        [b'{"predictions": [1]}', b'{"predictions": [1,2,3]}', b"{}", b"garbage", b"", b'{"predictions": 5}'],
    )
    async def test_an_answer_that_cannot_be_split_is_502_for_all(self, body: bytes):
        s = Scripted(behaviour=lambda run: Response(status=200, body=body), on_batch_error="Fail")
        for task in [s.ask(1), s.ask(2)]:
            outcome = await task
            assert isinstance(outcome, PenstockError)
            assert (outcome.reason, outcome.status) == (Reason.BAD_ANSWER, 502)

    async def test_upstream_errors_come_back_untouched_to_each(self):
        def behaviour(run: Run) -> Response:
            return Response(
                status=418,
                headers=((b"x-why", b"tea"), (b"x-penstock-queue", b"9")),
                body=b"short and stout",
            )

        s = Scripted(behaviour=behaviour)
        for task in [s.ask(1), s.ask(2)]:
            outcome = await task
            assert isinstance(outcome, Response)
            assert (outcome.status, outcome.body) == (418, b"short and stout")
            assert get(outcome.headers, b"x-why") == b"tea"
            assert get(outcome.headers, b"x-penstock-queue") is None

    async def test_fields_and_members_of_the_models_come_back_but_none_that_is_about_the_whole_batch(self):
        def behaviour(run: Run) -> Response:
            headers = ((b"x-model", b"7"), (b"set-cookie", b"a=b"), (b"etag", b"1"))
            return Response(status=200, headers=headers, body=b'{"v": 7, "predictions": [1, 2]}')

        s = Scripted(behaviour=behaviour)
        for task, expected in [(s.ask(1), 1), (s.ask(2), 2)]:
            outcome = await task
            assert isinstance(outcome, Response)
            assert json.loads(outcome.body) == {"predictions": [expected], "v": 7}
            assert [name for name, _ in outcome.fields] == [b"x-model", SERVER_TIMING]

    async def test_server_timing_tells_queue_batch_and_model(self):
        s = Scripted()
        await asyncio.gather(s.ask(0), return_exceptions=True)
        first = s.ask(1)
        await asyncio.sleep(0.5)
        outcome = await s.ask(2)
        assert isinstance(outcome, Response)
        timing = get(outcome.fields, SERVER_TIMING)
        assert timing == b'queue;dur=500.000, batch;dur=0.000;desc="1", model;dur=1000.000'
        await first

    async def test_a_failed_part_fails_the_whole_request_and_its_rest_is_not_sent(self):
        s = Scripted(
            max_batch_size=2,
            behaviour=lambda run: Response(status=500, body=b"x") if 2 in run.items else None,
        )
        outcome = await s.ask(*range(8))
        assert isinstance(outcome, Response)
        assert outcome.status == 500
        await asyncio.sleep(5)
        assert s.batches() == [[0, 1], [2, 3]]

    async def test_a_request_of_which_a_part_ran_is_never_called_unexecuted(self):
        s = Scripted(
            max_batch_size=2, behaviour=lambda run: ConnectFailed("refused") if 2 in run.items else None
        )
        outcome = await s.ask(*range(4))
        assert isinstance(outcome, PenstockError)
        assert not outcome.not_admitted


@pytest.mark.interpreted
async def test_no_exception_ends_the_dispatcher(monkeypatch: pytest.MonkeyPatch):
    s = Scripted()
    choose, calls = s.dispatcher.queue.choose, []

    def fail_once(*args):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a defect")
        return choose(*args)

    monkeypatch.setattr(s.dispatcher.queue, "choose", fail_once)
    assert got(await s.ask(1)) == [1]
    assert s.dispatcher.alive


@pytest.mark.interpreted
@pytest.mark.parametrize("broken", ["compose", "distribute"])
async def test_a_batch_that_cannot_be_handled_gives_its_slot_back_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str
):
    s = Scripted()

    def fail(*_):
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(runner, broken, fail)
        outcome, _ = await asyncio.gather(s.ask(1), s.ask(3))
    assert isinstance(outcome, PenstockError)
    assert outcome.reason is Reason.INTERNAL
    assert s.dispatcher.ongoing == 0
    assert got(await s.ask(2)) == [2]
    await s.close()
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["message"], line["level"], line["requests"]) == ("batch failed", "error", 2)
    assert line["request_ids"] == ["id-(1.)", "id-(3.)"]


async def test_what_is_refused_over_and_over_leaves_nothing_behind():
    s = Scripted()
    error = PenstockError(Reason.DRAINING, "leaving", not_admitted=True)
    s.dispatcher.refuse(error)
    lengths = []
    for _ in range(3):
        with pytest.raises(PenstockError):
            await s.answer(s.work(1))
        lengths.append(len(traceback.extract_tb(error.__traceback__)))
    # An exception keeps the frames of each time it was raised, and they the requests' bodies.
    assert lengths[2] == lengths[0]
