"""A real sidecar process is stopped while requests wait and run: each client learns how its request ended."""

from __future__ import annotations

import asyncio
import collections
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.sidecar_process import HELD, Pair, Reply, got

Start = Callable[..., Awaitable[Pair]]

EACH = 3
"""Requests that run, and requests that wait."""
NEVER = "/p?hang=1"


@pytest.fixture(params=["instances", "none"])
async def start(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    """A pair that runs `EACH` requests at once, batched (one by one) or passed through."""
    pairs: list[Pair] = []

    async def begin(*flags: str, **more: Any) -> Pair:
        pair = Pair(tmp_path, f"--protocol={request.param}", *flags)
        pair.max_ongoing_requests = EACH
        pairs.append(pair)
        settings = {"maxBatchSize": 1, "maxConcurrentBatches": EACH, "defaultTimeoutMs": 600_000, **more}
        return await pair.start(**settings)

    yield begin
    for pair in pairs:
        await pair.stop()


async def ask(pair: Pair, path: str) -> list[asyncio.Task[Reply]]:
    """So many that run, and then so many that wait."""
    running = [asyncio.create_task(pair.predict(number, path=path)) for number in range(EACH)]
    await pair.until_state(ongoing=EACH)
    await pair.until_run(EACH)
    waiting = [asyncio.create_task(pair.predict(number, path=path)) for number in range(EACH, 2 * EACH)]
    await pair.until_state(ongoing=EACH, queued=EACH)
    return running + waiting


async def outcomes(asked: list[asyncio.Task[Reply]]) -> list[tuple[int, str, bool]]:
    """Status, reason, and whether it was marked as not executed; a connection that was cut fails here."""
    replies = await asyncio.gather(*asked)
    return [(each.status, each.reason, "x-penstock-not-admitted" in each.headers) for each in replies]


DRAINING = (503, "draining", True)
UNREACHABLE = (502, "model_unreachable", False)
NEVER_SENT = (502, "model_unreachable", True)


async def test_sigterm_serves_all_that_was_accepted(start: Start):
    pair = await start()
    asked = await ask(pair, HELD)
    pair.signal()
    await pair.until_state(drain="flushing")
    await pair.release()
    assert [got(await task) for task in asked] == [[number] for number in range(2 * EACH)]
    assert await pair.sidecar.ended() == 0


async def test_sigterm_without_time_to_drain_refuses_what_waits_and_serves_what_runs(start: Start):
    pair = await start("--drain-timeout=0s")
    asked = await ask(pair, HELD)
    pair.signal()
    assert await outcomes(asked[EACH:]) == [DRAINING] * EACH
    await pair.release()
    assert [got(await task) for task in asked[:EACH]] == [[number] for number in range(EACH)]
    assert await pair.sidecar.ended() == 0


async def test_a_second_sigterm_tells_each_at_once_and_what_waited_was_never_sent(start: Start):
    pair = await start("--propagation-delay=60s")
    asked = await ask(pair, NEVER)
    pair.signal()
    await pair.until_state(drain="propagating")
    pair.signal()
    assert await outcomes(asked) == [UNREACHABLE] * EACH + [DRAINING] * EACH
    assert await pair.sidecar.ended() == 1
    assert len(await pair.runs()) == EACH


async def test_with_a_model_that_hangs_it_ends_before_its_grace_is_over_and_tells_each(start: Start):
    """Neither deadlines nor the drain's timeout end it before: what is left is a second of the grace."""
    pair = await start("--grace=4s", "--drain-timeout=1s")
    asked = await ask(pair, NEVER)
    pair.signal()
    assert await outcomes(asked) == [UNREACHABLE] * EACH + [DRAINING] * EACH
    assert await pair.sidecar.ended() == 1


async def test_a_grace_that_ends_before_the_drain_tells_each_as_well(start: Start):
    pair = await start("--grace=2s", "--drain-timeout=600s", "--propagation-delay=600s")
    asked = await ask(pair, NEVER)
    pair.signal()
    assert await outcomes(asked) == [UNREACHABLE] * EACH + [DRAINING] * EACH
    assert await pair.sidecar.ended() == 1


@pytest.mark.parametrize("before", [True, False], ids=["model first", "sigterm first"])
async def test_with_the_model_killed_each_is_told_whether_it_may_have_run(start: Start, before: bool):
    pair = await start("--propagation-delay=600s")
    asked = await ask(pair, HELD)
    if before:
        pair.model.process.kill()
        await pair.model.ended()
        pair.signal()
    else:
        pair.signal()
        await pair.until_state(drain="propagating")
        pair.model.process.kill()
    ends = await outcomes(asked)
    assert ends[:EACH] == [UNREACHABLE] * EACH
    assert collections.Counter(ends[EACH:]) <= collections.Counter({DRAINING: EACH, NEVER_SENT: EACH})
    assert await pair.sidecar.ended() == 0


async def test_a_hook_that_used_up_the_grace_is_counted_in(start: Start):
    """As a kubelet does it with a model that hangs: SIGTERM comes when the hook has been given up."""
    pair = await start("--grace=2s", "--drain-timeout=600s")
    asked = await ask(pair, NEVER)
    hook = asyncio.create_task(pair.admin_get("/drain"))
    await pair.until_state(drain="flushing")
    pair.signal()
    assert await outcomes(asked) == [UNREACHABLE] * EACH + [DRAINING] * EACH
    assert await pair.sidecar.ended() == 1
    await asyncio.gather(hook, return_exceptions=True)


async def test_ctrl_c_ends_a_sidecar_that_runs_alone_at_once(start: Start):
    """Nobody was promised a drain: it waits neither for others to learn of its end nor for the model."""
    pair = await start("--propagation-delay=600s")
    assert got(await pair.predict(1)) == [1]
    pair.signal(signal.SIGINT)
    assert await pair.sidecar.ended() == 0


async def test_ctrl_c_tells_those_whose_requests_it_cuts_and_the_exit_code_says_so(start: Start):
    pair = await start("--propagation-delay=600s")
    asked = await ask(pair, NEVER)
    pair.signal(signal.SIGINT)
    replies = await asyncio.gather(*asked)
    assert {reply.reason for reply in replies} == {"model_unreachable", "draining"}
    assert await pair.sidecar.ended() == 1


async def test_ctrl_c_drains_a_sidecar_that_reports_to_an_operator(start: Start):
    pair = await start("--report-to=http://127.0.0.1:1", version=1)
    asked = await ask(pair, HELD)
    pair.signal(signal.SIGINT)
    await pair.until_state(drain="flushing")
    await pair.release()
    assert [reply.status for reply in await asyncio.gather(*asked)] == [200] * len(asked)
    assert await pair.sidecar.ended() == 0
