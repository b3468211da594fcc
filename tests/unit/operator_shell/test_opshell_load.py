"""The load in a status: fresh within 3 s, at a bounded number of writes, whatever the neighbours do."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from penstock_operator.kinds import BACKEND
from penstock_operator.reconcile.context import LOAD_SETTLES
from penstock_operator.reconcile.load_turns import BURST, LASTS, PER_SECOND, LoadTurns
from penstock_operator.store import ObjectKey
from penstock_wire.control.report import BackendTotals, EndpointReport, RouterReport
from tests.support.clocks.hand_clock import HandClock
from tests.support.worlds.operator_harness import Harness, backend, serving, settings


def key(namespace: str, number: int) -> ObjectKey:
    return ObjectKey(BACKEND.kind, namespace, f"b{number}")


def shown(harness: Harness, name: str = "m", namespace: str = "n") -> int:
    """QUEUED, as kubectl shows it."""
    return int(harness.cluster.find(BACKEND, namespace, name)["status"]["load"].get("queued", 0))


def written(harness: Harness) -> int:
    """How many statuses of backends were written since the writes were last cleared."""
    count = sum(write[:2] == ("status", "ModelBackend") for write in harness.cluster.writes)
    harness.cluster.writes.clear()
    return count


def test_turns_are_bounded_and_each_namespace_has_its_part() -> None:
    """So many at once, so many a second; a backend that asks over and over has one; who is gone has none."""
    clock, granted = HandClock(), list[ObjectKey]()
    turns = LoadTurns(clock, granted.append)
    for number in range(100):
        for _ in range(3):
            turns.ask(key("crowd", number))
    assert len(granted) == BURST
    turns.ask(key("few", 0))
    turns.ask(key("gone", 0))
    turns.forget(key("gone", 0))
    clock.turn(2.5 / PER_SECOND)
    assert granted[-2:] == [key("crowd", int(BURST)), key("few", 0)]
    clock.turn(3.0)
    assert len(granted) == BURST + 3 * PER_SECOND + 2
    clock.turn(60.0)
    assert granted.count(key("few", 0)) == 1
    assert [turn for turn in granted if turn.namespace == "crowd"] == [key("crowd", n) for n in range(100)]
    assert key("gone", 0) not in granted
    for _ in range(3):
        turns.ask(key("few", 0))
        assert granted.count(key("few", 0)) == 2  # the first it has lost, the second it has not used
    assert turns.take(key("few", 0))
    assert not turns.take(key("few", 0))
    turns.ask(key("few", 0))
    assert granted.count(key("few", 0)) == 3


def test_turns_that_cannot_be_used_do_not_add_up_and_starve_nobody() -> None:
    """100 backends cannot be written for a minute; one beside them and one elsewhere have theirs."""
    clock, granted = HandClock(), list[ObjectKey]()
    turns = LoadTurns(clock, granted.append)
    failing = [key("crowd", number) for number in range(100)]
    fine = [key("crowd", 100), key("few", 0)]
    shown = dict.fromkeys(fine, clock.time())
    for _ in range(600):
        for turn in (*failing, *fine):
            turns.ask(turn)
        clock.turn(0.1)
        for turn in fine:
            if turns.take(turn):
                shown[turn] = clock.time()
        assert clock.time() - shown[fine[0]] < 30
        assert clock.time() - shown[fine[1]] < 1
    assert {turn.name for turn in granted} == {turn.name for turn in (*failing, *fine)}
    assert 0 < sum(map(turns.take, failing)) <= BURST + LASTS * PER_SECOND


async def test_a_load_is_shown_within_three_seconds_and_written_only_where_it_moved() -> None:
    """From nothing, up, down, to nothing; one that stays, or moves by less than a tenth, is not written."""
    harness = await serving()
    version = settings(harness)["version"]

    async def seconds(count: int, load: int) -> int:
        written(harness)
        for _ in range(count):
            harness.report("m", "m-backend-0", version=version, load=load)
            await harness.turn(1)
        return written(harness)

    await seconds(5, 0)
    assert await seconds(5, 0) == 0
    for load in (7, 100, 50, 1, 0, 200):
        assert await seconds(3, load) >= 1
        assert shown(harness) == load
        assert await seconds(20, load) == 0
    assert await seconds(20, 190) == 0
    assert shown(harness) == 200


async def test_the_last_error_leaves_the_status_after_a_minute() -> None:
    """The API server refuses the null that an emptied object becomes."""
    harness = await serving()
    version = settings(harness)["version"]

    async def seconds(count: int, errors: int) -> Any:
        for _ in range(count):
            counts = BackendTotals(requests=100 + errors, reasons={"model_answer": errors})
            sent = RouterReport(pod="r", uid="u", seq=next(numbers), state="ready")
            ends = {"e": EndpointReport(backends={"m": counts})}
            harness.ctx.reports.router("n", msgspec.structs.replace(sent, endpoints=ends))
            harness.report("m", "m-backend-0", version=version)
            await harness.turn(1)
        return harness.cluster.find(BACKEND, "n", "m")["status"]["load"]

    numbers = itertools.count(1)
    await seconds(1, 0)
    assert (await seconds(10, 5))["errors"] == {"model_answer": 5}
    load = await seconds(80, 5)
    assert (load["failedPerMinute"], load.get("errors")) == (0, None)


async def test_what_is_written_anyway_shows_the_load_and_a_new_operator_waits_for_reports() -> None:
    """A status that says something else by now has the load of that moment, too, without a turn."""
    harness = await serving()
    version = settings(harness)["version"]
    harness.report("m", "m-backend-0", version=version, load=5)
    await harness.applied(backend(replicas=2))
    assert shown(harness) == 5
    harness = await harness.restart()
    for second in range(int(LOAD_SETTLES) + 5):
        harness.report("m", "m-backend-0", version=version, load=9)
        await harness.turn(1)
        assert shown(harness) in ((5,) if second < LOAD_SETTLES - 1 else (5, 9))
    assert shown(harness) == 9


@pytest.mark.long
async def test_a_thousandfold_neighbour_costs_a_bounded_number_of_writes_and_nobody_elses_freshness() -> None:
    """100 backends whose load moves all the time: `PER_SECOND` writes; another namespace's load is fresh."""
    harness = await serving()
    crowd = [f"c{number}" for number in range(100)]
    single: dict[str, Any] = backend("s")
    single["metadata"]["namespace"] = "quiet"
    for obj in (single, *map(backend, crowd)):
        harness.apply(obj)
    await harness.run()
    harness.pods_ready("s-backend", 1, "quiet")
    for name in crowd:
        harness.pods_ready(f"{name}-backend", 1)
    version = settings(harness)["version"]

    async def second(number: int) -> None:
        for name in crowd:
            harness.report(name, f"{name}-backend-0", version=version, load=2 ** (number % 20))
        harness.report("s", "s-backend-0", version=version, load=number // 3 + 1, namespace="quiet")
        await harness.turn(1)

    for number in range(6):
        await second(number)
    written(harness)
    for number in range(6, 36):
        await second(number)
        assert abs(shown(harness, "s", "quiet") - (number // 3 + 1)) <= 1
    assert written(harness) <= BURST + 30 * PER_SECOND


async def test_pods_that_outlive_their_backend_leave_nothing_behind() -> None:
    harness = await Harness().applied(backend("m"))
    harness.cluster.remove(BACKEND, "n", "m")
    await harness.run()
    harness.manager.reported("n", "m", notable=False)
    await harness.run()
    assert not harness.manager._load_looked


async def test_a_knob_of_a_backend_of_many_pods_is_few_writes() -> None:
    """How many have it is shown as often as a load is; that all have it, at once."""
    harness = await Harness().applied(backend(replicas=60))
    pods = harness.pods_ready("m-backend", 60)
    await harness.turn(20)
    for pod in pods:
        harness.report("m", pod, version=1)
    await harness.run()
    await harness.applied(backend(replicas=60, batching={"maxBatchSize": 9}))
    written(harness)
    for pod in pods:
        assert (harness.condition(BACKEND, "m", "Ready") or ("",))[0] == "False"
        harness.report("m", pod, version=2)
        await harness.run()
    assert 2 <= written(harness) <= BURST + 1
    status = harness.cluster.find(BACKEND, "n", "m")["status"]
    assert "60 of 60 ready pods have settings version 2" in str(status["conditions"])
