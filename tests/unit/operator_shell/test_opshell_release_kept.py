"""How far a release has come is kept whatever becomes of its split: nothing else in the cluster knows it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.kinds import ENDPOINT, SPLIT
from tests.support.worlds.operator_harness import endpoint
from tests.support.worlds.operator_harness import split as plain_split
from tests.support.worlds.release_world import World, split

STEPS = [{"setWeight": 10}, {"setWeight": 50}, {"pause": "Manual"}]
MANUAL = split(analysis={"metrics": []}, steps=STEPS)


async def beside_an_older_split() -> World:
    """A release at half of the requests, and an older split that has nothing to do with it."""
    world = await World.of(plain_split("a", "other", old=1))
    world.harness.clock.turn(5)
    world.harness.apply(MANUAL)
    await world.until(lambda world: world.release.get("phase") == "Paused")
    return world


def leads(world: World, name: str) -> None:
    """The older split is edited to be another endpoint's."""
    world.harness.cluster.edit(SPLIT, "n", "a", lambda obj: obj["spec"].update(endpoint=name))


@pytest.mark.parametrize("promoted", [False, True])
async def test_an_older_split_that_takes_the_endpoint_by_mistake_costs_no_step(promoted: bool) -> None:
    """When it is edited back, the release goes on where it was: a promoted one not from its first step."""
    world = await beside_an_older_split()
    if promoted:
        world.annotate("promote")
        await world.phase("Promoted")
    before = world.standing()
    leads(world, "e")
    for _ in range(5):
        await world.second()
    assert world.harness.condition(SPLIT, "s", "Accepted") == ("False", "Conflict")
    assert world.harness.condition(SPLIT, "s", "Progressing") is None
    assert world.standing() == before
    leads(world, "other")
    await world.second()
    assert world.standing() == before
    assert reasons(world)["ReleaseStarted"] == 1


def reasons(world: World) -> dict[str, int]:
    """How often each reason was an Event."""
    every = [reason for reason, _ in world.events()]
    return {reason: every.count(reason) for reason in every}


async def test_pods_that_are_lost_while_nobody_looks_get_nothing_afterwards() -> None:
    """The stored weight holds as soon as there is an endpoint again, before the operator has looked."""
    world = await World.of(MANUAL)
    await world.until(lambda world: world.release["phase"] == "Paused")
    world.harness.cluster.remove(ENDPOINT, "n", "e")
    world.most["new"] = 0
    await world.second()
    assert world.standing() == ("Paused", 0, "Paused")
    world.harness.apply(endpoint(backend="old"))
    await world.harness.run()
    assert world.weights == {"old": 100, "new": 0}
    del world.most["new"]
    await world.until(lambda world: world.weights == {"old": 50, "new": 50})


@pytest.mark.parametrize(
    "other",
    [
        {"verdicts": [{"metric": "errorRatio", "verdict": "Unsure"}, {"metric": 5}, None]},
        {"conditions": [{"type": "Ready", "status": "Maybe"}], "weights": {"old": 50}},
        {"mirrors": [{"name": "m", "sent": 2.5}], "shares": 5},
        {"release": {"reason": "A" * 65, "held": "perhaps", "pending": 7}},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_what_another_version_has_written_beside_it_costs_no_step(other: dict[str, Any]) -> None:
    """An operator that is taken back to an older version meets words that it does not know."""
    world = await World.of(MANUAL)
    await world.until(lambda world: world.release["phase"] == "Paused")
    before = world.standing()

    def written(obj: dict[str, Any]) -> None:
        release = obj["status"]["release"] | other.get("release", {})
        obj["status"] |= {**other, "release": release}

    world.harness.cluster.edit(SPLIT, "n", "s", written)
    for _ in range(5):
        await world.second()
    assert (world.standing(), world.weights) == (before, {"old": 50, "new": 50})
    assert reasons(world)["ReleaseStarted"] == 1
    assert world.harness.errors == []
