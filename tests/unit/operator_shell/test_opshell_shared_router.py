"""The router that namespaces share: who uses it, what leads to it, and the change to it and back."""

from __future__ import annotations

import dataclasses
import gc
import json
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from penstock_operator import kinds
from penstock_operator.desired import ports
from penstock_operator.desired.config import RouterAutoscaling
from penstock_operator.desired.labels import ENDPOINT as ENDPOINT_LABEL
from penstock_operator.desired.labels import ROUTER_MODE
from penstock_operator.errors import Rejected
from penstock_operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT,
    ENDPOINT_SLICE,
    POD,
    POD_AUTOSCALER,
    SERVICE,
)
from penstock_operator.reconcile import shared
from penstock_operator.reconcile.shared import LINGER_SECONDS, QUARANTINE_SECONDS
from penstock_operator.reports import SHARED, Reports
from penstock_wire.control.report import (
    FIRST_BYTE_BUCKETS,
    BackendTotals,
    EndpointReport,
    RouterReport,
    State,
    TenantReport,
)
from tests.support.clocks.hand_clock import HandClock
from tests.support.worlds.operator_harness import RENDER, Harness, backend, endpoint, settings

HOME, NAME = "penstock-system", "penstock-shared-router"
OWN, OWN_SETTINGS = "penstock-router", "penstock-router-settings"


GOES = "goes-away"
KINDS_BY_NAME = {each.kind: each for each in vars(kinds).values() if isinstance(each, kinds.Kind)}


def texts_in(harness: Harness) -> set[str]:
    """All texts that the operator's memory, reports, store and queue have."""
    ctx = harness.ctx
    todo: list[object] = [ctx.memory, ctx.reports, ctx.store, harness.manager.queue]
    seen: dict[int, object] = {}
    while todo:
        each = todo.pop()
        if id(each) not in seen and not isinstance(each, (type, ModuleType, FunctionType, MethodType)):
            seen[id(each)] = each
            todo += gc.get_referents(each)
            todo += each if isinstance(each, dict) else ()  # NB: keys that are texts are not among these
    return {each for each in seen.values() if isinstance(each, str)}


def of(namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
    """The same in another namespace."""
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


def label(harness: Harness, namespace: str, mode: str) -> None:
    """An admin labels a namespace."""
    harness.manager.put(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {ROUTER_MODE: mode},
                "resourceVersion": str(10**9 + len(harness.log) + harness.clock.time()).partition(".")[0],
                "uid": f"uid-{namespace}",
            },
        }
    )


def shared_settings(harness: Harness) -> dict[str, Any]:
    """What the shared router gets."""
    document: dict[str, Any] = json.loads(
        harness.cluster.find(CONFIG_MAP, HOME, f"{NAME}-settings")["data"]["settings.json"]
    )
    return document


def tenants(harness: Harness) -> dict[str, list[str]]:
    """The endpoints that the shared router serves, by namespace; none if there is no such router."""
    if (DEPLOYMENT.kind, HOME, NAME) not in harness.cluster.objects:
        return {}
    served = shared_settings(harness)["tenants"]
    return {name: [each["name"] for each in tenant["endpoints"]] for name, tenant in served.items()}


def leads_to(harness: Harness, namespace: str, service: str = "e") -> list[str]:
    """The addresses of the shared router's pods in a Service."""
    key = (ENDPOINT_SLICE.kind, namespace, f"{service}-shared-router")
    live = harness.cluster.objects.get(key)
    return [] if live is None else [each["addresses"][0] for each in live["endpoints"]]


def says(harness: Harness, namespace: str, name: str = "e", condition: str = "RouterReady") -> str:
    """The message of an endpoint's condition."""
    (found,) = [
        each["message"]
        for each in harness.cluster.find(ENDPOINT, namespace, name)["status"]["conditions"]
        if each["type"] == condition
    ]
    return str(found)


def strangers(kind: kinds.Kind, namespace: str, name: str) -> dict[str, Any]:
    """An object that a user has made without Penstock."""
    metadata = {"namespace": namespace, "name": name}
    if kind is SERVICE:
        spec = {"selector": {"app": "theirs"}, "ports": [{"name": "http", "port": 80}]}
        return {"apiVersion": "v1", "kind": kind.kind, "metadata": metadata, "spec": spec}
    group = {"apiVersion": "discovery.k8s.io/v1", "kind": kind.kind, "metadata": metadata}
    return {**group, "addressType": "IPv4", "endpoints": [], "ports": []}


async def report(harness: Harness, *pods: str, held: dict[str, int] | None = None) -> None:
    """The shared router's pods report that they have their settings, and listen."""
    document = shared_settings(harness)
    for pod in pods:
        harness._seq += 1
        sent = RouterReport(
            pod=pod,
            uid=harness.uid(POD, pod, HOME),
            seq=harness._seq,
            state="ready",
            settings_version=document["version"],
            settings_digest="d",
            tenants={
                namespace: TenantReport(
                    door=True,
                    endpoints={
                        each["name"]: EndpointReport(
                            listening=True,
                            backends={"m": BackendTotals(held=(held or {}).get(namespace, 0))},
                        )
                        for each in tenant["endpoints"]
                    },
                )
                for namespace, tenant in document["tenants"].items()
            },
        )
        for namespace, news in harness.ctx.reports.shared_router(sent).items():
            harness.manager.reported(namespace, "", notable=news.notable)
    await harness.run()


async def sharing(*namespaces: str) -> Harness:
    """Namespaces with an endpoint `e` of a backend `m` each, which the shared router serves."""
    harness = Harness()
    for namespace in namespaces:
        label(harness, namespace, "shared")
        await harness.applied(of(namespace, backend()), of(namespace, endpoint()))
    harness.pods_ready(NAME, 2, HOME)
    await harness.run()
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    return harness


async def test_namespaces_share_a_router_and_have_no_pod_and_no_router_of_their_own() -> None:
    """Equal names are apart by their namespaces' ports; each Service leads there once the pods listen."""
    harness = Harness()
    label(harness, "a", "shared")
    label(harness, "b", "shared")
    for namespace in ("a", "b", "n"):
        harness.apply(of(namespace, backend()))
        harness.apply(of(namespace, endpoint()))
    await harness.run()
    assert tenants(harness) == {"a": ["e"], "b": ["e"]}
    made = shared_settings(harness)["tenants"]
    ports = [port for each in made.values() for port in (each["port"], each["endpoints"][0]["port"])]
    assert len(set(ports)) == 4
    assert [harness.cluster.names(DEPLOYMENT, each) for each in ("a", "b", "n")] == [
        ["m-backend"], ["m-backend"], ["m-backend", OWN],
    ]  # fmt: skip
    harness.pods_ready(NAME, 2, HOME)
    await harness.run()
    assert leads_to(harness, "a") == []
    await report(harness, f"{NAME}-0")
    assert [leads_to(harness, "a", each) for each in ("e", OWN)] == [["10.0.0.1"]] * 2
    await report(harness, f"{NAME}-1")
    assert [leads_to(harness, each) for each in ("a", "b", "n")] == [["10.0.0.1", "10.0.0.2"]] * 2 + [[]]
    slice_ = harness.cluster.find(ENDPOINT_SLICE, "b", "e-shared-router")
    assert slice_["ports"][0]["port"] == made["b"]["endpoints"][0]["port"]
    assert [each["targetRef"] for each in slice_["endpoints"]] == [
        {"kind": "Pod", "namespace": HOME, "name": f"{NAME}-{number}"} for number in range(2)
    ]
    assert harness.condition(ENDPOINT, "e", "RouterReady", "b") == ("True", "Listening")
    harness.pods_ready(NAME, 1, HOME)
    await harness.run()
    assert leads_to(harness, "a") == leads_to(harness, "b", OWN) == ["10.0.0.1"]


async def test_a_change_in_one_namespace_is_no_news_in_another() -> None:
    """Its statuses stay as they are, whatever version the settings have by now."""
    harness = await sharing("a", "b")
    harness.cluster.writes.clear()
    await harness.applied(of("a", endpoint(timeout="7s")))
    assert harness.condition(ENDPOINT, "e", "RouterReady", "a") == ("False", "Waiting")
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert harness.condition(ENDPOINT, "e", "RouterReady", "a") == ("True", "Listening")
    assert not [write for write in harness.cluster.writes if "b" in write[2:3]], harness.cluster.writes


async def test_a_changed_endpoint_waits_alone_for_shared_routers_to_take_it_up() -> None:
    harness = await sharing("a")
    await harness.applied(of("a", endpoint("other")))
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    states = lambda: [harness.condition(ENDPOINT, each, "RouterReady", "a") for each in ("e", "other")]  # noqa: E731
    assert states() == [("True", "Listening")] * 2
    before = shared_settings(harness)
    await harness.applied(of("a", endpoint(timeout="7s")))
    assert before["version"] < shared_settings(harness)["version"]
    assert states() == [("False", "Waiting"), ("True", "Listening")]
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert states() == [("True", "Listening")] * 2


async def test_a_namespace_moves_to_the_shared_router_and_back_with_an_old_one_that_serves_meanwhile() -> (
    None
):
    harness = await sharing("a")
    await harness.applied(backend(), endpoint())
    harness.pods_ready(OWN, 2)
    await harness.run()
    for number in range(2):
        harness.router_report(f"{OWN}-{number}", ["e"], version=settings(harness, OWN_SETTINGS)["version"])
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("True", "Listening")
    service = harness.cluster.find(SERVICE, "n", "e")["spec"]
    label(harness, "n", "shared")
    await harness.run()
    assert tenants(harness) == {"a": ["e"], "n": ["e"]}
    assert leads_to(harness, "n") == []
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("True", "Listening")
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert len(leads_to(harness, "n")) == len(leads_to(harness, "n", OWN)) == 2
    assert harness.cluster.find(DEPLOYMENT, "n", OWN)["spec"]["replicas"] == 2, "nodes may not know yet"
    await harness.turn(LINGER_SECONDS + 1)
    assert harness.cluster.names(DEPLOYMENT, "n") == ["m-backend"]
    assert harness.cluster.find(SERVICE, "n", "e")["spec"] == service
    label(harness, "n", "own")
    await harness.run()
    for pod in harness.pods_ready(OWN, 2):
        await harness.run()
        assert len(leads_to(harness, "n")) == 2
        harness.router_report(pod, ["e"], version=settings(harness, OWN_SETTINGS)["version"])
    await harness.run()
    assert leads_to(harness, "n") == leads_to(harness, "n", OWN) == []
    await harness.turn(1)
    assert shared_settings(harness)["tenants"]["n"]["endpoints"][0]["leaving"] is True
    await harness.turn(LINGER_SECONDS)
    assert tenants(harness) == {"a": ["e"]}
    label(harness, "a", "own")
    await harness.run()
    for pod in harness.pods_ready(OWN, 2, "a"):
        version = json.loads(harness.cluster.find(CONFIG_MAP, "a", OWN_SETTINGS)["data"]["settings.json"])
        harness.router_report(pod, ["e"], version=version["version"], namespace="a")
    await harness.run()
    await harness.turn(LINGER_SECONDS + 1)
    assert harness.cluster.names(DEPLOYMENT, HOME) == [], "nobody uses it"


async def test_an_operator_of_one_namespace_leaves_the_shared_router_to_those_that_it_does_not_see() -> None:
    """`operator.watchNamespace`: its namespace gets a router of its own, and no other loses anything."""
    harness = await sharing("a", "n")
    await harness.applied(backend(), endpoint())
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    before = harness.cluster.find(DEPLOYMENT, HOME, NAME), tenants(harness)
    assert before[1] == {"a": ["e"], "n": ["e"]}
    harness.stop()
    alone = Harness(harness.cluster, harness.clock, harness.ctx.render, everywhere=False)
    await alone.manager.sync()
    await alone.run()
    for pod in alone.pods_ready(OWN, 2):
        await alone.run()
        alone.router_report(pod, ["e"], version=settings(alone, OWN_SETTINGS)["version"])
    await alone.run()
    assert leads_to(alone, "n") == leads_to(alone, "n", OWN) == []
    assert (alone.cluster.find(DEPLOYMENT, HOME, NAME), tenants(alone)) == before


@pytest.mark.parametrize("service", ["e", OWN])
async def test_no_slice_leads_from_a_strangers_service_here(service: str) -> None:
    """Nodes would send a part of its requests here, whether it was there first or took the place of ours."""
    slice_ = (ENDPOINT_SLICE.kind, "a", f"{service}-shared-router")
    harness = Harness()
    label(harness, "a", "shared")
    theirs = harness.apply(strangers(SERVICE, "a", service))["spec"]
    await harness.applied(of("a", backend()), of("a", endpoint()), of("a", endpoint("other")))
    harness.pods_ready(NAME, 2, HOME)
    await harness.run()
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert slice_ not in harness.cluster.objects
    assert harness.cluster.find(SERVICE, "a", service)["spec"] == theirs
    assert len(leads_to(harness, "a", "other")) == 2
    harness.cluster.remove(SERVICE, "a", service)
    await harness.turn(31)
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert len(leads_to(harness, "a", service)) == 2
    harness.cluster.remove(SERVICE, "a", service)
    harness.apply(strangers(SERVICE, "a", service))
    await harness.run()
    assert slice_ not in harness.cluster.objects
    assert harness.cluster.find(SERVICE, "a", service)["spec"] == theirs
    fresh = await harness.restart()
    label(fresh, "a", "shared")
    await fresh.run()
    assert slice_ not in fresh.cluster.objects


@pytest.mark.parametrize("service", ["e", OWN])
async def test_a_strangers_service_keeps_no_namespace_from_moving_to_the_shared_router(service: str) -> None:
    harness = await sharing("b")
    harness.apply(strangers(SERVICE, "a", service))
    await harness.applied(of("a", backend()), of("a", endpoint()), of("a", endpoint("other")))
    harness.pods_ready(OWN, 2, "a")
    label(harness, "a", "shared")
    await harness.run()
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert len(leads_to(harness, "a", "other")) == 2
    await harness.turn(LINGER_SECONDS + 1)
    assert harness.cluster.names(DEPLOYMENT, "a") == ["m-backend"]
    assert (ENDPOINT_SLICE.kind, "a", f"{service}-shared-router") not in harness.cluster.objects


async def test_a_strangers_front_door_keeps_no_namespace_on_the_shared_router() -> None:
    """A label that asks for routers of its own is followed once they listen, as it is elsewhere."""
    harness = await sharing("b")
    label(harness, "a", "shared")
    harness.apply(strangers(SERVICE, "a", OWN))
    await harness.applied(of("a", backend()), of("a", endpoint()))
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert len(leads_to(harness, "a")) == 2
    harness.clock.turn(1)
    label(harness, "a", "own")
    await harness.run()
    document = json.loads(harness.cluster.find(CONFIG_MAP, "a", OWN_SETTINGS)["data"]["settings.json"])
    for pod in harness.pods_ready(OWN, 2, "a"):
        await harness.run()
        assert len(leads_to(harness, "a")) == 2
        harness.router_report(pod, ["e"], version=document["version"], namespace="a")
    await harness.run()
    assert leads_to(harness, "a") == []
    assert says(harness, "a").startswith("not ours, so not touched: Service/penstock-router")


async def test_a_service_that_cannot_be_made_gets_no_slice() -> None:
    """A stranger's could be made in its place before the next look."""
    harness = await sharing("a")

    def refuse(verb: str, kind: str, _namespace: str, name: str) -> None:
        if (verb, kind, name) == ("apply", SERVICE.kind, "e"):
            raise Rejected(403, "no")

    harness.cluster.fail = refuse
    harness.cluster.remove(SERVICE, "a", "e")
    await harness.run()
    assert (ENDPOINT_SLICE.kind, "a", "e-shared-router") not in harness.cluster.objects
    harness.cluster.fail = lambda *_: None
    await harness.turn(31)
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert len(leads_to(harness, "a")) == 2


@pytest.mark.parametrize("kind", [SERVICE, ENDPOINT_SLICE], ids=lambda kind: kind.kind)
async def test_endpoints_on_shared_routers_say_that_the_front_door_is_a_strangers(kind: kinds.Kind) -> None:
    """They are served all the same."""
    name = OWN if kind is SERVICE else f"{OWN}-shared-router"
    harness = Harness()
    label(harness, "a", "shared")
    harness.apply(strangers(kind, "a", name))
    await harness.applied(of("a", backend()), of("a", endpoint()))
    harness.pods_ready(NAME, 2, HOME)
    await harness.run()
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert harness.condition(ENDPOINT, "e", "RouterReady", "a") == ("True", "Listening")
    assert says(harness, "a") == (
        f"all 2 ready shared routers, in {HOME}; of the namespace's front door, not ours, so not touched: "
        f"{kind.kind}/{name}; delete it"
    )
    harness.cluster.remove(kind, "a", name)
    await harness.turn(31)
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert says(harness, "a") == f"all 2 ready shared routers, in {HOME}"


@pytest.mark.parametrize("kind", [SERVICE, ENDPOINT_SLICE], ids=lambda kind: kind.kind)
async def test_an_endpoint_names_the_strangers_object_that_has_its_name(kind: kinds.Kind) -> None:
    name = "e" if kind is SERVICE else "e-shared-router"
    harness = await sharing("b")
    label(harness, "a", "shared")
    harness.apply(strangers(kind, "a", name))
    await harness.applied(of("a", backend()), of("a", endpoint()))
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert harness.condition(ENDPOINT, "e", "Accepted", "a") == ("False", "NameTaken")
    assert says(harness, "a", condition="Accepted") == (
        f"not ours, so not touched: {kind.kind}/{name}; choose another name or delete it"
    )


async def test_an_endpoint_says_on_which_routers_it_is() -> None:
    harness = await sharing("a")
    assert says(harness, "a") == f"all 2 ready shared routers, in {HOME}"
    harness.pods_ready(NAME, 1, HOME)
    await harness.run()
    assert says(harness, "a") == f"the only ready shared router, in {HOME}"
    harness.pods_ready(NAME, 0, HOME)
    await harness.run()
    assert says(harness, "a") == f"no shared router pod is ready, in {HOME}"


async def test_a_label_that_asks_for_no_known_routers_is_named_and_logged_once() -> None:
    """It changes nothing else, and is of no matter once it is a known one."""
    harness = Harness()
    label(harness, "n", "Shared")
    await harness.applied(backend(), endpoint())
    await harness.applied(endpoint(timeout="7s"))
    assert "penstock-router" in harness.cluster.names(DEPLOYMENT, "n")
    note = "the namespace's label penstock.dev/router=Shared is neither shared nor own, and is ignored"
    assert says(harness, "n").endswith(f"; {note}")
    logged = [fields for message, fields in harness.log if message == "a namespace's label is ignored"]
    assert [(each["namespace"], each["label"]) for each in logged] == [("n", "penstock.dev/router=Shared")]
    harness.clock.turn(1)
    label(harness, "n", "own")
    await harness.run()
    assert "label" not in says(harness, "n")


async def test_what_it_holds_wakes_the_backend_of_that_namespace_alone() -> None:
    harness = Harness()
    asleep = {"minReplicas": 0, "maxReplicas": 1, "targetLoad": 4}
    for namespace in ("a", "b"):
        label(harness, namespace, "shared")
        harness.apply(of(namespace, backend(replicas=0, autoscaling=asleep)))
        harness.apply(of(namespace, endpoint()))
    await harness.run()
    harness.pods_ready(NAME, 1, HOME)
    await harness.run()
    await report(harness, f"{NAME}-0", held={"b": 1})
    replicas = [
        harness.cluster.find(DEPLOYMENT, each, "m-backend")["spec"]["replicas"] for each in ("a", "b")
    ]
    assert replicas == [0, 1]


async def test_a_namespace_that_goes_takes_its_part_along_and_its_ports_are_not_given_away() -> None:
    harness = await sharing("a", "b")
    before = shared_settings(harness)["tenants"]["a"]["endpoints"][0]["port"]
    harness.cluster.remove(ENDPOINT, "a", "e")
    await harness.run()
    assert tenants(harness) == {"b": ["e"]}
    assert harness.ctx.memory.shared.freed.keys() >= {before}
    fresh = await harness.restart()
    assert tenants(fresh) == {"b": ["e"]}
    assert leads_to(fresh, "b") == ["10.0.0.1", "10.0.0.2"], "without a report yet"


async def test_an_autoscaler_decides_how_many_shared_routers_there_are() -> None:
    scaling = RouterAutoscaling(min_replicas=2, max_replicas=5, target=70)
    harness = Harness(render=dataclasses.replace(RENDER, router_autoscaling=scaling), shared=True)
    await harness.applied(backend(), endpoint())
    autoscaler = harness.cluster.find(POD_AUTOSCALER, HOME, NAME)["spec"]
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (2, 5)
    assert autoscaler["scaleTargetRef"]["name"] == NAME
    harness.cluster.edit(DEPLOYMENT, HOME, NAME, lambda live: live["spec"].update(replicas=4))
    await harness.applied(endpoint("another"))
    assert harness.cluster.find(DEPLOYMENT, HOME, NAME)["spec"]["replicas"] == 4


async def test_nothing_of_a_deleted_namespace_stays_in_memory() -> None:
    """Whoever makes and deletes namespaces in a loop costs the operator what is there, not what was."""
    harness = Harness(shared=True)
    label(harness, GOES, "none-such")
    for service in ("e", OWN):
        harness.apply(strangers(SERVICE, GOES, service))
    for namespace in ("b", GOES):
        await harness.applied(of(namespace, backend()), of(namespace, endpoint()))
    harness.pods_ready(NAME, 2, HOME)
    await harness.run()
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert GOES in texts_in(harness)
    for kind, namespace, name in sorted(harness.cluster.objects, key=lambda each: each[0] == SERVICE.kind):
        if namespace == GOES and (kind, namespace, name) in harness.cluster.objects:
            harness.cluster.remove(KINDS_BY_NAME[kind], namespace, name)
            await harness.run()
    labelled = harness.ctx.store.get(kinds.NAMESPACE, "", GOES)
    assert labelled is not None
    harness.manager.remove(labelled)
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    await harness.turn(max(QUARANTINE_SECONDS, LINGER_SECONDS) + 1)
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert tenants(harness) == {"b": ["e"]}
    harness.ctx.memory.shared.made = None  # the last 256 changes have the names of their namespaces
    assert GOES not in texts_in(harness)


async def test_slices_are_of_their_services_family_and_made_anew_where_it_is_another_one() -> None:
    """Nobody can change an EndpointSlice's `addressType`; one is made before its Service is seen."""
    harness = await sharing("a")
    for number in range(2):
        both = [{"ip": f"10.0.0.{number + 1}"}, {"ip": f"fd00::{number + 1}"}]
        harness.cluster.edit(
            POD, HOME, f"{NAME}-{number}", lambda pod, both=both: pod["status"].update(podIPs=both)
        )
    await harness.run()
    assert leads_to(harness, "a") == ["10.0.0.1", "10.0.0.2"]
    for service in ("e", OWN):
        harness.cluster.edit(SERVICE, "a", service, lambda live: live["spec"].update(ipFamilies=["IPv6"]))
    await harness.run()
    for service in ("e", OWN):
        assert leads_to(harness, "a", service) == ["fd00::1", "fd00::2"]
        live = harness.cluster.find(ENDPOINT_SLICE, "a", f"{service}-shared-router")
        assert live["addressType"] == "IPv6"


async def test_a_slice_that_a_user_has_written_takes_no_port_from_another_namespace() -> None:
    """Neither while the operator runs, nor across its restart, nor ports that nobody has yet."""
    harness = await sharing("a", "b")
    before = shared_settings(harness)["tenants"]
    port = before["b"]["endpoints"][0]["port"]

    def forge(slice_: dict[str, Any]) -> None:
        slice_["ports"] = [{"name": "http", "port": port, "protocol": "TCP", "appProtocol": "http"}]

    mine = harness.cluster.find(ENDPOINT_SLICE, "a", "e-shared-router")
    harness.cluster.edit(ENDPOINT_SLICE, "a", "e-shared-router", forge)
    for number in range(ports.SHARED_FIRST, ports.SHARED_FIRST + 50):
        own = {**mine["metadata"]["labels"], ENDPOINT_LABEL: "x"}
        metadata = {"namespace": "a", "name": f"x{number}-shared-router", "labels": own}
        harness.apply({**mine, "metadata": metadata, "ports": [{**mine["ports"][0], "port": number}]})
    await harness.run()
    assert shared_settings(harness)["tenants"] == before
    harness.stop()
    harness.cluster.edit(ENDPOINT_SLICE, "a", "e-shared-router", forge)
    fresh = Harness(harness.cluster, harness.clock)
    label(fresh, "a", "shared")
    label(fresh, "b", "shared")
    await fresh.manager.sync()
    await fresh.run()
    assert shared_settings(fresh)["tenants"] == before


async def test_where_no_port_is_left_others_are_served_on(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await sharing("a")
    taken = shared_settings(harness)["tenants"]["a"]
    last = max(taken["port"], taken["endpoints"][0]["port"])
    monkeypatch.setattr(ports, "SHARED_FIRST", min(taken["port"], taken["endpoints"][0]["port"]))
    monkeypatch.setattr(ports, "LAST", last)
    for number in range(last):
        harness.ctx.memory.shared.freed[number + 1] = harness.clock.time()
    label(harness, "b", "shared")
    await harness.applied(of("b", backend()), of("b", endpoint()), of("a", endpoint(timeout="7s")))
    assert tenants(harness) == {"a": ["e"]}
    assert shared_settings(harness)["tenants"]["a"]["endpoints"][0]["timeoutMs"] == 7000
    assert any(message == "the shared router has no port left" for message, _ in harness.log)
    looked = sum("no port left" in message for message, _ in harness.log)
    await harness.turn(QUARANTINE_SECONDS / 2)
    assert sum("no port left" in message for message, _ in harness.log) == looked
    monkeypatch.undo()
    await harness.turn(QUARANTINE_SECONDS / 2 + 1)
    assert tenants(harness) == {"a": ["e"], "b": ["e"]}


async def test_large_settings_reach_routers_at_once_and_the_configmap_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await sharing("a", "b")
    monkeypatch.setattr(shared, "SMALL_BYTES", 10)
    await harness.turn(shared.BOOT_SECONDS)
    versions = []
    for seconds in (7, 8, 9):
        await harness.applied(of("a", endpoint(timeout=f"{seconds}s")))
        made = harness.ctx.memory.shared.made
        assert made is not None
        versions.append((made.version, shared_settings(harness)["version"]))
    assert [sent - versions[0][0] for sent, _ in versions] == [0, 1, 2]
    assert [kept - versions[0][0] for _, kept in versions] == [0, 0, 0]
    await harness.turn(shared.BOOT_SECONDS)
    assert shared_settings(harness)["version"] == versions[-1][0]
    assert json.loads(made.since("")) == shared_settings(harness)


async def test_a_label_that_flips_each_second_leaves_no_moment_without_a_router() -> None:
    """Each flip costs a few writes in its namespace, and none in others."""
    harness = await sharing("a", "b")
    own: list[str] = []
    for turn in range(12):
        harness.cluster.writes.clear()
        label(harness, "a", ("own", "shared")[turn % 2])
        await harness.run()
        if turn == 6:
            own = harness.pods_ready(OWN, 2, "a")
            document = harness.cluster.find(CONFIG_MAP, "a", OWN_SETTINGS)["data"]["settings.json"]
            for pod in own:
                harness.router_report(pod, ["e"], version=json.loads(document)["version"], namespace="a")
            await harness.run()
        live = harness.cluster.objects.get((DEPLOYMENT.kind, "a", OWN))
        assert leads_to(harness, "a") or (own and live is not None and live["spec"]["replicas"])
        assert len(harness.cluster.writes) < 20
        assert not [write for write in harness.cluster.writes if "b" in write[2:3]]
        await harness.turn(1)
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    assert len(leads_to(harness, "a")) == 2


async def test_another_operator_writes_nothing_again_that_a_change_elsewhere_leaves_as_it_was() -> None:
    """Neither a change before it began to act, nor one after it, writes the statuses of other namespaces."""
    harness = await sharing("a", "b")
    await harness.applied(of("a", endpoint("f")))
    await report(harness, f"{NAME}-0", f"{NAME}-1")
    harness.stop()
    fresh = Harness(harness.cluster, harness.clock)
    for namespace in ("a", "b"):
        label(fresh, namespace, "shared")
    harness.cluster.writes.clear()
    await fresh.manager.sync()
    await fresh.run()
    await report(fresh, f"{NAME}-0", f"{NAME}-1")
    assert harness.cluster.writes == []
    await fresh.applied(of("a", endpoint("g")))
    await report(fresh, f"{NAME}-0", f"{NAME}-1")
    assert harness.cluster.writes
    assert not [write for write in harness.cluster.writes if write[2] == "b"]


async def test_a_report_that_says_the_same_of_a_namespace_keeps_what_it_said_and_is_fresh() -> None:
    """Also while the interval grows; what a router holds, or no longer holds, is taken each time."""
    clock = HandClock()
    reports = Reports(clock)

    def say(seq: int, held: int, *, every: float = 1.0, state: State = "ready") -> dict[str, bool]:
        served = EndpointReport(listening=True, backends={"m": BackendTotals(requests=3, held=held)})
        tenants = {"a": TenantReport(door=True), "b": TenantReport(endpoints={"e": served})}
        sent = RouterReport(pod="r", uid="u", seq=seq, state=state, settings_version=1, tenants=tenants)
        return {name: news.notable for name, news in reports.shared_router(sent, every=every).items()}

    assert say(1, 0) == {"a": True, "b": True}
    for seq in range(2, 12):
        await clock.advance(6)
        assert say(seq, 0, every=10.0) == {"a": False, "b": False}
    await clock.advance(24)
    for name in ("a", "b"):
        (kept,) = reports.of_router(name, SHARED).values()
        assert (kept.seq, kept.door) == (1, name == "a")
    assert say(12, 2) == {"a": False, "b": False}
    assert reports.take_newly_held("b") == {"m"}
    assert say(13, 2) == say(14, 0) == {"a": False, "b": False}
    assert reports.window("b", "m").last("r") is None
    assert say(15, 0, state="draining") == {"a": True, "b": True}
    await clock.advance(60)
    assert reports.of_router("a", SHARED) == {}
    assert say(16, 0, state="draining") == {"a": True, "b": True}


async def test_a_report_that_builds_on_the_last_one_says_what_that_said_too() -> None:
    """What it leaves out stays, and stays fresh; one that builds on another report changes nothing."""
    clock = HandClock()
    reports = Reports(clock)

    def say(seq: int, base: int, **requests: int) -> set[str]:
        tenants = {
            name: TenantReport(
                endpoints={"e": EndpointReport(backends={"m": BackendTotals(requests=number)})}
            )
            for name, number in requests.items()
        }
        sent = RouterReport(pod="r", uid="u", seq=seq, base=base, state="ready", tenants=tenants)
        return set(reports.shared_router(sent))

    def said() -> dict[str, int]:
        latest = {name: reports.of_router(name, SHARED).get("r") for name in "ab"}
        return {
            name: each.endpoints["e"].backends["m"].requests
            for name, each in latest.items()
            if each is not None
        }

    assert say(1, 7, a=9) == set()
    assert (reports.taken("u"), said()) == (0, {})
    assert say(2, 0, a=1, b=1) == {"a", "b"}
    for seq in range(3, 40):
        await clock.advance(1)
        assert reports.taken("u") == seq - 1
        assert "b" in say(seq, seq - 1, b=seq)
        assert said() == {"a": 1, "b": seq}
    assert say(40, 38, a=5) == set()
    assert (reports.taken("u"), said()) == (0, {"a": 1, "b": 39})
    assert say(41, 0, a=5) == {"a", "b"}  # the other is gone
    assert (reports.taken("u"), said()) == (41, {"a": 5})
    reports.forget_pod("home", "r", "u")
    assert (reports.taken("u"), said()) == (0, {})


@pytest.mark.parametrize("late", [False, True])
async def test_a_release_on_shared_routers_counts_sparse_requests_too(late: bool) -> None:
    """A request every 40 s; also of an endpoint that is followed only after the first report."""
    clock = HandClock()
    reports = Reports(clock)

    def say(seq: int, requests: int) -> None:
        seconds = (requests, *[0] * (FIRST_BYTE_BUCKETS - 1))
        served = EndpointReport(backends={"m": BackendTotals(requests=requests, seconds=seconds)})
        sent = RouterReport(
            pod="r", uid="u", seq=seq, state="ready", tenants={"a": TenantReport(endpoints={"e": served})}
        )
        reports.shared_router(sent)

    if late:
        say(1, 0)
    reports.releases.follow("a", "e", "m", "other")
    for second in range(1, 401):
        await clock.advance(1)
        say(1 + second, second // 40)
    assert reports.releases.take("a", "e").stable.requests == 10
    assert reports.answered_lately("a", "e", "other") == 0
