"""The rule of when to write, against the real apiserver: it says so exactly where a write changes something.

Random resources are rendered and applied as the operator does, with the operator's own client, and edited by
another client at random. The result of another apply decides who is right.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from devcluster.api import Api
from penstock_operator import apply
from penstock_operator.api import ModelBackend, ModelEndpoint
from penstock_operator.desired import backend as rendering
from penstock_operator.desired import deployment, names, objects, traffic
from penstock_operator.desired import router as routing
from penstock_operator.desired import settings as documents
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.drift import contained
from penstock_operator.desired.template_pinning import PinnedTemplate
from penstock_operator.errors import Rejected
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, Kind, kind_of
from penstock_operator.kube.cluster import KubernetesCluster, Obj
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import INSTALLED_IN, Namespace, container_backend, endpoint
from tests.support.cluster.release import operator_idle
from tests.support.worlds.pod_specs import SPECS
from tests.support.worlds.router_specs import ROUTERS, Router

BACKENDS = 40
ROUTERS_OF_ONE_NAMESPACE = 12
"""Examples: what a router is rendered from has fewer spellings than a pod, and its objects are more."""

EDITS = 3
"""Edits of each object of an example."""

Drawn = TypeVar("Drawn")

CONFIG = RenderConfig(sidecar_image="s:1", router_image="r:1", authorities="PEM\n")
Path = tuple[Any, ...]

_SERVERS = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "name")
_CONTROLLERS = "deployment.kubernetes.io/revision"


def test_a_write_is_wanted_exactly_where_it_changes_something(namespace: Namespace) -> None:
    """Of any backend's objects, applied, edited, changed and applied again.

    - After an apply nothing is to be written, whatever the apiserver made of it.
    - After an edit by another, a write is wanted if and only if it changes the object; after it, none is.
    - After another spec, what left the spec has left the objects: they equal ones made afresh.
    """
    # Suspended: the operator in the cluster leaves its children alone.
    namespace.apply(container_backend("b", script="", replicas=0, suspend=True))
    namespace.wait_condition("modelbackend", "b", "Ready", "False", reason="Suspended")
    all_hold(namespace, BACKENDS, SPECS, World.of_backend)


def test_the_same_holds_of_a_router_and_of_each_endpoints_service(namespace: Namespace) -> None:
    """Of all that a namespace's endpoints imply, owned by one of them, by the other or by both."""
    no_pods = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
               "spec": {"hard": {"pods": "0"}}}  # fmt: skip
    kept = {"finalizers": ["example.com/kept"]}
    both = [obj | {"metadata": obj["metadata"] | kept} for obj in (endpoint("e", "b"), endpoint("f", "b"))]
    try:
        namespace.apply(no_pods, container_backend("b", script="", replicas=0), *both)
        leave_alone(namespace)
        all_hold(namespace, ROUTERS_OF_ONE_NAMESPACE, ROUTERS, World.of_router)
    finally:
        for name in ("e", "f"):
            namespace.patch("modelendpoint", name, {"metadata": {"finalizers": None}})


def leave_alone(namespace: Namespace) -> None:
    """Have the operator in the cluster leave what the endpoints imply: they are being deleted, and stay."""

    def owners() -> set[str]:
        router = namespace.get("deployment", names.ROUTER) or {"metadata": {}}
        return {ref["name"] for ref in router["metadata"].get("ownerReferences") or ()}

    def used() -> list[str]:
        status = (namespace.get("modelbackend", "b") or {}).get("status") or {}
        return list(status.get("usedBy") or ())

    wait_for("the router of both", lambda: owners() == {"e", "f"} and len(used()) == 2)
    # NB: one after the other. The Deployment is what a run writes last: then nothing is under way any more.
    namespace.kubectl("delete", "modelendpoint", "f", "--wait=false")
    wait_for("the router of one", lambda: owners() == {"e"})
    namespace.kubectl("delete", "modelendpoint", "e", "--wait=false")
    wait_for("the operator to use no endpoint", lambda: not used())
    system = Namespace(namespace.cluster, INSTALLED_IN)
    wait_for("nothing to be under way", lambda: operator_idle(system))


def all_hold(
    namespace: Namespace,
    examples: int,
    drawn: st.SearchStrategy[Drawn],
    rendered: Callable[[World, Drawn], Awaitable[list[Obj]]],
) -> None:
    """Draw examples and judge them.

    Args:
        rendered: the objects that the operator makes of that.
    """
    done: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        world = runner.run(World.connect(namespace))

        async def example(wanted: Drawn) -> None:
            await world.example(await rendered(world, wanted), random.Random(done["examples"]), done)

        try:

            @settings(
                max_examples=examples,
                derandomize=True,
                database=None,
                phases=[Phase.generate],  # each try changes the cluster: so it cannot shrink
                suppress_health_check=list(HealthCheck),
            )
            @given(drawn)
            def holds(wanted: Drawn) -> None:
                done["examples"] += 1
                runner.run(example(wanted))

            holds()
        finally:
            runner.run(world.cluster.close())
    print(dict(done))
    assert not world.faults, "\n".join([f"{len(world.faults)} faults", *world.faults[:20]])
    # The edits were not all of one sort, nor refused.
    assert min(done["written: drift"], done["left: None"], done["written: changed"]) > examples // 2, done


class World:
    """One namespace in the real cluster, as the operator and as its users see it."""

    def __init__(self, cluster: KubernetesCluster, api: Api, namespace: str) -> None:
        self.cluster = cluster
        self.api = api
        self.namespace = namespace
        self.faults: list[str] = []

    @classmethod
    async def connect(cls, namespace: Namespace) -> World:
        """Log in."""
        cluster = namespace.cluster
        connected = await KubernetesCluster.connect(str(cluster.host_kubeconfig))
        return cls(connected, cluster.api(), namespace.name)

    async def example(self, wanted: list[Obj], draw: random.Random, done: Counter[str]) -> None:
        """A change of what is wanted, then edits of each object."""
        for desired in wanted:
            live = await self.cluster.apply(kind_of(desired), objects.stamped(desired))
            if apply.needs_write(desired, live) is not None:
                self.faults.append(f"{desired['kind']}: wanted again after an apply: {missed(desired, live)}")
                continue  # nothing else can be checked of it
            if wrong := differences(stable(self.afresh(desired)), stable(live)):
                self.faults.append(f"{desired['kind']}: not as made afresh: {wrong}")
            for _ in range(EDITS):
                live = await self.edited(desired, draw, done) or live
                self.restored(live)

    def taken(self, kind: Kind, name: str, spec: Obj) -> Obj:
        """A resource as the apiserver takes it, with its defaults; in the cluster it stays as it is."""
        path = kind.path(self.namespace, name)
        status, answer = self.replaced(path, lambda live: live | {"spec": spec}, query="dryRun=All")
        assert status == 200, (answer, spec)
        return answer

    def replaced(
        self, path: str, edit: Callable[[Obj], Obj], *, query: str = "fieldManager=somebody"
    ) -> tuple[int, Obj]:
        """Replace an object as an editor does: again where it has just changed.

        Returns:
            The last status and answer.
        """
        for _ in range(20):
            code, live = self.api.request("GET", path)
            assert code == 200, live
            status, answer = self.api.request("PUT", f"{path}?{query}", edit(live))
            if status != 409:  # its status has just been written
                break
        return status, answer

    async def of_backend(self, spec: Obj) -> list[Obj]:
        """The objects that the operator would render for the backend `b` with this spec."""
        backend = ModelBackend.parse(self.taken(BACKEND, "b", spec | {"replicas": 0}))
        held = {
            kind: await self.cluster.get(kind, self.namespace, name)
            for kind, name in ((CONFIG_MAP, "b-backend-settings"), (DEPLOYMENT, "b-backend"))
        }
        document = documents.next_version(
            documents.for_sidecar(backend, None), recorded=held[CONFIG_MAP], status_version=0, reported=0
        ).document
        pinned: PinnedTemplate = deployment.pinned_template(
            backend, config=CONFIG, new_secret="secret", live=held[DEPLOYMENT]
        )  # fmt: skip
        return rendering.backend_objects(backend, document=document, pinned=pinned, config=CONFIG)

    async def of_router(self, drawn: Router) -> list[Obj]:
        """The objects that the operator would render for these endpoints alone."""
        endpoints = []
        for name, spec in drawn.endpoints.items():
            served = self.taken(ENDPOINT, name, spec)
            del served["metadata"]["deletionTimestamp"]
            endpoints.append(ModelEndpoint.parse(served))
        router_document = traffic.router_endpoints(
            tuple(endpoints), traffic.plan(endpoints, (), {"b": True}), drawn.ports, {}
        )
        held = await self.cluster.get(CONFIG_MAP, self.namespace, names.ROUTER_SETTINGS)
        document = documents.next_version(
            documents.for_router(router_document), recorded=held, status_version=0, reported=0
        ).document
        config = replace(CONFIG, **drawn.config)
        return [
            *routing.router_objects(self.namespace, endpoints, config=config, document=document),
            *(routing.endpoint_service(owner, drawn.ports[owner.name]) for owner in endpoints),
        ]

    def afresh(self, desired: Obj) -> Obj:
        """The object as the API server would create it (a dry run)."""
        other = {**desired["metadata"], "name": "afresh"}
        path = kind_of(desired).path(self.namespace) + "?dryRun=All"
        status, answer = self.api.request("POST", path, objects.stamped(desired | {"metadata": other}))
        assert status == 201, answer
        fresh: Obj = answer
        # The name is a part of what is hashed.
        fresh["metadata"]["annotations"].update(objects.stamped(desired)["metadata"]["annotations"])
        return fresh

    async def edited(self, desired: Obj, draw: random.Random, done: Counter[str]) -> Obj | None:
        """Somebody edits the object; the rule and the apiserver agree about it, and it is mended.

        Returns:
            The object, where it had to be made anew.
        """
        kind, name = kind_of(desired), desired["metadata"]["name"]
        where = draw.choice(list(paths(objects.stamped(desired))))
        mood, edit = draw.random(), ""

        def change_it(live: Obj) -> Obj:
            nonlocal edit
            edit = change(live, where, random.Random(mood))
            return live

        status, answer = self.replaced(kind.path(self.namespace, name), change_it)
        if status != 200 or not edit:
            done[f"no edit: {status}"] += 1
            return None
        verdict = apply.needs_write(desired, answer)
        try:
            mended = await self.cluster.apply(kind, objects.stamped(desired))
        except Rejected:
            # What was one element of a list is another's now, and both together are not valid: its owner
            # reads that in a condition.
            assert verdict == "drift", edit
            done["refused: drift"] += 1
            # NB: what is restored would be somebody's, too, and no apply of ours would remove it again.
            self.api.request("DELETE", kind.path(self.namespace, name))
            return await self.cluster.apply(kind, objects.stamped(desired))
        changed = differences(stable(answer), stable(mended))
        description = (
            f"{edit} {kind.kind}.{'.'.join(map(str, where))}: {at(answer, where)} of {at(desired, where)}"
        )
        if (verdict is not None) != bool(changed):
            self.faults.append(f"{verdict} said, an apply changed {changed}: {description}")
        if apply.needs_write(desired, mended) is not None:
            self.faults.append(f"not mended: {missed(desired, mended)}, {description}")
        done[f"{'written' if changed else 'left'}: {verdict}"] += 1
        return None

    def restored(self, before: Obj) -> None:
        """Remove what the other client added and we left."""

        def back(live: Obj) -> Obj:
            kept = {name: live["metadata"][name] for name in ("managedFields", "resourceVersion")}
            return before | {"metadata": before["metadata"] | kept}

        path = kind_of(before).path(self.namespace, before["metadata"]["name"])
        status, answer = self.replaced(path, back)
        assert status == 200, answer


# -- paths in objects, and edits ---------------------------------------------------------------------------


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every member that an edit may touch: maps, lists and what is in them."""
    members: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for step, member in members:
        here = (*path, step)
        if here[0] in ("apiVersion", "kind") or here in (("metadata", "name"), ("metadata", "namespace")):
            continue
        if here == ("metadata", "ownerReferences"):
            yield here  # whole: the garbage collector takes what belongs to nobody that there is
            continue
        if here != ("metadata",):
            yield here
        if isinstance(member, dict | list):
            yield from paths(member, here)


def at(value: Any, path: Path) -> Any:
    """A member by its path; None if it does not exist."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def change(live: Obj, path: Path, draw: random.Random) -> str:
    """Edit an object in place; returns what was done, nothing where there was nothing to edit."""
    holder, last = at(live, path[:-1]), path[-1]
    value = at(live, path)
    if value is None:
        return ""
    if draw.random() < 0.4 or last == "ownerReferences":
        del holder[last]
        return "deleted"
    if isinstance(value, dict):
        value[draw.choice(["somebody.example", "name"])] = "theirs"
        return "added to"
    if isinstance(value, list):
        if len(value) > 1 and draw.random() < 0.5:
            value.reverse()
            return "reversed"
        again = copy.deepcopy(draw.choice(value)) if value else "theirs"
        if isinstance(again, dict):
            again |= {key: "theirs" for key in ("name", "key", "topologyKey", "mountPath") if key in again}
        value.append(again)
        return "appended to"
    if isinstance(value, bool):
        holder[last] = not value
    elif isinstance(value, int):
        holder[last] = value + 1
    else:
        holder[last] = draw.choice([value + "x", "", "7"])
    return "altered"


def missed(desired: Any, live: Any, path: Path = ()) -> list[str]:
    """The drift by our rule; lists are compared by index."""
    if isinstance(desired, dict) and isinstance(live, dict):
        return [each for name in desired for each in missed(desired[name], live.get(name), (*path, name))]
    if contained(desired, live, str(path[-1])):
        return []
    if isinstance(desired, list) and isinstance(live, list) and len(desired) == len(live):
        both = enumerate(zip(desired, live, strict=True))
        return [each for index, pair in both for each in missed(*pair, (*path, index))]
    return [f"{'.'.join(map(str, path))}: {live} for {desired}"]


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """The differences between two objects."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            each
            for name in sorted(before.keys() | after.keys())
            for each in differences(before.get(name), after.get(name), f"{path}.{name}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            each
            for index, both in enumerate(zip(before, after, strict=True))
            for each in differences(*both, f"{path}.{index}")
        ]
    nothing = (None, "", [], {})
    if (before in nothing and after in nothing) or (type(before) is type(after) and before == after):
        return []
    return [f"{path}: {before} -> {after}"]


def stable(live: Obj) -> Obj:
    """An object without what the apiserver counts and what controllers write."""
    kept = {key: value for key, value in live.items() if key not in ("status", "metadata")}
    metadata = {key: value for key, value in live["metadata"].items() if key not in _SERVERS}
    annotations = {
        key: value for key, value in metadata.get("annotations", {}).items() if key != _CONTROLLERS
    }
    if live["kind"] == "Service":
        kept["spec"] = {
            key: value for key, value in kept["spec"].items() if key not in ("clusterIP", "clusterIPs")
        }
    return kept | {"metadata": metadata | {"annotations": annotations}}
