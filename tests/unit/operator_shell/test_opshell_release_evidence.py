"""What a release in an operator goes by: what counts after a promotion, what it says where nothing can."""

from __future__ import annotations

import re

from penstock_operator.kinds import ENDPOINT
from tests.support.worlds.release_world import World, split


async def test_a_promotion_past_a_failed_analysis_hears_nothing_of_before() -> None:
    """A candidate that is mended meanwhile is not held to what it answered before somebody promoted it."""
    steps = [{"setWeight": 50}, {"pause": "30s"}]
    world = await World.of(split(steps=steps, onFailure="Pause", analysis={"interval": "10s"}))
    world.behaviour["new"].errors = 0.1
    await world.reason("AnalysisFailed")
    assert world.split["status"]["step"] == 0
    for _ in range(6):
        await world.second()  # of the interval that is under way
    world.behaviour["new"].errors = 0.0
    world.annotate("promote@1")
    began = len(world.history)
    await world.phase("Promoted")
    assert {status["release"]["reason"] for status in world.history[began:]}.isdisjoint(
        {"AnalysisFailed", "RolledBack"}
    )
    assert [verdict["verdict"] for verdict in world.split["status"]["verdicts"]].count("Waiting") == 0


async def test_an_endpoint_stays_ready_through_the_steps_of_a_release() -> None:
    """Routers that have yet to take up a weight are RouterReady's business, and no news of the endpoint."""
    world = await World.of(split(steps=[{"setWeight": 10}, {"setWeight": 50}], analysis={"interval": "5s"}))
    await world.until(lambda world: world.release.get("weight") == 10)
    await world.second()
    aspects = set()
    while world.release["phase"] != "Promoted":
        await world.second()
        assert world.harness.condition(ENDPOINT, "e", "Ready") == ("True", "Serving")
        aspects.add(world.harness.condition(ENDPOINT, "e", "RouterReady"))
    assert aspects == {("True", "Listening"), ("False", "Waiting")}


async def test_a_release_without_copies_says_what_keeps_them() -> None:
    """What the routers have not copied, and why the first was not, is in what the step waits for."""
    metrics = [{"name": "mismatch"}]
    world = await World.of(split(steps=[{"mirror": 50}], analysis={"interval": "5s", "metrics": metrics}))
    world.uncopied = "the client got 503 deadline"
    await world.reason("InsufficientEvidence")
    assert re.fullmatch(
        r"step 1 of 1 \(mirror 50\): mismatch: too little evidence; no answer to a copy was compared in this "
        r"interval: \d+ not copied: \d+ refused \(the client got 503 deadline\)",
        world.release["message"],
    )
    assert world.split["status"]["mirrored"].startswith("new: 0 sent; ")
    world.uncopied = ""
    await world.phase("Promoted")
