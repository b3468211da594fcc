"""What a router logs of requests: each answer of 500 or above, and those that an endpoint asks for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from penstock_router.forwarding.error_log import LINES_A_SECOND, MOST_LINES
from penstock_wire.control.router_settings import ColdStart
from tests.support.worlds.router_world import World


def lines(capsys: pytest.CaptureFixture[str], message: str) -> list[dict[str, Any]]:
    """The lines of one message since the last call."""
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [line for line in logged if line["message"] == message]


async def test_each_error_is_logged_and_a_flood_of_them_is_bounded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Who asked, what answered and why; the next line counts those that were left out."""
    world = World("a", cold=ColdStart(max_pending=0), retries=0)
    assert (await world.ask("well")).status == 200
    assert lines(capsys, "an error was answered") == []
    world.all_are("away", "a")
    assert (await world.ask("one")).status == 502
    (line,) = lines(capsys, "an error was answered")
    expected = {"request_id": "one", "status": 502, "reason": "model_unreachable", "endpoint": "e"}
    assert expected.items() <= line.items()
    assert (line["level"], line["backend"], line["pod"]) == ("warning", "b", "a:1")
    for _ in range(2 * MOST_LINES):
        await world.ask()
    assert MOST_LINES - 1 <= len(lines(capsys, "an error was answered")) < 2 * MOST_LINES
    await asyncio.sleep(2 / LINES_A_SECOND)
    await world.ask("last")
    assert lines(capsys, "an error was answered")[-1]["left_out"] > 0


async def test_an_endpoint_turns_its_access_log_on_and_off(capsys: pytest.CaptureFixture[str]) -> None:
    """At once, for its own requests alone, whatever the router's flag says."""
    world = World("a")
    for percent, logged in ((None, 0), (100, 1), (0, 0)):
        world.state.update(msgspec.structs.replace(world.state.settings, access_log_percent=percent))
        assert (await world.ask("x")).status == 200
        assert len(lines(capsys, "request")) == logged


async def test_what_an_upstream_raises_is_answered_and_counted_as_the_router_s_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World("a")

    def broken(*args: Any) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(world.forwarder._upstream, "begin", broken)
    assert (await world.ask("x")).status == 500
    assert [line["request_id"] for line in lines(capsys, "request failed")] == ["x"]
