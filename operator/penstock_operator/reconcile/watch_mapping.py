"""Maps changes to keys: finds the keys to reconcile again after an object has changed.

Every dependency between objects is here, in the direction "what changed → which keys must run again".
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_operator import injected
from penstock_operator.api.defaults import route
from penstock_operator.desired import labels, names
from penstock_operator.desired.ports import recorded_port
from penstock_operator.desired.router import leads_to_dedicated
from penstock_operator.desired.shares import mirrors_of
from penstock_operator.kinds import (
    BACKEND,
    DEPLOYMENT,
    ENDPOINT,
    ENDPOINT_SLICE,
    NAMESPACE,
    PARENTS,
    POD,
    POLICY,
    SERVICE,
    SPLIT,
)
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.router import is_dedicated_router, is_shared, router_key
from penstock_operator.reconcile.scale_owners import kept_at_zero
from penstock_operator.reconcile.shared import KEY as SHARED_ROUTER
from penstock_operator.reconcile.shared import is_shared_router
from penstock_operator.reconcile.view import View
from penstock_operator.status import pods
from penstock_operator.store import Change, ObjectKey, child_changed, key_of, owner_uids, parent_changed

_PARENTS = frozenset(kind.kind for kind in PARENTS)


def keys_for(view: View, change: Change) -> set[ObjectKey]:
    """Return the keys that a change concerns."""
    versions = [version for version in (change.old, change.new) if version is not None]
    if not versions or not change.happened:
        return set()
    kind = versions[0]["kind"]
    if kind in _PARENTS:
        if kind == BACKEND.kind and _standing(change.old) != _standing(change.new):
            key = key_of(versions[0])
            keys = set(readiness_matters(view, key.namespace, key.name))
            return keys | (set(_of_parent(view, change, versions)) if parent_changed(change) else set())
        if kind == SPLIT.kind and not parent_changed(change) and _asked(change.old) != _asked(change.new):
            return set(_of_release(change.new or versions[0]))
        return set(_of_parent(view, change, versions)) if parent_changed(change) else set()
    if kind == NAMESPACE.kind:
        modes = [(each or {}).get("metadata", {}).get("labels") for each in (change.old, change.new)]
        name = versions[0]["metadata"]["name"]
        same = (modes[0] or {}).get(labels.ROUTER_MODE) == (modes[1] or {}).get(labels.ROUTER_MODE)
        return set() if same else {router_key(name), *_served_by_router(view, name)}
    if not child_changed(change):
        return set()
    if kind == POD.kind:
        return set(_of_pod(view, change, versions))
    return set(_of_child(view, change, versions))


def readiness_matters(view: View, namespace: str, backend: str) -> Iterator[ObjectKey]:
    """Yield the keys that depend on whether a backend has ready pods: senders of requests to it."""
    yield router_key(namespace)
    for split in view.splits(namespace):
        if backend in split.spec.names:
            yield ObjectKey(SPLIT.kind, namespace, split.name)
            yield ObjectKey(ENDPOINT.kind, namespace, split.spec.endpoint)
    for endpoint in view.endpoints(namespace):
        # The weights of a deleted split hold until the endpoint's own backend is ready.
        left = [share.name for share in endpoint.status.backends]
        if endpoint.spec.backend == backend or backend in left:
            yield ObjectKey(ENDPOINT.kind, namespace, endpoint.name)
            for name in {endpoint.spec.backend, *left}:
                yield ObjectKey(BACKEND.kind, namespace, name)


def _of_parent(view: View, change: Change, versions: list[Obj]) -> Iterator[ObjectKey]:
    key = key_of(versions[0])
    namespace = key.namespace
    yield key
    if key.kind == BACKEND.kind:
        for version in versions:
            reference = _spec(version).get("batchPolicyRef")
            if reference:
                yield ObjectKey(POLICY.kind, namespace, reference)
        if _came_or_went(change) or _takes_config(change.old) != _takes_config(change.new):
            yield from readiness_matters(view, namespace, key.name)
        if _timed(change.old) != _timed(change.new):
            yield from _sending(view, namespace, {key.name})
        yield from _mirroring(view, namespace, {key.name})
        yield from _releasing(view, namespace, key.name)
    elif key.kind == POLICY.kind:
        users = [
            backend.name for backend in view.backends(namespace) if backend.spec.batch_policy_ref == key.name
        ]
        for name in users:
            yield ObjectKey(BACKEND.kind, namespace, name)
        if _came_or_went(change):  # the status of each has the names of all
            yield from map(key_of, view.store.all(POLICY, namespace))
        if _came_or_went(change) or _time_of(change.old) != _time_of(change.new):
            yield from _sending(view, namespace, set(users))
        yield from _mirroring(view, namespace, set(users))
    elif key.kind == SPLIT.kind:
        yield router_key(namespace)
        endpoints = {str(_spec(version).get("endpoint")) for version in versions}
        for endpoint in endpoints:
            yield ObjectKey(ENDPOINT.kind, namespace, endpoint)
        for split in view.splits(namespace):
            if split.spec.endpoint in endpoints:
                yield ObjectKey(SPLIT.kind, namespace, split.name)
                for name in split.spec.names:
                    yield ObjectKey(BACKEND.kind, namespace, name)
        for candidate in view.endpoints(namespace):
            if candidate.name in endpoints:
                yield ObjectKey(BACKEND.kind, namespace, candidate.spec.backend)
        for version in versions:
            for entry in (*(_spec(version).get("backends") or ()), *(_spec(version).get("mirrors") or ())):
                if isinstance(entry, dict) and entry.get("name"):
                    yield ObjectKey(BACKEND.kind, namespace, str(entry["name"]))
    else:
        yield from _of_endpoint(view, namespace, key.name, versions)


def _of_endpoint(view: View, namespace: str, name: str, versions: list[Obj]) -> Iterator[ObjectKey]:
    yield router_key(namespace)
    for version in versions:
        if backend := _spec(version).get("backend"):
            yield ObjectKey(BACKEND.kind, namespace, str(backend))
        # An endpoint also uses the backends to which the weights of a deleted split still lead.
        for share in (version.get("status") or {}).get("backends") or ():
            yield ObjectKey(BACKEND.kind, namespace, str(share["name"]))
    for split in view.splits(namespace):
        if split.spec.endpoint == name:
            yield ObjectKey(SPLIT.kind, namespace, split.name)
            for entry in split.spec.backends:
                yield ObjectKey(BACKEND.kind, namespace, entry.name)
    routes = {str(_spec(version).get("route", f"/{name}")).rstrip("/") for version in versions}
    for other in view.endpoints(namespace):
        if route(other).rstrip("/") in routes:
            yield ObjectKey(ENDPOINT.kind, namespace, other.name)


def _of_pod(view: View, change: Change, versions: list[Obj]) -> Iterator[ObjectKey]:
    for version in versions:
        own = version["metadata"].get("labels") or {}
        namespace = version["metadata"]["namespace"]
        if policy := injected.policy_of(version):
            yield ObjectKey(POLICY.kind, namespace, policy)
        elif own.get(labels.APP_NAME) == labels.APP_ROUTER:
            yield router_key(namespace)
            if _pod_face(change.old) != _pod_face(change.new):
                yield from _served_by_router(view, namespace)
        elif is_shared_router(version):
            yield SHARED_ROUTER
        elif is_dedicated_router(version):
            if _pod_face(change.old) != _pod_face(change.new):
                yield from _served_by_own_router(view, namespace, own.get(labels.ENDPOINT, ""))
        elif labels.BACKEND in own:
            yield ObjectKey(BACKEND.kind, namespace, own[labels.BACKEND])
            if _serves(change.old) != _serves(change.new):
                yield from _releasing(view, namespace, own[labels.BACKEND])


def _of_child(view: View, change: Change, versions: list[Obj]) -> Iterator[ObjectKey]:
    for version in versions:
        namespace = version["metadata"]["namespace"]
        if is_shared_router(version):
            yield SHARED_ROUTER
            continue
        if version["kind"] == ENDPOINT_SLICE.kind:
            yield router_key(namespace)
        if is_shared(version):
            yield router_key(namespace)
            if version["kind"] == DEPLOYMENT.kind and _router_face(change.old) != _router_face(change.new):
                yield from _served_by_router(view, namespace)
            continue
        if is_dedicated_router(version) and _router_face(change.old) != _router_face(change.new):
            endpoint = version["metadata"]["labels"].get(labels.ENDPOINT, "")
            yield from _served_by_own_router(view, namespace, endpoint)
        if version["kind"] == SERVICE.kind and (
            leads_to_dedicated(change.old) != leads_to_dedicated(change.new)
        ):
            yield router_key(namespace)
        if version["kind"] == SERVICE.kind and recorded_port(change.old) != recorded_port(change.new):
            yield from _of_port(view, namespace)
        for ref in version["metadata"].get("ownerReferences") or ():
            if ref.get("kind") in _PARENTS:
                yield ObjectKey(ref["kind"], namespace, ref["name"])
        if policy := (version["metadata"].get("labels") or {}).get(labels.POLICY):
            yield ObjectKey(POLICY.kind, namespace, policy)
        backend = (version["metadata"].get("labels") or {}).get(labels.BACKEND)
        if backend and version["kind"] == SERVICE.kind and _owners(change.old) != _owners(change.new):
            yield from readiness_matters(view, namespace, backend)
        if backend and version["kind"] == DEPLOYMENT.kind and _ready(change.old) != _ready(change.new):
            if not _ready(change.old) or not _ready(change.new):
                yield from readiness_matters(view, namespace, backend)
            resource = view.backend(namespace, backend)
            if resource is not None and resource.spec.batch_policy_ref:
                yield ObjectKey(POLICY.kind, namespace, resource.spec.batch_policy_ref)


def _of_release(split: Obj) -> Iterator[ObjectKey]:
    """Yield the keys that carry out a release: the routers, of the namespace or of the endpoint."""
    key = key_of(split)
    yield router_key(key.namespace)
    yield ObjectKey(ENDPOINT.kind, key.namespace, str(_spec(split).get("endpoint")))


def _releasing(view: View, namespace: str, backend: str) -> Iterator[ObjectKey]:
    """Yield the splits whose releases depend on a backend's ready pods for their weights."""
    for split in view.splits(namespace):
        strategy = split.spec.strategy
        if strategy is not None and backend in (strategy.stable, strategy.candidate):
            yield ObjectKey(SPLIT.kind, namespace, split.name)


def _sending(view: View, namespace: str, backends: set[str]) -> Iterator[ObjectKey]:
    """Yield the endpoints that send requests to some backends: their statuses depend on default timeouts."""
    for name, plan in view.plan(namespace).endpoints.items():
        if any(share.name in backends for share in plan.backends):
            yield ObjectKey(ENDPOINT.kind, namespace, name)


def _mirroring(view: View, namespace: str, backends: set[str]) -> Iterator[ObjectKey]:
    """Yield the routers that send copies to some backends: copies get the backends' least urgent level."""
    for split in view.splits(namespace):
        if any(mirror.name in backends for mirror in mirrors_of(split)):
            yield router_key(namespace)
            yield ObjectKey(ENDPOINT.kind, namespace, split.spec.endpoint)


def _of_port(view: View, namespace: str) -> Iterator[ObjectKey]:
    """Yield the keys that depend on a Service's recorded port: the router, and endpoints that must move."""
    yield router_key(namespace)
    if not view.store.count(ENDPOINT, namespace):
        return  # NB: before anything is cached for the namespace, which may be gone
    for name, port in view.ports(namespace).items():
        live = view.store.get(SERVICE, namespace, names.endpoint(name))
        if live is not None and recorded_port(live) != port:
            yield ObjectKey(ENDPOINT.kind, namespace, name)


def _served_by_router(view: View, namespace: str) -> Iterator[ObjectKey]:
    for endpoint in view.endpoints(namespace):
        yield ObjectKey(ENDPOINT.kind, namespace, endpoint.name)
    for split in view.splits(namespace):
        yield ObjectKey(SPLIT.kind, namespace, split.name)


def _served_by_own_router(view: View, namespace: str, endpoint: str) -> Iterator[ObjectKey]:
    yield ObjectKey(ENDPOINT.kind, namespace, endpoint)
    for split in view.splits(namespace):
        if split.spec.endpoint == endpoint:
            yield ObjectKey(SPLIT.kind, namespace, split.name)


def _serves(pod: Obj | None) -> bool:
    return pod is not None and pods.is_ready(pod)


def _pod_face(pod: Obj | None) -> tuple[object, ...]:
    """Return the parts of a router's pod that conditions show."""
    return (None, None) if pod is None else (bool(pods.ready([pod])), pods.trouble([pod]))


def _router_face(deployment: Obj | None) -> tuple[object, ...]:
    return _ready(deployment), pods.refused(deployment)


def _ready(deployment: Obj | None) -> int:
    return int(((deployment or {}).get("status") or {}).get("readyReplicas") or 0)


def _standing(backend: Obj | None) -> tuple[bool, ...]:
    """Return what senders depend on in a backend's status: ever ready, kept at 0, fails to come back."""
    stored = backend or {}
    status = stored.get("status") or {}
    failing = any(
        each.get("type") == "Available" and each.get("reason") == "NoReadyPod"
        for each in status.get("conditions") or ()
    )
    return bool(status.get("firstReadyTime")), kept_at_zero(stored), failing


def _asked(split: Obj | None) -> tuple[object, ...]:
    """Return what a release asks routers for, by the split's status."""
    release = ((split or {}).get("status") or {}).get("release") or {}
    return tuple(release.get(name) for name in ("stable", "candidate", "weight", "mirror"))


def _takes_config(backend: Obj | None) -> tuple[object, ...]:
    """Return the fields that decide the path of a backend's userConfig, which routers close."""
    model = _spec(backend).get("model") if backend is not None else None
    return (model.get("reconfigurePath"), "python" in model) if isinstance(model, dict) else ()


def _timed(backend: Obj | None) -> tuple[object, ...]:
    """Return the fields that decide how much time a backend's sidecars give a request."""
    spec = _spec(backend or {})
    batching = spec.get("batching")
    return spec.get("batchPolicyRef"), batching.get("defaultTimeout") if isinstance(batching, dict) else None


def _time_of(policy: Obj | None) -> object:
    """Return the time that a policy gives a request."""
    return _spec(policy or {}).get("defaultTimeout")


def _owners(child: Obj | None) -> list[str]:
    return [] if child is None else sorted(owner_uids(child))


def _came_or_went(change: Change) -> bool:
    def there(version: Obj | None) -> bool:
        return version is not None and not version["metadata"].get("deletionTimestamp")

    return there(change.old) != there(change.new)


def _spec(version: Obj) -> Obj:
    spec = version.get("spec")
    return spec if isinstance(spec, dict) else {}
