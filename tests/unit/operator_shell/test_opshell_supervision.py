"""Nothing that one round, one event or one object brings about ends what runs for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_operator.desired import deployment
from penstock_operator.errors import LeaseLost, NotFound, Rejected, StartError
from penstock_operator.kinds import BACKEND, DEPLOYMENT
from penstock_operator.reconcile import manager as managing
from penstock_operator.store import Change
from penstock_operator.supervision import LONGEST_WAIT, PAUSE, REFUSED_SECONDS, keep_running, until_done
from tests.support.clocks.hand_clock import HandClock
from tests.support.clocks.waiting import SECONDS
from tests.support.worlds.operator_harness import Harness, backend


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("error", [RuntimeError("x"), RecursionError(), KeyError("x"), TimeoutError()])
async def test_a_loop_that_raises_is_started_again(error: Exception) -> None:
    """After a pause, with the reason in the log; one that returns is done."""
    clock, runs, lines = HandClock(), 0, []

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise error

    def log(message: str, **fields: Any) -> None:
        lines.append((message, fields["loop"], fields["error"]))

    task = asyncio.create_task(keep_running("rounds", loop, clock=clock, log=log))
    await settle()
    assert (runs, task.done()) == (1, False)
    clock.turn(PAUSE)
    await settle()
    clock.turn(PAUSE)
    await asyncio.wait_for(task, SECONDS)
    assert runs == 3
    assert lines == [("loop failed", "rounds", f"{type(error).__name__}: {error}")] * 2


@pytest.mark.parametrize("waits", [True, False])
async def test_a_leader_without_rights_gives_up_and_one_without_crds_waits(waits: bool) -> None:
    """Another operator may have the rights; CRDs that are missing are missing for all."""
    clock, said, there = HandClock(), [], False

    async def act() -> None:
        if not there:
            raise NotFound(404, "no such kind") if waits else Rejected(403, "forbidden")

    task = asyncio.create_task(
        until_done(act, clock=clock, log=lambda *_args, **_fields: None, failing=said.append)
    )
    began = clock.time()
    while not task.done() and clock.time() - began < 3 * REFUSED_SECONDS:
        await settle()
        clock.turn(LONGEST_WAIT)
    assert set(said) == {"no such kind" if waits else "forbidden"}
    if waits:
        there = True
        clock.turn(LONGEST_WAIT)
        await asyncio.wait_for(task, SECONDS)
        assert said[-1] == ""
        return
    with pytest.raises(StartError, match=r"refused for 6\d s: forbidden"):
        await task


async def test_a_lost_lease_ends_a_loop() -> None:
    """Nobody acts on one."""

    async def loop() -> None:
        raise LeaseLost("gone")

    with pytest.raises(LeaseLost):
        await keep_running("rounds", loop, clock=HandClock(), log=lambda *_args, **_fields: None)


async def test_an_object_that_cannot_be_rendered_is_told_and_its_neighbours_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the fifth try on, as with other failures; it is followed again once it can be."""
    harness, real, broken = Harness(), deployment.pinned_template, True

    def pinned_template(wanted: Any, **more: Any) -> Any:
        if wanted.name == "bad" and broken:
            raise RecursionError("induced")
        return real(wanted, **more)

    monkeypatch.setattr(deployment, "pinned_template", pinned_template)
    await harness.applied(backend("bad"), backend("good"))
    assert harness.cluster.names(DEPLOYMENT, "n") == ["good-backend"]
    assert harness.condition(BACKEND, "bad", "Ready") is None
    for _ in range(4):
        await harness.turn(5.0)
    assert harness.condition(BACKEND, "bad", "Ready") == ("False", "Unreadable")
    message = harness.cluster.find(BACKEND, "n", "bad")["status"]["conditions"][0]["message"]
    assert message.endswith("RecursionError: induced")
    broken = False
    await harness.turn(30.0)
    assert harness.cluster.names(DEPLOYMENT, "n") == ["bad-backend", "good-backend"]
    assert harness.condition(BACKEND, "bad", "Ready") != ("False", "Unreadable")


async def test_a_change_that_cannot_be_followed_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who else is concerned is then not known; the object itself is not forgotten."""
    harness, real = Harness(), managing.keys_for

    def keys_for(view: Any, change: Change) -> Any:
        if change.new is not None and change.new["metadata"]["name"] == "bad":
            raise RecursionError("induced")
        return real(view, change)

    monkeypatch.setattr(managing, "keys_for", keys_for)
    await harness.applied(backend("bad"), backend("good"))
    assert ("change not followed", "ModelBackend n/bad") in [
        (message, fields.get("key")) for message, fields in harness.log
    ]
    assert {"bad-backend", "good-backend"} <= set(harness.cluster.names(DEPLOYMENT, "n"))


async def test_workers_survive_what_they_cannot_even_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the worker itself costs a pause, not the process."""
    harness, failing = Harness(), True
    harness.apply(backend("good"))
    real = harness.manager.failed

    def failed(*arguments: Any) -> None:
        real(*arguments)
        raise RuntimeError("induced")

    async def reconcile(ctx: Any, key: Any) -> float | None:
        if failing:
            raise RuntimeError("induced")
        return await original(ctx, key)

    original = managing.RECONCILERS[BACKEND.kind]
    monkeypatch.setitem(managing.RECONCILERS, BACKEND.kind, reconcile)
    monkeypatch.setattr(harness.manager, "failed", failed)
    running = asyncio.create_task(harness.manager.run(1))
    await settle()
    failing = False
    for _ in range(3):
        harness.clock.turn(PAUSE)
        await settle()
    assert not running.done()
    assert harness.cluster.names(DEPLOYMENT, "n") == ["good-backend"]
    harness.manager.queue.shut_down()
    harness.manager.scale_queue.shut_down()
    await asyncio.wait_for(running, SECONDS)
