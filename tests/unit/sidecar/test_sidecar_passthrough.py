"""`Passthrough` on the fake clock: the queue, the limit, deadlines, refusals, who leaves."""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client import generate_latest

from penstock_sidecar.passthrough.passthrough import STREAM_BYTES, STREAM_IDLE_SECONDS, Passthrough
from penstock_wire.control.settings import Fairness, Priority
from penstock_wire.http import (
    AnswerUnreadable,
    ClientGone,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    Request,
    UpstreamTimeout,
)
from penstock_wire.http.messages import Trailers
from tests.support.clocks.fake_loop import settle
from tests.support.worlds.passing_bench import Answer, Asked, Bench, settings


class TestQueue:
    async def test_the_earliest_deadline_goes_first_and_settings_count_at_once(self) -> None:
        """Never more than the limit in the model; requests without a timeout go in order of arrival."""
        bench = Bench(slots=2)
        asked = [bench.ask(f"/{number}") for number in range(4)]
        asked.append(bench.ask("/urgent", x_penstock_timeout_ms="5000"))
        await settle()
        assert bench.model.targets == ["/0", "/1"]
        assert bench.load == (3, 2)
        bench.model.answer(1)
        await settle()
        assert bench.model.targets[2:] == ["/urgent"]
        bench.passthrough.apply(settings(3))
        await settle()
        assert bench.model.targets[3:] == ["/2"]
        bench.passthrough.apply(settings(1))
        for number in (0, 2, 3):
            assert bench.passthrough.queued == 1
            bench.model.answer(number)
            await settle()
        bench.model.answer(4)
        await settle()
        assert [flow.status for flow in asked] == [200] * 5
        assert bench.load == (0, 0)
        assert bench.firsts == 1

    @pytest.mark.parametrize(("limit", "room"), [(None, 16), (3, 3), (0, 0)])
    async def test_a_full_queue_refuses_with_the_time_until_there_is_room(
        self, limit: int | None, room: int
    ) -> None:
        """Mean service time · position / limit; surely not executed."""
        bench = Bench(slots=2, max_queued_items=limit)
        for number in range(2):
            bench.ask()
            await settle()
            await asyncio.sleep(4)
            bench.model.answer(number)
            await settle()
        for _ in range(2 + room):
            bench.ask()
        assert bench.passthrough.queued == bench.passthrough.queue_limit == room
        refused = bench.ask(x_request_id="mine")
        assert (refused.status, refused.reason) == (503, "queue_full")
        assert refused.field(b"retry-after") == b"%d" % max(1, (room + 1) * 4 // 2)
        assert refused.field(b"x-penstock-not-admitted") == b"1"
        assert refused.field(b"x-request-id") == b"mine"
        assert refused.field(b"x-penstock-queue") == b"%d" % room
        await bench.passthrough.abort()

    async def test_who_waits_past_its_deadline_is_never_sent(self) -> None:
        """It gets its error at its deadline, and the others go on."""
        bench = Bench()
        first = bench.ask("/first")
        short = bench.ask("/short", x_penstock_timeout_ms="1500")
        other = bench.ask("/other", default="1")
        late = bench.ask("/late", x_penstock_timeout_ms="0")
        assert (late.status, late.reason) == (503, "deadline")
        assert late.field(b"x-penstock-not-admitted") == b"1"
        await asyncio.sleep(1.4)
        assert bench.passthrough.oldest_age == pytest.approx(1.4)
        assert short.answers == []
        await asyncio.sleep(0.2)
        assert (short.status, short.reason) == (504, "deadline")
        bench.model.answer(0)
        await settle()
        bench.model.answer(1)
        await settle()
        assert bench.model.targets == ["/first", "/other"]
        assert (first.status, other.status) == (200, 200)

    async def test_what_expired_in_a_long_turn_is_not_sent_either(self) -> None:
        """The place falls free before the timer could ring."""
        bench = Bench()
        first, second = bench.ask("/first"), bench.ask("/second")
        await settle()
        bench.late = 31.0
        bench.model.answer(0)
        await settle()
        assert bench.model.targets == ["/first"]
        assert (first.status, second.status, second.reason) == (200, 504, "deadline")
        assert bench.load == (0, 0)

    async def test_who_leaves_the_queue_is_never_sent_and_costs_no_place(self) -> None:
        bench = Bench(max_queued_items=1)
        bench.ask("/first")
        bench.ask("/gone").leave()
        assert bench.load == (0, 1)
        bench.ask("/next")
        await settle()
        bench.model.answer(0)
        await settle()
        assert bench.model.targets == ["/first", "/next"]
        await bench.passthrough.abort()

    async def test_priority_and_fairness_order_what_waits(self) -> None:
        """As batched requests: by level, then by the share that was served least; a change sorts anew."""
        bench = Bench(priority=Priority(levels=2, default=2), fairness=Fairness(header="x-tenant"))
        bench.ask("/first")
        for number in range(2):
            bench.ask(f"/a{number}", x_tenant="a")
        bench.ask("/b", x_tenant="b")
        bench.ask("/urgent", x_tenant="a", x_penstock_priority="1")
        await settle()
        for number in range(4):
            bench.model.answer(number)
            await settle()
        assert bench.model.targets == ["/first", "/urgent", "/b", "/a0", "/a1"]
        bench.ask("/bulk", x_tenant="a")
        bench.ask("/soon", x_tenant="a", x_penstock_priority="1")
        bench.passthrough.apply(settings(1))
        bench.model.answer(4)
        await settle()
        assert bench.model.targets[-1] == "/bulk"  # no levels any more: the first to arrive
        await bench.passthrough.abort()

    async def test_in_a_full_queue_the_urgent_take_the_place_of_the_others(self) -> None:
        bench = Bench(priority=Priority(levels=2, default=2), max_queued_items=2)
        bench.ask("/first")
        bulk = []
        for number in range(3):
            bulk.append(bench.ask(f"/{number}"))
            await asyncio.sleep(0.1)
        assert bulk[2].reason == "queue_full"
        urgent = bench.ask("/urgent", x_penstock_priority="1")
        await settle()
        assert (bulk[1].status, bulk[1].reason) == (503, "queue_full")
        assert bulk[1].field(b"x-penstock-not-admitted") == b"1"
        assert (bulk[0].answers, urgent.answers, bench.passthrough.queued) == ([], [], 2)
        bench.model.answer(0)
        await settle()
        assert bench.model.targets == ["/first", "/urgent"]
        await bench.passthrough.abort()


class TestAnswers:
    @pytest.mark.parametrize(("said", "expected"), [("", STREAM_IDLE_SECONDS), ("7000", 7), ("0", 60)])
    async def test_what_is_sent_and_what_comes_back(self, said: str, expected: float) -> None:
        """The remaining time is passed on; the model's own Penstock fields are not."""
        bench = Bench()
        bench.ask("/first")
        await asyncio.sleep(2)
        more = {"x_penstock_idle_ms": said} if said else {}
        more["x_penstock_timeout_ms"] = "9000"
        second = bench.ask("/second", x_request_id="mine", x_a="1", **more)
        await asyncio.sleep(1)
        bench.model.answer(0)
        await settle()
        request, timeout, idle, _ = bench.model.calls[1]
        assert (timeout, idle) == (pytest.approx(8), expected)
        assert request.headers == (
            (b"x-a", b"1"),
            (b"x-request-id", b"mine"),
            (b"x-penstock-timeout-ms", b"8000"),
        )
        await asyncio.sleep(0.5)
        fields = ((b"x-m", b"7"), (b"x-penstock-not-admitted", b"1"), (b"x-request-id", b"its own"))
        bench.model.answer(1, Answer(404, headers=fields))
        await settle()
        assert second.answers[0].fields == (
            (b"x-m", b"7"),
            (b"server-timing", b"queue;dur=1000.000, model;dur=500.000"),
            (b"x-request-id", b"mine"),
            (b"x-penstock-queue", b"0"),
        )
        assert (second.status, second.answers[0].body) == (404, b"ok")
        third = bench.ask("/third")
        await settle()
        bench.model.answer(2, Answer(404, headers=((b"x-m", b"%d" % 7), (b"x-request-id", b"another"))))
        await settle()
        # What an answer alone has is in its lines, so that a front sends the rest as it did before.
        assert third.answers[0].headers is second.answers[0].headers

    @pytest.mark.parametrize(
        ("error", "status", "reason", "not_admitted"),
        [
            (ConnectFailed("x"), 502, "model_unreachable", b"1"),
            (ConnectTimeout("x", 2.0), 502, "model_unreachable", b"1"),
            (ConnectTimeout("x", 0.004), 504, "deadline", b"1"),  # by its client's time, not for the pod
            (Answer(503, headers=((b"x-penstock-not-admitted", b"1"),)), 503, "not_ready", b"1"),
            (ConnectionLost("x"), 502, "model_unreachable", None),
            (AnswerUnreadable("x"), 502, "bad_answer", None),
            (UpstreamTimeout("x"), 504, "deadline", None),
            (RuntimeError("x"), 500, "internal", None),
        ],
    )
    async def test_a_model_that_gives_no_answer(
        self, error: Exception | Answer, status: int, reason: str, not_admitted: bytes | None
    ) -> None:
        """The reason says why; only what was surely not executed may be tried elsewhere; the slot is free."""
        bench = Bench()
        asked = bench.ask()
        await settle()
        bench.model.answer(0, error)
        await settle()
        assert (asked.status, asked.reason) == (status, reason)
        assert asked.field(b"x-penstock-not-admitted") == not_admitted
        assert bench.load == (0, 0)

    @pytest.mark.parametrize(
        ("asked_ms", "whose"),
        [
            ({}, "the backend's defaultTimeout"),
            ({"x_penstock_timeout_ms": "120000"}, "the backend's defaultTimeout"),
            (
                {"x_penstock_timeout_ms": "29999"},
                "the request's x-penstock-timeout-ms: the client's time, or the endpoint's",
            ),
        ],
    )
    async def test_a_model_that_takes_too_long(self, asked_ms: dict[str, str], whose: str) -> None:
        """The answer says which time was over: the longer one of an endpoint does not count."""
        bench = Bench()
        asked = bench.ask(**asked_ms)
        await asyncio.sleep(31)
        (answer,) = asked.answers
        assert json.loads(answer.body)["detail"] == f"the model: no answer ({whose})"

    async def test_a_stream_is_ongoing_until_it_ended_well_or_not(self) -> None:
        """Its end, its breaking off, its client's leaving: each gives the place back once."""
        bench = Bench()
        for end, code in ((b"", ("200", "")), (ConnectionLost("x"), ("200", "model_unreachable"))):
            asked = bench.ask()
            await settle()
            answer = Answer(body=None)
            bench.model.answer(-1, answer)
            await settle()
            stream = asked.answers[0].stream
            assert stream is not None
            answer.line.inbox.put_nowait(b"one")
            assert await anext(stream) == b"one"
            assert bench.load == (0, 1)
            assert bench.passthrough.open_streams == 1
            answer.line.inbox.put_nowait(end)
            with pytest.raises((StopAsyncIteration, ConnectionLost)):
                await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert not answer.aborted
            assert bench.load == (0, 0)
            assert (
                f'requests_total{{code="{code[0]}",reason="{code[1]}"}} 1.0'
                in generate_latest(bench.metrics).decode()
            )
        asked = bench.ask()
        await settle()
        answer = Answer(body=None)
        bench.model.answer(-1, answer)
        await settle()
        await asked.answers[0].stream.aclose()  # type: ignore[union-attr]
        assert answer.aborted
        assert bench.load == (0, 0)
        assert bench.passthrough.open_streams == 0
        assert (
            'requests_total{code="499",reason="client_gone"} 1.0' in generate_latest(bench.metrics).decode()
        )

    @pytest.mark.parametrize(
        ("behind", "counted"),
        [
            (b"0", 'code="200",reason=""'),
            (b"5", 'code="404",reason="model_answer"'),
            (b"13", 'code="500",reason="model_answer"'),
            (None, 'code="500",reason="model_answer"'),
        ],
    )
    @pytest.mark.parametrize("whole", [True, False])
    async def test_a_call_counts_by_the_status_at_its_end(
        self, behind: bytes | None, counted: str, *, whole: bool
    ) -> None:
        """Over HTTP each has 200; one that ends without a status is unknown to its client, too."""
        bench = Bench()
        bench.passthrough._takes_calls = True
        asked = Asked("/its.Own/Method")
        asked.request.trailers = True
        bench.passthrough.begin(asked)
        await settle()
        answer = Answer(body=b"ok" if whole else None)
        answer.trailers = Trailers(() if behind is None else ((b"grpc-status", behind),))
        bench.model.answer(-1, answer)
        await settle()
        if not whole:
            answer.line.inbox.put_nowait(b"")
            async for _ in asked.answers[0].stream:  # type: ignore[union-attr]
                pass
        assert f"requests_total{{{counted}}} 1.0" in generate_latest(bench.metrics).decode()

    @pytest.mark.parametrize("turns", [0, 1, 5])
    async def test_who_leaves_while_it_is_with_the_model_ends_its_connection_there(self, turns: int) -> None:
        """At whatever moment, even before the first step; the next one goes at once."""
        bench = Bench()
        asked = bench.ask("/gone")
        bench.ask("/next")
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.leave()
        await settle()
        assert asked.answers == []
        assert bench.model.targets[-1] == "/next"
        assert bench.load == (0, 1)
        bench.model.answer(-1)
        await settle()
        assert bench.load == (0, 0)

    async def test_a_body_that_breaks_off_is_its_clients_leaving(self) -> None:
        bench = Bench()
        asked = bench.ask()
        await settle()
        bench.model.answer(0, ClientGone("left"))
        await settle()
        assert asked.answers == []
        assert bench.load == (0, 0)

    async def test_head_is_told_the_length_that_a_body_would_have(self) -> None:
        bench = Bench()
        asked = Asked(method="HEAD")
        bench.passthrough.begin(asked)
        await settle()
        answer = Answer(body=b"")
        answer.length = 77
        bench.model.answer(0, answer)
        await settle()
        assert asked.answers[0].length == 77

    async def test_interim_answers_pass_without_fields_of_ours(self) -> None:
        bench = Bench()
        asked = bench.ask()
        await settle()
        request, *_ = bench.model.calls[0]
        assert request.interim is not None
        request.interim(103, ((b"link", b"</a>"), (b"x-penstock-queue", b"1"), (b"x-request-id", b"7")))
        assert asked.interims == [(103, ((b"link", b"</a>"),))]
        bench.model.answer(0)
        await settle()
        assert asked.status == 200

    def test_small_bodies_are_whole_and_large_ones_streams(self) -> None:
        def ask(length: int | None) -> bool:
            return Passthrough.streams(Request("POST", "/", (), b"", length=length))

        assert [ask(length) for length in (0, STREAM_BYTES, STREAM_BYTES + 1, None)] == [
            False,
            False,
            True,
            True,
        ]
