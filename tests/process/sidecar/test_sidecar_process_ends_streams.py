"""A real sidecar process is stopped while a batch is streamed: each client learns how its stream ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.processes.protocol_pair import ProtocolPair, pairs

SAYS = ("values", "text", "events", "late")
"""The clients of the batch that is streamed; the model says nothing to the last before it is resumed."""
WAITING = 2
WHOLE = {
    "values": b'{"step": 1}\n{"step": 2}\n',
    "text": b"one two",
    "events": b"data: 1\n\ndata: 2\n\n",
    "late": b'{"step": 2}\n',
}


class Listener:
    """One client of the stream, and what it received."""

    def __init__(self, pair: ProtocolPair, says: str) -> None:
        self._pair = pair
        self.says = says
        self.status = 0
        self.reason = ""
        self.not_admitted = False
        self.heard = b""
        self.begun = asyncio.Event()

    async def listen(self) -> bool:
        """Listen to the end; returns whether that was one, and not a cut."""
        url = self._pair.data + "/parked"
        body, fields = {"instances": [{"say": self.says}]}, {"accept": "application/x-ndjson"}
        async with self._pair.session.post(url, json=body, headers=fields) as answer:
            self.status = answer.status
            self.reason = answer.headers.get("x-penstock-reason", "")
            self.not_admitted = "x-penstock-not-admitted" in answer.headers
            try:
                async for piece in answer.content.iter_any():
                    self.heard += piece
                    self.begun.set()
            except aiohttp.ClientPayloadError:
                return False
        return True

    def refused(self) -> tuple[int, str, bool]:
        """Status, reason, and whether it was marked as not executed."""
        return (self.status, self.reason, self.not_admitted)


class Streaming:
    """A pair in the middle of a streamed batch, with others waiting."""

    def __init__(self, pair: ProtocolPair) -> None:
        self.pair = pair
        self.running = [Listener(pair, says) for says in SAYS]
        self.waiting = [Listener(pair, "values") for _ in range(WAITING)]
        self.tasks: list[asyncio.Task[bool]] = []

    async def begin(self) -> Streaming:
        """Wait until every client that was sent something has received it."""
        plug = self.pair.predict([1])
        self.tasks = await self.pair.together(len(SAYS), plug, *[each.listen() for each in self.running])
        for each in self.running[:-1]:
            await each.begun.wait()
        self.tasks += [asyncio.create_task(each.listen()) for each in self.waiting]
        await self.pair.until_state(ongoing=len(SAYS), queued=WAITING)
        return self

    async def ends(self) -> list[bool]:
        """Wait until each has its end."""
        return await asyncio.gather(*self.tasks)

    def check_whole(self, listeners: list[Listener]) -> None:
        """They have all that the model had to say to them."""
        assert [(each.status, each.heard) for each in listeners] == [
            (200, WHOLE[each.says]) for each in listeners
        ]

    def check_cut(self, why: str) -> None:
        """Nobody whose stream was cut can take it for complete, and all others have a status."""
        values, text, events, late = self.running
        beginning, said = values.heard.splitlines()
        assert (values.status, json.loads(beginning)) == (200, {"step": 1})
        error = json.loads(said)["error"]
        assert error["reason"] == "bad_answer"
        assert why in error["detail"]
        assert (text.status, text.heard) == (200, b"one ")
        assert (
            events.heard
            == b"data: 1\n\nevent: error\ndata: %b\n\n" % json.dumps(error, separators=(",", ":")).encode()
        )
        assert late.refused() == (502, "bad_answer", False)

    def check_refused(self) -> None:
        """The waiting requests got an error which says that they were not executed."""
        assert [each.refused() for each in self.waiting] == [DRAINING] * WAITING


DRAINING = (503, "draining", True)
UNREACHABLE = (502, "model_unreachable", False)
NEVER_SENT = (502, "model_unreachable", True)
CUT = [True, False, True, True] + [True] * WAITING
"""Plain text cannot carry our errors: its connection is cut."""


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Streaming]]]:
    async with pairs(tmp_path) as start:

        async def streaming(*flags: str, **batching: Any) -> Streaming:
            settings = {"defaultTimeoutMs": 600_000, **batching}
            return await Streaming(await start("instances", *flags, **settings)).begin()

        yield streaming


Begin = Callable[..., Awaitable[Streaming]]


async def test_sigterm_lets_the_stream_and_all_that_waits_end_whole(begin: Begin):
    streaming = await begin()
    pair = streaming.pair
    pair.signal()
    await pair.until_state(drain="flushing")
    await pair.resume()
    assert all(await streaming.ends())
    streaming.check_whole(streaming.running + streaming.waiting)
    assert await pair.sidecar.ended() == 0


async def test_a_drain_that_has_no_time_left_refuses_what_waits_and_lets_the_stream_end_whole(begin: Begin):
    streaming = await begin("--drain-timeout=0s")
    pair = streaming.pair
    pair.signal()
    await asyncio.gather(*streaming.tasks[len(SAYS) :])
    streaming.check_refused()
    await pair.resume()
    assert all(await streaming.ends())
    streaming.check_whole(streaming.running)
    assert await pair.sidecar.ended() == 0


async def test_a_hook_returns_when_the_stream_has_ended_whole(begin: Begin):
    streaming = await begin()
    pair = streaming.pair
    hook = asyncio.create_task(pair.admin_get("/drain"))
    await pair.until_state(drain="flushing", ongoing=len(SAYS))
    assert not hook.done()
    await pair.resume()
    assert (await hook).status == 200
    assert all(await streaming.ends())
    streaming.check_whole(streaming.running + streaming.waiting)


async def test_a_model_that_hangs_in_the_middle_of_its_stream_is_cut_before_the_grace_is_over(begin: Begin):
    """The process ends by itself, all errors sent: not by a deadline, an idle time or the drain's timeout."""
    streaming = await begin("--grace=4s", "--drain-timeout=600s")
    streaming.pair.signal()
    assert await streaming.ends() == CUT
    streaming.check_cut("the sidecar was stopped")
    streaming.check_refused()
    assert await streaming.pair.sidecar.ended() == 1


async def test_a_hook_that_used_up_the_grace_cuts_the_stream_at_sigterm(begin: Begin):
    streaming = await begin("--grace=2s", "--drain-timeout=600s")
    pair = streaming.pair
    hook = asyncio.create_task(pair.admin_get("/drain"))
    await pair.until_state(drain="flushing")
    pair.signal()
    assert await streaming.ends() == CUT
    streaming.check_cut("the sidecar was stopped")
    streaming.check_refused()
    assert await pair.sidecar.ended() == 1
    await asyncio.gather(hook, return_exceptions=True)


async def test_a_second_sigterm_cuts_the_stream_at_once(begin: Begin):
    streaming = await begin("--propagation-delay=60s")
    pair = streaming.pair
    pair.signal()
    await pair.until_state(drain="propagating")
    pair.signal()
    assert await streaming.ends() == CUT
    streaming.check_cut("the sidecar was stopped")
    streaming.check_refused()
    assert await pair.sidecar.ended() == 1


async def test_with_the_model_killed_in_the_middle_of_a_drain_each_is_told(begin: Begin):
    streaming = await begin("--propagation-delay=600s")
    pair = streaming.pair
    pair.signal()
    await pair.until_state(drain="propagating")
    pair.model.process.kill()
    assert await streaming.ends() == CUT
    streaming.check_cut("the model's stream")
    # They may have been sent into a connection whose end was not detected yet.
    assert {each.refused() for each in streaming.waiting} <= {DRAINING, NEVER_SENT, UNREACHABLE}
    assert await pair.sidecar.ended() == 0
