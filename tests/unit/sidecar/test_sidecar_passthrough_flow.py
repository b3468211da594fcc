"""`Passthrough` on the fake clock: tunnels, drains, pauses, the end at once."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.drain import refusal
from penstock_wire.errors import PenstockError
from penstock_wire.http import (
    ClientGone,
    ConnectionLost,
)
from penstock_wire.http.tunnel import IDLE_SECONDS
from tests.support.clocks.fake_loop import settle
from tests.support.worlds.passing_bench import Answer, Asked, Bench, Line


class TestTunnels:
    async def open(self, bench: Bench, **fields: str) -> tuple[Asked, Line]:
        asked, model = bench.ask(**fields), Line()
        await settle()
        answer = Answer(101, body=None, headers=((b"connection", b"upgrade"), (b"upgrade", b"websocket")))
        answer.tunnel = model
        bench.model.answer(-1, answer)
        await settle()
        assert asked.switched is not None
        assert asked.switched[:2] == answer.headers
        assert bench.load == (0, 1)
        assert bench.passthrough.open_tunnels == 1
        return asked, model

    async def test_each_half_ends_by_itself(self) -> None:
        """It is ongoing until both have."""
        bench = Bench()
        asked, model = await self.open(bench)
        asked.client.inbox.put_nowait(b"to the model")
        model.inbox.put_nowait(b"to the client")
        asked.client.inbox.put_nowait(b"")
        await settle()
        assert (model.sent, model.ended) == ([b"to the model"], True)
        assert (asked.client.sent, asked.client.ended) == ([b"to the client"], False)
        assert bench.load == (0, 1)
        model.inbox.put_nowait(b"")
        await settle()
        assert asked.client.ended
        assert bench.load == (0, 0)
        assert not model.aborted
        assert not asked.client.aborted

    @pytest.mark.parametrize("side", ["client", "model"])
    async def test_a_side_that_is_gone_closes_the_other(self, side: str) -> None:
        bench = Bench()
        asked, model = await self.open(bench)
        if side == "client":
            asked.client.inbox.put_nowait(ClientGone("x"))
        else:
            model.inbox.put_nowait(ConnectionLost("x"))
        await settle()
        assert model.aborted
        assert asked.client.aborted
        assert bench.load == (0, 0)
        assert bench.passthrough.open_tunnels == 0

    @pytest.mark.parametrize("said", ["", "bad", "2000000"])
    async def test_one_that_is_idle_either_way_is_closed_and_gives_its_place_back(
        self, capsys: pytest.CaptureFixture[str], said: str
    ) -> None:
        """After the time that the router says, else after our own."""
        seconds = 2000.0 if said.isdigit() else IDLE_SECONDS

        bench = Bench()
        asked, model = await self.open(bench, **({"x_penstock_idle_ms": said} if said else {}))
        for line in (asked.client, model):  # either side's bytes are a sign of life
            await asyncio.sleep(seconds - 1)
            line.inbox.put_nowait(b"x")
        asked.client.inbox.put_nowait(b"")  # one half has ended, the other is as idle
        await asyncio.sleep(seconds - 1)
        assert bench.load == (0, 1)
        assert not model.aborted
        await asyncio.sleep(2)
        assert bench.load == (0, 0)
        assert bench.passthrough.open_tunnels == 0
        assert model.aborted
        assert asked.client.aborted
        (line,) = map(json.loads, capsys.readouterr().err.splitlines())
        assert line["message"] == "tunnel was idle"
        assert line["request_id"]

    async def test_a_drain_closes_it_at_the_timeout(self) -> None:
        """`refuse_queued` is what a drain does then."""
        bench = Bench()
        _, model = await self.open(bench)
        assert bench.passthrough.refuse_queued(refusal()) == 0
        await bench.passthrough.idle()
        assert model.aborted


class TestFlow:
    async def test_a_drain_refuses_what_waits_and_what_comes_and_waits_for_the_rest(self) -> None:
        bench = Bench()
        ongoing, queued = bench.ask(), bench.ask()
        bench.passthrough.refuse(refusal())
        came = bench.ask()
        assert bench.passthrough.refuse_queued(refusal()) == 1
        for refused in (queued, came):
            assert (refused.status, refused.reason) == (503, "draining")
            assert refused.field(b"x-penstock-not-admitted") == b"1"
        idle = asyncio.ensure_future(bench.passthrough.idle())
        await settle()
        assert not idle.done()
        bench.model.answer(0)
        await idle
        assert ongoing.status == 200
        bench.passthrough.refuse(None)
        again = bench.ask()
        await settle()
        bench.model.answer(1)
        await settle()
        assert again.status == 200

    async def test_while_paused_all_wait(self) -> None:
        bench = Bench(slots=5)
        first = bench.ask()
        await settle()
        bench.passthrough.pause()
        second = bench.ask()
        quiet = asyncio.ensure_future(bench.passthrough.quiet())
        await settle()
        assert bench.load == (1, 1)
        assert not quiet.done()
        bench.model.answer(0)
        await quiet
        assert bench.load == (1, 0)
        bench.passthrough.resume()
        await settle()
        bench.model.answer(1)
        await settle()
        assert (first.status, second.status) == (200, 200)

    async def test_an_abort_answers_what_can_be_answered_and_cuts_the_rest(self) -> None:
        bench = Bench(slots=2)
        streamed, hanging = bench.ask(), bench.ask()
        await settle()
        answer = Answer(body=None)
        bench.model.answer(0, answer)
        await settle()
        await bench.passthrough.abort()
        assert (hanging.status, hanging.reason) == (502, "model_unreachable")
        assert streamed.status == 200
        assert answer.aborted
        assert bench.load == (0, 0)
        assert bench.model.cancelled == 1

    @given(
        st.lists(
            st.tuples(st.sampled_from(["ask", "leave", "answer", "fail", "sleep"]), st.integers(0, 20)),
            max_size=60,
        )
    )
    async def test_each_request_is_answered_once_or_has_left(self, steps: list[tuple[str, int]]) -> None:
        """Whatever happens in whatever order: never over the limit, and in the end nothing is left."""
        bench = Bench(slots=2, max_queued_items=3, default_timeout_ms=2000)
        asked: list[Asked] = []
        left: set[int] = set()
        for step, value in steps:
            if step == "ask":
                asked.append(bench.ask(f"/{len(asked)}"))
            elif step == "leave":
                waiting = [number for number, flow in enumerate(asked) if flow.gone is not None]
                if waiting:
                    number = waiting[value % len(waiting)]
                    asked[number].leave()
                    left.add(number)
            elif step == "sleep":
                await asyncio.sleep(value / 10)
            else:
                await settle(value)
                pending = [n for n, call in enumerate(bench.model.calls) if not call[3].done()]
                if pending:
                    bench.model.answer(
                        pending[value % len(pending)], ConnectionLost("x") if step == "fail" else None
                    )
            assert bench.passthrough.ongoing <= 2
            assert bench.passthrough.queued <= 3
        await asyncio.sleep(10)
        assert bench.load == (0, 0)
        for number, flow in enumerate(asked):
            assert len(flow.answers) == (0 if number in left else 1)
        assert len(set(bench.model.targets)) == len(bench.model.targets)


async def test_errors_keep_no_frames() -> None:
    """A refusal is one object for all whom it refuses."""
    bench = Bench()
    error: PenstockError = refusal()
    bench.passthrough.refuse(error)
    for _ in range(3):
        bench.ask()
    depth, frame = 0, error.__traceback__
    while frame is not None:
        depth, frame = depth + 1, frame.tb_next
    assert depth <= 1
