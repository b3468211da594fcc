"""Deleting related resources, in every order: which backends serve meanwhile, and the others' status."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from penstock_operator.kinds import BACKEND, CONFIG_MAP, ENDPOINT, POD, SERVICE_ACCOUNT, SPLIT, Kind
from tests.support.worlds.operator_harness import Harness, backend, endpoint, split

KINDS: dict[str, Kind] = {"a": BACKEND, "b": BACKEND, "e": ENDPOINT, "s": SPLIT}
"""Two backends, the endpoint whose own backend is `a`, and the split that shares its requests among both."""


async def serving() -> Harness:
    """All four, with ready pods and a router that listens."""
    harness = Harness()
    for name in "ab":
        harness.apply(backend(name))
    await harness.applied(endpoint("e", backend="a"), split("s", a=1, b=1))
    for name in "ab":
        harness.pods_ready(f"{name}-backend", 1)
    harness.pods_ready("penstock-router", 1)
    await harness.run()
    return harness


def routed(harness: Harness) -> set[str] | None:
    """The backends in the router's settings; None without a router."""
    if "penstock-router-settings" not in harness.cluster.names(CONFIG_MAP, "n"):
        return None
    document = harness.cluster.find(CONFIG_MAP, "n", "penstock-router-settings")["data"]["settings.json"]
    (endpoint,) = json.loads(document)["endpoints"]
    return {share["name"] for share in endpoint["backends"]}


def expected(left: set[str], gone: list[str]) -> dict[str, Any]:
    """What must be seen of what is left, by the order in which the rest went."""
    backends = left & {"a", "b"}
    splits = {"e", "s"} <= left
    # When the endpoint's own backend went before the split did, the other one stands in for it.
    stands_in = "s" not in left and "a" in gone and gone.index("a") < gone.index("s") and "b" in left
    named = {"a", "b"} if splits else {"a"}
    seen: dict[str, Any] = {"routed": None}
    if "e" in left:
        seen["routed"] = {"b"} if stands_in else (named & backends or named)
        missing = named - backends
        seen["e"] = ("False", "BackendMissing") if missing else ("True", "PodsReady")
    if "s" in left:
        seen["s"] = ("True", "Accepted") if "e" in left else ("False", "EndpointMissing")
    for name in backends:
        users = {"TrafficSplit/s"} if splits else set()
        if "e" in left and (name == "a" or stands_in):
            users.add("ModelEndpoint/e")
        seen[name] = users
    return seen


def observed(harness: Harness, left: set[str]) -> dict[str, Any]:
    """The same of the cluster."""
    seen: dict[str, Any] = {"routed": routed(harness)}
    if "e" in left:
        seen["e"] = harness.condition(ENDPOINT, "e", "BackendsReady")
    if "s" in left:
        seen["s"] = harness.condition(SPLIT, "s", "Accepted")
    for name in left & {"a", "b"}:
        seen[name] = set(harness.cluster.find(BACKEND, "n", name)["status"].get("usedBy", []))
    return seen


@pytest.mark.parametrize("order", list(itertools.permutations("abes")), ids="".join)
async def test_every_order_of_deletion(order: tuple[str, ...]) -> None:
    """After each step requests go to an existing backend, if any is left; users and conditions say so.

    A second look writes nothing.
    """
    harness = await serving()
    left, gone = set("abes"), []
    assert observed(harness, left) == expected(left, gone)
    for name in order:
        harness.cluster.remove(KINDS[name], "n", name)
        await harness.run()
        left.remove(name)
        gone.append(name)
        assert observed(harness, left) == expected(left, gone), gone
        harness.cluster.writes.clear()
        harness.manager.enqueue_all()
        await harness.run()
        assert harness.cluster.writes == [], gone
    assert harness.errors == []


async def test_what_is_missing_is_named() -> None:
    """Endpoint and split name the backend that is gone, in words that a person can act on."""
    harness = await serving()
    harness.cluster.remove(BACKEND, "n", "b")
    await harness.run()
    for kind, name, condition in ((ENDPOINT, "e", "BackendsReady"), (SPLIT, "s", "Ready")):
        conditions = harness.cluster.find(kind, "n", name)["status"]["conditions"]
        (message,) = [each["message"] for each in conditions if each["type"] == condition]
        assert "no such ModelBackend: b" in message


async def test_a_service_account_stays_until_no_pod_names_it() -> None:
    """Who moves to an account of his own keeps the reports of the pods that still have the old one."""
    harness = await Harness().applied(backend())
    old = harness.pods_ready("m-backend", 2)
    for name in old:
        harness.cluster.edit(POD, "n", name, lambda live: live["spec"].update(serviceAccountName="m-backend"))
    await harness.applied(backend(podTemplate={"serviceAccountName": "mine"}))
    assert harness.cluster.names(SERVICE_ACCOUNT, "n") == ["m-backend"]
    harness.cluster.remove(POD, "n", old[0])
    await harness.run()
    assert harness.cluster.names(SERVICE_ACCOUNT, "n") == ["m-backend"]
    harness.cluster.remove(POD, "n", old[1])
    await harness.run()
    assert harness.cluster.names(SERVICE_ACCOUNT, "n") == []
