"""Routers of an endpoint's own, the change from and to those of the namespace, and how many there are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock_operator.desired.config import RouterAutoscaling
from penstock_operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT,
    POD,
    POD_AUTOSCALER,
    SERVICE,
    SPLIT,
)
from penstock_operator.reconcile.router import LINGER_SECONDS
from tests.support.worlds.operator_harness import RENDER, Harness, backend, endpoint, serving, settings, split

OWN, OWN_SETTINGS = "e-dedicated-router", "e-dedicated-router-settings"
SHARED, SHARED_SETTINGS = "penstock-router", "penstock-router-settings"


def served(harness: Harness, name: str = SHARED_SETTINGS) -> list[str]:
    """The endpoints in a settings document."""
    return [endpoint["name"] for endpoint in settings(harness, name)["endpoints"]]


def replicas(harness: Harness) -> int:
    """How many routers the namespace is to have."""
    return int(harness.cluster.find(DEPLOYMENT, "n", SHARED)["spec"]["replicas"])


def leads_to_own(harness: Harness) -> bool:
    """Whether the endpoint's Service selects its own routers."""
    selector = harness.cluster.find(SERVICE, "n", "e")["spec"]["selector"]
    own = {"app.kubernetes.io/name": "penstock-dedicated-router", "penstock.dev/endpoint": "e"}
    assert selector in (own, {"app.kubernetes.io/name": "penstock-router"})
    return bool(selector == own)


def report(
    harness: Harness, *, dedicated: str = "", listening: tuple[str, ...] = ("e",), number: int = 0
) -> None:
    """A router pod reports that it has its settings."""
    name, record = (OWN, OWN_SETTINGS) if dedicated else (SHARED, SHARED_SETTINGS)
    version = settings(harness, record)["version"]
    harness.router_report(f"{name}-{number}", list(listening), version=version, dedicated=dedicated)


async def ready_apart(harness: Harness) -> None:
    """The endpoint's own routers come up, and report."""
    harness.pods_ready(OWN, 2)
    await harness.run()
    for number in range(2):
        report(harness, dedicated="e", number=number)
    await harness.run()


async def test_an_endpoint_that_asks_from_the_start_has_its_own_routers_alone() -> None:
    """Its settings hold it alone, those of the namespace not at all; what it says of pods is theirs."""
    harness = Harness()
    harness.apply(endpoint("other"))
    harness.apply(
        endpoint(router={"dedicated": True, "replicas": 3, "resources": {"requests": {"cpu": "1"}}})
    )
    await harness.run()
    assert leads_to_own(harness)
    assert (served(harness), served(harness, OWN_SETTINGS)) == (["other"], ["e"])
    spec = harness.cluster.find(DEPLOYMENT, "n", OWN)["spec"]
    assert spec["replicas"] == 3
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "1"}}
    budget = harness.cluster.find(DISRUPTION_BUDGET, "n", OWN)["spec"]["selector"]["matchLabels"]
    labels = spec["template"]["metadata"]["labels"]
    assert budget.items() <= labels.items()
    shared = harness.cluster.find(DEPLOYMENT, "n", "penstock-router")["spec"]["selector"]["matchLabels"]
    assert not shared.items() <= labels.items(), (
        "no pod has two budgets, and no Service leads to the wrong one"
    )


async def test_its_conditions_are_of_its_own_routers() -> None:
    """Those of the namespace are all well, and have nothing to say of it; nor of the split's weights."""
    harness = await serving()
    await harness.applied(endpoint(router={"dedicated": True}))
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("False", "RouterStarting")
    assert harness.condition(SPLIT, "s", "Ready") == ("False", "RouterStarting")
    harness.pods_ready(OWN, 1)
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("Unknown", "NoReports")
    report(harness, dedicated="e", listening=())
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("False", "PortFailed")
    report(harness, dedicated="e")
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("True", "Listening")
    assert harness.condition(ENDPOINT, "e", "Ready") == ("True", "Serving")
    assert (harness.condition(SPLIT, "s", "Ready") or ("",))[0] == "True"
    harness.cluster.remove(POD, "n", f"{OWN}-0")
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("False", "RouterStarting")


async def test_a_change_over_ends_nothing_before_its_successor_serves() -> None:
    """There and back: the Service is led over when all listen; who served stays until nodes have learned."""
    harness = await serving()
    await harness.applied(endpoint(router={"dedicated": True}))
    harness.pods_ready(OWN, 2)
    await harness.run()
    report(harness, dedicated="e")  # and the second has not
    await harness.run()
    assert not leads_to_own(harness)
    assert served(harness) == ["e"]
    report(harness, dedicated="e", number=1)
    await harness.run()
    assert leads_to_own(harness)
    await harness.turn(LINGER_SECONDS - 1)
    assert (served(harness), replicas(harness)) == (["e"], 2)
    assert settings(harness, SHARED_SETTINGS)["endpoints"][0]["leaving"], (
        "its clients are sent to the new ones"
    )
    assert not settings(harness, OWN_SETTINGS)["endpoints"][0]["leaving"]
    await harness.turn(1.5)
    assert (served(harness), replicas(harness)) == ([], 0), "no idle routers"

    harness.pods_ready(OWN, 1)
    harness.pods_ready(SHARED, 0)
    await harness.applied(endpoint())
    assert (served(harness), replicas(harness)) == (["e"], 2)
    assert not settings(harness, SHARED_SETTINGS)["endpoints"][0]["leaving"]
    for count in (1, 2):
        assert leads_to_own(harness), "until as many as are asked for are back"
        assert harness.cluster.find(DEPLOYMENT, "n", OWN)
        harness.pods_ready(SHARED, count)
        await harness.run()
        report(harness, number=count - 1)
        await harness.run()
    assert not leads_to_own(harness)
    kinds = (DEPLOYMENT, CONFIG_MAP, DISRUPTION_BUDGET)
    assert [name for kind in kinds for name in harness.cluster.names(kind, "n") if OWN in name] == []
    assert harness.errors == []


async def test_a_namespace_has_shared_routers_while_an_endpoint_needs_them() -> None:
    """None if all endpoints have their own from the start; all of them with the first that has not."""
    harness = await Harness().applied(endpoint(router={"dedicated": True}))
    assert replicas(harness) == 0
    await harness.applied(endpoint("other"))
    assert replicas(harness) == 2
    assert harness.errors == []


async def test_a_restart_in_the_middle_of_a_change_over_changes_nothing() -> None:
    """The successor takes up where it stands, and writes nothing while there is nothing new."""
    harness = await serving()
    await harness.applied(endpoint(router={"dedicated": True}))
    fresh = await harness.restart()
    assert not leads_to_own(fresh)
    assert (served(fresh), replicas(fresh)) == (["e"], 2)
    await ready_apart(fresh)
    assert leads_to_own(fresh)
    again = await fresh.restart()
    assert leads_to_own(again)
    assert served(again, OWN_SETTINGS) == ["e"]
    assert again.errors == []


async def test_weights_reach_the_routers_of_the_endpoint_and_no_others() -> None:
    harness = await serving()
    await harness.applied(endpoint(router={"dedicated": True}))
    await ready_apart(harness)
    await harness.turn(LINGER_SECONDS + 1)
    before = settings(harness)["version"], settings(harness, OWN_SETTINGS)["version"]
    await harness.applied(endpoint(router={"dedicated": True}, timeout="7s"))
    after = settings(harness, OWN_SETTINGS)
    assert after["version"] == before[1] + 1
    assert after["endpoints"][0]["timeoutMs"] == 7000
    assert settings(harness)["version"] == before[0]


@pytest.mark.parametrize(("live", "wanted"), [(None, 3), (1, 3), (3, 3), (5, 5), (9, 8)], ids=str)
async def test_an_autoscaled_router_keeps_what_the_autoscaler_wrote(live: int | None, wanted: int) -> None:
    """Within its limits: another change of the Deployment does not take it back, nor does its first apply."""
    scaling = RouterAutoscaling(min_replicas=3, max_replicas=8, target=70)
    harness = Harness(render=dataclasses.replace(RENDER, router_autoscaling=scaling))
    await harness.applied(endpoint())
    if live is not None:

        def scale(obj: dict[str, Any]) -> None:
            obj["spec"]["replicas"] = live

        harness.cluster.edit(DEPLOYMENT, "n", "penstock-router", scale)
    harness.apply(endpoint("another"))  # a second owner: the Deployment is written
    await harness.run()
    deployment = harness.cluster.find(DEPLOYMENT, "n", "penstock-router")
    assert deployment["spec"]["replicas"] == wanted
    assert len(deployment["metadata"]["ownerReferences"]) == 2
    autoscaler = harness.cluster.find(POD_AUTOSCALER, "n", "penstock-router")["spec"]
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (3, 8)
    assert autoscaler["scaleTargetRef"]["name"] == "penstock-router"


async def test_without_autoscaling_its_object_goes_and_the_number_is_the_installations() -> None:
    scaling = RouterAutoscaling(min_replicas=3, max_replicas=8, target=70)
    harness = Harness(render=dataclasses.replace(RENDER, router_autoscaling=scaling))
    await harness.applied(endpoint())
    harness.ctx.memory.render = RENDER
    fresh = await harness.restart()
    assert fresh.cluster.names(POD_AUTOSCALER, "n") == []
    assert fresh.cluster.find(DEPLOYMENT, "n", "penstock-router")["spec"]["replicas"] == 2


async def test_a_changed_endpoint_is_looked_at_alone_among_many_and_no_other_stops_being_ready() -> None:
    """It waits until each router has what is new of it; a change of another one meanwhile costs neither."""
    harness = await Harness().applied(backend(), *(endpoint(f"e{number}") for number in range(40)), split(
        endpoint_name="e7", m=100
    ))  # fmt: skip
    routers = harness.pods_ready(SHARED, 2)
    first = await take_up(harness, *routers)
    states = lambda: [harness.condition(ENDPOINT, f"e{each}", "RouterReady") for each in (0, 1, 7)]  # noqa: E731
    listening, waiting = ("True", "Listening"), ("False", "Waiting")
    assert [*states(), harness.condition(SPLIT, "s", "Ready")][:3] == [listening] * 3

    harness.cluster.writes.clear()
    harness.apply(endpoint("e0", timeout="7s"))
    await harness.run(limit=8)
    assert states() == [waiting, listening, listening]
    second = await take_up(harness, routers[0], limit=8)
    harness.apply(endpoint("e7", timeout="7s"))
    await harness.run(limit=8)
    assert states() == [waiting, listening, waiting]
    assert harness.condition(SPLIT, "s", "Ready") == ("False", "Waiting")
    await take_up(harness, *routers, digest=second, limit=16)
    assert states() == [listening, listening, waiting]
    await take_up(harness, *routers, limit=16)
    assert states() == [listening] * 3
    written = {
        name for verb, kind, _, name in harness.cluster.writes if (verb, kind) == ("status", ENDPOINT.kind)
    }
    assert written == {"e0", "e7"}

    await take_up(harness, *routers, digest="of another", limit=200)
    assert states() == [waiting] * 3, "settings that are not known may have anything"
    await take_up(harness, *routers, digest=first, limit=200)
    assert states() == [waiting, listening, waiting]


async def take_up(harness: Harness, *routers: str, digest: str = "", limit: int = 2000) -> str:
    """Routers report that they have settings, the current ones by default; returns their digest."""
    made = harness.ctx.memory.made["n", SHARED_SETTINGS]
    for pod in routers:
        harness.router_report(pod, served(harness), version=made.version, digest=digest or made.digest)
    await harness.run(limit=limit)
    return digest or made.digest
