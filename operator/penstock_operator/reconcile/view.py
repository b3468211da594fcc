"""Reads the store as resources; parses each version once, and plans a namespace's traffic once per change."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from penstock_operator import injected
from penstock_operator.api import (
    BatchPolicy,
    ModelBackend,
    ModelEndpoint,
    Resource,
    ResourceError,
    TrafficSplit,
)
from penstock_operator.api.batchpolicy import BatchPolicySpec, Priority
from penstock_operator.api.defaults import batching_spec, closed_paths, is_dedicated
from penstock_operator.desired import labels, names, ports, settings, traffic
from penstock_operator.desired.router import leads_to_dedicated
from penstock_operator.kinds import (
    BACKEND,
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT,
    NAMESPACE,
    POD,
    POLICY,
    SERVICE,
    SPLIT,
    Kind,
)
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.scale_owners import kept_at_zero
from penstock_operator.status import is_waking
from penstock_operator.status.pods import living
from penstock_operator.store import UNREADABLE, ObjectKey, Store, key_of, owner_uids
from penstock_wire import durations
from penstock_wire.control import router_settings

R = TypeVar("R", bound=Resource)

_MODELS: dict[str, type[Resource]] = {
    BACKEND.kind: ModelBackend,
    ENDPOINT.kind: ModelEndpoint,
    SPLIT.kind: TrafficSplit,
    POLICY.kind: BatchPolicy,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The backends of a namespace as senders of requests see them; mappings are by name.

    Args:
        ready: all that exist, and whether each has a ready pod to which a Service of its own leads.
        without_service: those with ready pods that no router finds: the Service of their name is not theirs,
            or does not exist (yet).
        closed_paths: paths of their models that clients must not use, for backends that have any.
        asleep: those that the autoscaler has scaled to 0, until a pod is ready again; the first
            held request wakes them.
        priorities: the levels of urgency of their sidecars, for backends with several.
        default_timeouts: the most time in milliseconds that their sidecars give a request.
    """

    ready: Mapping[str, bool]
    untried: frozenset[str]
    without_service: frozenset[str]
    closed_paths: Mapping[str, Sequence[str]]
    asleep: frozenset[str] = frozenset()
    priorities: Mapping[str, Priority] = field(default_factory=dict)
    default_timeouts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part of `Backends` that is about one backend, and the objects that it was made from."""

    made_from: tuple[Obj | None, ...]
    ready: bool
    untried: bool
    without_service: bool
    closed_paths: Sequence[str] = ()
    asleep: bool = False
    priority: Priority | None = None
    default_timeout: int | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """The traffic of a namespace.

    Args:
        endpoints: as they were when they last changed in what a plan depends on.
        shared: those that the namespace's router serves.
    """

    backends: Backends
    plan: traffic.TrafficPlan
    endpoints: tuple[ModelEndpoint, ...]
    releases: dict[str, list[TrafficSplit]]
    ports: Mapping[str, int] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Listed:
    """The objects of a kind in a namespace, and each as its resource; None: it counts as absent."""

    epoch: int
    stored: list[Obj]
    read: Sequence[Resource | None]


@dataclass(frozen=True, slots=True)
class _Rendered:
    """An endpoint of a router's settings, and what it was made from."""

    endpoint: ModelEndpoint
    plan: traffic.EndpointPlan
    port: int
    shut: tuple[Sequence[str] | None, ...]
    made: router_settings.Endpoint


_Written = tuple[_Planned, settings.Versioned | Obj | None, frozenset[str], settings.Versioned | None]
"""What some routers' settings were made from, and those settings if they are current."""


class View:
    """Typed, cached reading of a store. Resources that cannot be read count as absent.

    Args:
        shared: whether a namespace whose label does not say it uses the shared router.
    """

    def __init__(self, store: Store, *, shared: bool = False) -> None:
        self.store = store
        self._shared = shared
        self._parsed: dict[ObjectKey, tuple[Obj, Resource | ResourceError]] = {}
        self._lists: dict[tuple[str, str], _Listed] = {}
        self._plans: dict[str, tuple[tuple[int, ...], Sequence[ModelEndpoint], _Planned]] = {}
        """By namespace, with the epochs of its endpoints, splits and Services, and these endpoints."""
        self._backends: dict[str, tuple[tuple[int, ...], Backends]] = {}
        self._seen: dict[str, dict[str, _Seen]] = {}  # by namespace and backend
        # By namespace, then by endpoint with a router of its own ("" for the namespace's router).
        self._written: dict[str, dict[str, _Written]] = {}
        # By namespace, endpoint, and whether it is leaving.
        self._rendered: dict[str, dict[tuple[str, bool], _Rendered]] = {}
        self._parts: dict[str, tuple[_Planned, Mapping[str, int], Collection[str], bytes]] = {}

    def read(self, stored: Obj) -> Resource:
        """Return an object of ours as its resource.

        Raises:
            ResourceError: it does not fit its schema, or cannot be read for another reason.
        """
        key = key_of(stored)
        known = self._parsed.get(key)
        if known is None or known[0] is not stored:
            known = (stored, _parsed(stored))
            self._parsed[key] = known
        if isinstance(known[1], ResourceError):
            # NB: a new one: an error holds the frames of all who saw it, and with them an object's versions.
            raise ResourceError(*known[1].args)
        return known[1]

    def forget(self, key: ObjectKey) -> None:
        """Drop what is cached of a resource that is gone, and with the last one, of its namespace."""
        self._parsed.pop(key, None)
        if key.kind == ENDPOINT.kind:
            self._written.get(key.namespace, {}).pop(key.name, None)
            for leaving in (True, False):
                self._rendered.get(key.namespace, {}).pop((key.name, leaving), None)
        if not any(self.store.all(kind, key.namespace) for kind in (BACKEND, ENDPOINT, SPLIT)):
            for kind in _MODELS:
                self._lists.pop((kind, key.namespace), None)
            self._plans.pop(key.namespace, None)
            self._backends.pop(key.namespace, None)
            self._seen.pop(key.namespace, None)
            self._written.pop(key.namespace, None)
            self._rendered.pop(key.namespace, None)
            self._parts.pop(key.namespace, None)

    def backend(self, namespace: str, name: str) -> ModelBackend | None:
        """Return a backend that is readable and not being deleted; None if there is none."""
        return self._one(ModelBackend, BACKEND, namespace, name)

    def endpoint(self, namespace: str, name: str) -> ModelEndpoint | None:
        """Return an endpoint that is readable and not being deleted; None if there is none."""
        return self._one(ModelEndpoint, ENDPOINT, namespace, name)

    def policy(self, namespace: str, name: str) -> BatchPolicy | None:
        """Return a policy that is readable and not being deleted; None if there is none."""
        return self._one(BatchPolicy, POLICY, namespace, name)

    def policy_names(self, namespace: str) -> list[str]:
        """Return the names of a namespace's policies that are not being deleted, also of unreadable ones."""
        return sorted(
            stored["metadata"]["name"]
            for stored in self.store.all(POLICY, namespace)
            if not stored["metadata"].get("deletionTimestamp")
        )

    def policy_of(self, backend: ModelBackend) -> BatchPolicy | None:
        """Return the policy that a backend names; None if it names none, or one that does not exist."""
        reference = backend.spec.batch_policy_ref
        return self.policy(backend.namespace, reference) if reference else None

    def lacks_policy(self, backend: ModelBackend) -> bool:
        """Whether a backend names a policy that does not exist."""
        return bool(backend.spec.batch_policy_ref) and self.policy_of(backend) is None

    def batching(self, backend: ModelBackend) -> BatchPolicySpec:
        """Return the batching in force for a backend: its own, its policy's, or the defaults."""
        return batching_spec(backend, self.policy_of(backend))

    def backends(self, namespace: str) -> list[ModelBackend]:
        """Return the readable backends of a namespace that are not being deleted."""
        return self._all(ModelBackend, BACKEND, namespace)

    def endpoints(self, namespace: str) -> list[ModelEndpoint]:
        """Return the readable endpoints of a namespace that are not being deleted."""
        return self._all(ModelEndpoint, ENDPOINT, namespace)

    def splits(self, namespace: str) -> list[TrafficSplit]:
        """Return the readable splits of a namespace that are not being deleted."""
        return self._all(TrafficSplit, SPLIT, namespace)

    def backends_seen(self, namespace: str) -> Backends:
        """Return the backends of a namespace as senders of requests see them."""
        epochs = tuple(self.store.epoch(kind, namespace) for kind in (BACKEND, DEPLOYMENT, SERVICE, POLICY))
        known = self._backends.get(namespace)
        if known is None or known[0] != epochs:
            # NB: a namespace can have a thousand backends, and each of their changes comes here.
            last = self._seen.get(namespace, {})
            self._seen[namespace] = each = {
                (name := stored["metadata"]["name"]): self._backend_seen(stored, last.get(name))
                for stored in self.store.all(BACKEND, namespace)
                if not stored["metadata"].get("deletionTimestamp")
            }
            seen = Backends(
                ready={name: one.ready for name, one in each.items()},
                untried=frozenset(name for name, one in each.items() if one.untried),
                without_service=frozenset(name for name, one in each.items() if one.without_service),
                closed_paths={name: one.closed_paths for name, one in each.items() if one.closed_paths},
                asleep=frozenset(name for name, one in each.items() if one.asleep),
                priorities={name: one.priority for name, one in each.items() if one.priority is not None},
                default_timeouts={
                    name: one.default_timeout for name, one in each.items() if one.default_timeout is not None
                },
            )
            # NB: an equal result keeps its identity, by which the plan is cached.
            known = (epochs, known[1] if known is not None and known[1] == seen else seen)
            self._backends[namespace] = known
        return known[1]

    def _backend_seen(self, stored: Obj, last: _Seen | None) -> _Seen:
        metadata, store = stored["metadata"], self.store
        namespace, name = metadata["namespace"], metadata["name"]
        policy = (stored.get("spec") or {}).get("batchPolicyRef")
        made_from = (
            stored,
            store.get(DEPLOYMENT, namespace, names.backend(name)),
            store.get(SERVICE, namespace, names.backend(name)),
            store.get(POLICY, namespace, policy) if isinstance(policy, str) else None,
        )
        if last is not None and all(map(operator.is_, last.made_from, made_from)):
            return last
        with_pods = self.ready_pods(namespace, name) > 0
        without_service = with_pods and metadata["uid"] not in self._service_owners(namespace, name)
        ready = with_pods and not without_service
        seen = _Seen(
            made_from=made_from,
            ready=ready,
            untried=not ready and not (stored.get("status") or {}).get("firstReadyTime"),
            without_service=without_service,
        )
        backend = self.backend(namespace, name)
        if backend is None:
            return seen
        scaling, batching = backend.spec.autoscaling, self.batching(backend)
        return replace(
            seen,
            closed_paths=closed_paths(backend),
            asleep=(is_waking(backend) and not with_pods)
            or (
                backend.spec.replicas == 0
                and scaling is not None
                and scaling.min_replicas == 0
                and (scaling.mode == "External" or not kept_at_zero(stored))
            ),
            priority=batching.priority if batching.priority.levels > 1 else None,
            default_timeout=durations.parse_ms(batching.default_timeout),
        )

    def _service_owners(self, namespace: str, backend: str) -> Iterable[str]:
        """Return the owners' uids of the Service with a backend's name, if it is one of ours."""
        live = self.store.get(SERVICE, namespace, names.backend(backend))
        return () if live is None else owner_uids(live)

    def ready_pods(self, namespace: str, backend: str) -> int:
        """Return the number of ready pods of a backend, by its Deployment's status."""
        live = self.store.get(DEPLOYMENT, namespace, names.backend(backend))
        return int(((live or {}).get("status") or {}).get("readyReplicas") or 0)

    def backend_pods(self, namespace: str, backend: str) -> list[Obj]:
        """Return a backend's pods, not others with its label."""
        labelled = self.store.selected(POD, namespace, labels.BACKEND, backend)
        return [pod for pod in labelled if pod["metadata"]["labels"].get(labels.MANAGED_BY) == labels.MANAGED]

    def injected_pods(self, namespace: str, policy: str) -> list[Obj]:
        """Return the living pods with an injected sidecar that name a policy."""
        named = living(self.store.selected(POD, namespace, labels.INJECT, policy))
        return [pod for pod in named if injected.policy_of(pod) and injected.has_sidecar(pod)]

    def policies_of(self, namespace: str, workload: str) -> set[str]:
        """Return the policies that the injected pods of a workload name."""
        return {
            policy
            for pod in self.store.all(POD, namespace)
            if (policy := injected.policy_of(pod)) and injected.workload_of(pod) == workload
        }

    def router_pods(self, namespace: str, endpoint: str = "") -> list[Obj]:
        """Return the pods of a namespace's router, or of an endpoint's own."""
        if endpoint:
            mine = self.store.selected(POD, namespace, labels.ENDPOINT, endpoint)
            return [
                pod
                for pod in mine
                if pod["metadata"]["labels"].get(labels.APP_NAME) == labels.APP_DEDICATED_ROUTER
            ]
        return self.store.selected(POD, namespace, labels.APP_NAME, labels.APP_ROUTER)

    def plan(self, namespace: str) -> traffic.TrafficPlan:
        """Return the traffic plan of a namespace."""
        return self._planned(namespace).plan

    def asked(self, namespace: str, endpoint: str) -> Collection[str]:
        """The backends that get an endpoint's requests or copies of them; empty without the endpoint."""
        if self.endpoint(namespace, endpoint) is None:
            return ()  # NB: before anything is cached for the namespace, which may be gone
        return self.plan(namespace).endpoints[endpoint].asked

    def releases(self, namespace: str, backend: str) -> Sequence[TrafficSplit]:
        """Return the accepted splits that have a backend as the stable or candidate of a release."""
        return self._planned(namespace).releases.get(backend, ())

    def ports(self, namespace: str) -> Mapping[str, int]:
        """Return the port of each endpoint of a namespace."""
        return self._planned(namespace).ports

    def router_document(
        self, namespace: str, endpoint: str = "", *, lingering: Collection[str] = ()
    ) -> settings.Maker:
        """Return the maker of the settings for the routers of a namespace.

        Args:
            lingering: endpoints that the namespace's router still serves, beside their own.
        """
        planned = self._planned(namespace)
        served: list[tuple[ModelEndpoint, bool]] = []
        for each in planned.endpoints:
            if endpoint:
                if each.name == endpoint:
                    served.append((each, False))
            elif (here := each.name in planned.shared) or each.name in lingering:
                # Those that routers of their own serve by now leave: their clients are to go there.
                served.append((each, not here))
        return settings.for_router(self._render(planned, namespace, served))

    def _render(
        self, planned: _Planned, namespace: str, served: Iterable[tuple[ModelEndpoint, bool]]
    ) -> tuple[router_settings.Endpoint, ...]:
        """Return the endpoints of a router's settings; those that nothing has changed are the last ones.

        Args:
            served: sorted by name; of each, whether it is leaving.
        """
        last, closed = self._rendered.get(namespace, {}), planned.backends.closed_paths
        now: dict[tuple[str, bool], _Rendered] = {}
        for endpoint, leaving in served:
            name = endpoint.name
            plan, port = planned.plan.endpoints[name], planned.ports.get(name)
            if port is None:
                continue
            shut = tuple(map(closed.get, plan.asked)) if closed else ()
            known = last.get((name, leaving))
            if (
                known is None
                or known.endpoint is not endpoint
                or (known.port, known.shut, known.plan) != (port, shut, plan)
            ):
                made = traffic.router_endpoint(endpoint, plan, port, closed)
                made = msgspec.structs.replace(made, leaving=True) if leaving else made
                known = _Rendered(endpoint, plan, port, shut, made)
            now[name, leaving] = known
        self._rendered.setdefault(namespace, {}).update(now)
        return tuple(each.made for each in now.values())

    def is_shared(self, endpoint: ModelEndpoint) -> bool:
        """Whether the namespace's router serves an endpoint, also one on its way to or from its own."""
        live = self.store.get(SERVICE, endpoint.namespace, names.endpoint(endpoint.name))
        return not is_dedicated(endpoint) or (live is not None and not leads_to_dedicated(live))

    def uses_shared(self, namespace: str) -> bool:
        """Whether a namespace is to use the router that namespaces share."""
        asked = self._router_mode(namespace)
        return asked == labels.MODE_SHARED or (self._shared and asked != labels.MODE_OWN)

    def unknown_router_mode(self, namespace: str) -> str | None:
        """Return what a namespace's label asks for, if there are no such routers."""
        asked = self._router_mode(namespace)
        return None if asked in (labels.MODE_SHARED, labels.MODE_OWN) else asked

    def _router_mode(self, namespace: str) -> str | None:
        live = self.store.get(NAMESPACE, "", namespace)
        asked: str | None = ((live or {}).get("metadata", {}).get("labels") or {}).get(labels.ROUTER_MODE)
        return asked

    def tenant_part(self, namespace: str, leaving: Collection[str], at: Mapping[str, int]) -> bytes:
        """Return what the settings of the shared router have for a namespace.

        Args:
            leaving: the endpoints that other routers serve by now.
            at: the ports of the endpoints that it serves, by name, and of the front door, ""; another dict
                after each change.
        """
        planned = self._planned(namespace)
        known = self._parts.get(namespace)
        if known is None or known[0] is not planned or known[1] is not at or known[2] != leaving:
            endpoints = traffic.router_endpoints(
                [each for each in planned.endpoints if each.name in at],
                planned.plan,
                at,
                planned.backends.closed_paths,
            )
            tenant = router_settings.Tenant(
                port=at[""],
                endpoints=tuple(
                    msgspec.structs.replace(each, leaving=True) if each.name in leaving else each
                    for each in endpoints
                ),
            )
            known = self._parts[namespace] = (planned, at, leaving, router_settings.encode_tenant(tenant))
        return known[3]

    def router_settings(
        self,
        made: settings.Versioned | None,
        namespace: str,
        endpoint: str = "",
        *,
        lingering: Collection[str] = (),
    ) -> settings.Versioned | None:
        """Return the settings that the routers should have; None if they are still to be made.

        Args:
            made: those that were made last; None: just started, then the ConfigMap may have them.
        """
        planned = self._planned(namespace)
        at = names.dedicated_router_settings(endpoint) if endpoint else names.ROUTER_SETTINGS
        live = made or self.store.get(CONFIG_MAP, namespace, at)
        written, kept = self._written.setdefault(namespace, {}), frozenset(lingering)
        known = written.get(endpoint)
        if known is None or known[0] is not planned or known[1] is not live or known[2] != kept:
            last = live if isinstance(live, settings.Versioned) else settings.recorded_version(live)
            make = self.router_document(namespace, endpoint, lingering=kept)
            same = last is not None and last.document == make(last.version)
            known = written[endpoint] = (planned, live, kept, last if same else None)
        return known[3]

    def _planned(self, namespace: str) -> _Planned:
        backends = self.backends_seen(namespace)
        epochs = tuple(self.store.epoch(kind, namespace) for kind in (ENDPOINT, SPLIT, SERVICE))
        seen, looked, planned = self._plans.get(namespace, ((), (), None))
        if planned is not None and planned.backends is backends and seen == epochs:
            return planned
        endpoints = tuple(self.endpoints(namespace))
        last = planned
        if (
            planned is None
            or planned.backends is not backends
            or seen[1] != epochs[1]
            or not _plan_alike(looked, endpoints)
        ):
            splits = self.splits(namespace)
            plan = traffic.plan(endpoints, splits, backends.ready, backends.untried, backends.priorities)
            releases: dict[str, list[TrafficSplit]] = {}
            for split in splits:
                strategy = split.spec.strategy
                if strategy is not None and plan.splits[split.name].accepted:
                    for name in (strategy.stable, strategy.candidate):
                        releases.setdefault(name, []).append(split)
            planned = _Planned(backends, plan, endpoints, releases)
        if planned is not last or seen[2] != epochs[2]:
            services = [
                service
                for service in self.store.all(SERVICE, namespace)
                if labels.ENDPOINT in (service["metadata"].get("labels") or {})
            ]
            given = ports.allocate([endpoint.name for endpoint in endpoints], services)
            shared = frozenset(each.name for each in endpoints if self.is_shared(each))
            # NB: what nothing has changed keeps its identity, by which all that is made from it is cached.
            if (planned.ports, planned.shared) != (given, shared):
                planned = replace(planned, ports=given, shared=shared)
        self._plans[namespace] = (epochs, endpoints, planned)
        return planned

    def _one(self, model: type[R], kind: Kind, namespace: str, name: str) -> R | None:
        stored = self.store.get(kind, namespace, name)
        return None if stored is None else self._taken(model, stored)

    def _taken(self, model: type[R], stored: Obj) -> R | None:
        try:
            parsed = self.read(stored)
        except ResourceError:
            return None
        return parsed if isinstance(parsed, model) and not parsed.deleting else None

    def _all(self, model: type[R], kind: Kind, namespace: str) -> list[R]:
        at, epoch = (kind.kind, namespace), self.store.epoch(kind, namespace)
        known = self._lists.get(at)
        if known is None or known.epoch != epoch:
            # NB: a namespace can have thousands, and each change of one comes here.
            before = {} if known is None else dict(zip(map(id, known.stored), known.read, strict=True))
            stored = self.store.all(kind, namespace)
            read = [before[id(each)] if id(each) in before else self._taken(model, each) for each in stored]
            known = _Listed(epoch, stored, read)
            if stored:
                self._lists[at] = known
            else:
                self._lists.pop(at, None)
        return [each for each in known.read if isinstance(each, model)]


def _plan_alike(before: Sequence[ModelEndpoint], now: Sequence[ModelEndpoint]) -> bool:
    """Whether a plan of these endpoints, sorted by name, is that of the ones before."""
    return len(before) == len(now) and all(
        old is new or (_planned_by(old) == _planned_by(new) and old.spec == new.spec)
        for old, new in zip(before, now, strict=True)
    )


def _planned_by(endpoint: ModelEndpoint) -> tuple[object, ...]:
    """Return what a plan depends on beside an endpoint's spec."""
    last = endpoint.status.backends
    others = any(share.name != endpoint.spec.backend for share in last)  # its own one alone is no fallback
    return endpoint.metadata.uid, last if others else ()


def _parsed(stored: Obj) -> Resource | ResourceError:
    key = key_of(stored)
    if UNREADABLE in stored:
        return ResourceError(f"{key}: {stored[UNREADABLE]}")
    try:
        return _MODELS[key.kind].parse(stored)
    except ResourceError as error:
        return ResourceError(*error.args)  # without the frames that it was raised in
    except Exception as error:  # one bad resource must not stop reading its neighbours
        return ResourceError(f"{key}: it cannot be read: {type(error).__name__}: {error}")
