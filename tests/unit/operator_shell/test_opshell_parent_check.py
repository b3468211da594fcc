"""A resource that went while its watch was stalled is not rendered again and again."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, POLICY, SERVICE, SPLIT, Kind
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, serving

ROUNDS = 20
"""How often the garbage collector and the operator take turns."""


async def turns(harness: Harness) -> list[tuple[str, str, str, str]]:
    """What the operator writes while the garbage collector takes away what it can after each of its runs."""
    before = len(harness.cluster.writes)
    for _ in range(ROUNDS):
        await harness.run()
        harness.cluster.collect_garbage()
        await harness.turn(0.5)
    return [write for write in harness.cluster.writes[before:] if write[1] != "Event"]


@pytest.mark.parametrize("kind", [BACKEND, ENDPOINT], ids=lambda kind: kind.plural)
async def test_a_deletion_that_no_watch_told_costs_no_write(kind: Kind) -> None:
    """Its children go, as events report; the operator looks for their owner and finds it gone."""
    harness = await serving()
    harness.stalled = {kind.kind}
    harness.cluster.remove(kind, "n", "m" if kind is BACKEND else "e")
    written = await turns(harness)
    assert [write for write in written if write[1] in ("Deployment", "Service", "ConfigMap")] == []
    assert len(written) <= 4, written  # statuses of those who used it
    assert harness.cluster.names(SERVICE, "n") == (
        ["e", "penstock-router"] if kind is BACKEND else ["m-backend"]
    )


@pytest.mark.parametrize("again", [False, True], ids=["gone", "namesake"])
async def test_one_that_went_before_its_first_status_is_rendered_once(again: bool) -> None:
    """It counts as new, so its parent is not checked; its status write finds nothing, or a namesake."""
    harness = Harness()
    harness.apply(backend())
    harness.stalled = {BACKEND.kind}
    harness.cluster.remove(BACKEND, "n", "m")
    if again:
        harness.apply(backend(replicas=2))
    written = await turns(harness)
    applies = [write for write in written if write[:2] == ("apply", "Deployment")]
    assert len(applies) == (2 if again else 1), written
    assert len(written) < 30
    if again:
        assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 2
    else:
        assert harness.cluster.names(DEPLOYMENT, "n") == []
        assert harness.ctx.store.get(BACKEND, "n", "m") is None


async def test_a_namesake_made_meanwhile_is_served() -> None:
    """Deleted and made again without an event: the rendered objects belong to the new one."""
    harness = await serving()
    harness.stalled = {BACKEND.kind}
    harness.cluster.remove(BACKEND, "n", "m")
    harness.apply(backend(replicas=3))
    written = await turns(harness)
    assert len(written) < 40
    owner = harness.cluster.find(DEPLOYMENT, "n", "m-backend")["metadata"]["ownerReferences"][0]["uid"]
    assert owner == harness.uid(BACKEND, "m")
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "RollingOut")


async def test_one_of_two_endpoints_leaves_the_router_alone() -> None:
    """The garbage collector strikes a dead owner out; it is not written back."""
    harness = await serving()
    await harness.applied(endpoint("f"))
    harness.stalled = {ENDPOINT.kind}
    dead = harness.uid(ENDPOINT, "f")
    harness.cluster.remove(ENDPOINT, "n", "f")

    def strike(live: dict[str, Any]) -> None:
        refs = live["metadata"]["ownerReferences"]
        live["metadata"]["ownerReferences"] = [ref for ref in refs if ref["uid"] != dead]

    for _ in range(3):
        for kind, name in ((DEPLOYMENT, "penstock-router"), (CONFIG_MAP, "penstock-router-settings")):
            harness.cluster.edit(kind, "n", name, strike)
        await harness.run()
    live = harness.cluster.find(DEPLOYMENT, "n", "penstock-router")
    assert [ref["name"] for ref in live["metadata"]["ownerReferences"]] == ["e"]


@pytest.mark.parametrize("kind", [POLICY, SPLIT], ids=lambda kind: kind.plural)
async def test_a_status_that_finds_nothing_is_believed(kind: Kind) -> None:
    """Also for those that render nothing: the dead one leaves the store, and its users look again."""
    harness = await serving()
    harness.stalled = {kind.kind}
    harness.cluster.remove(kind, "n", "p" if kind is POLICY else "s")
    harness.ctx.store.all(kind, "n")[0]["status"]["observedGeneration"] = (
        0  # so that there is a status to write
    )
    harness.manager.enqueue_all()
    await turns(harness)
    assert harness.ctx.store.all(kind, "n") == []


async def test_what_was_deleted_under_a_living_resource_comes_back_also_when_the_look_fails() -> None:
    """A look that gets no answer is a failure like others: tried again, and nothing is dropped for it."""
    harness = await serving()
    left = [Unavailable(500, "induced"), Unavailable(0, "induced")]

    def fail(verb: str, kind: str, *_: str) -> None:
        if (verb, kind) == ("list", "ModelBackend") and left:
            raise left.pop()

    harness.cluster.fail = fail
    harness.cluster.remove(SERVICE, "n", "m-backend")
    await turns(harness)
    assert left == []
    assert "m-backend" in harness.cluster.names(SERVICE, "n")


async def test_a_child_that_was_deleted_costs_one_look() -> None:
    """And a new resource none."""
    harness = Harness()
    lists: list[str] = []

    def note(verb: str, kind: str, *_: str) -> None:
        if verb == "list":
            lists.append(kind)

    harness.cluster.fail = note
    await harness.applied(policy(maxBatchSize=8), backend(batchPolicyRef="p"), endpoint())
    assert lists == []
    for kind in (SERVICE, CONFIG_MAP):
        harness.cluster.remove(kind, "n", "m-backend" if kind is SERVICE else "m-backend-settings")
    await harness.run()
    assert lists == ["ModelBackend"]
