"""Reads the store as resources; parses each version once, and plans a namespace's traffic once per change."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

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
    signature: tuple[Any, ...]
    backends: Backends
    plan: traffic.TrafficPlan
    endpoints: tuple[ModelEndpoint, ...]
    ports: dict[str, int]
    releases: dict[str, list[TrafficSplit]]


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
        self._plans: dict[str, _Planned] = {}
        self._backends: dict[str, tuple[tuple[int, ...], Backends]] = {}
        self._seen: dict[str, dict[str, _Seen]] = {}  # by namespace and backend
        # By namespace, then by endpoint with a router of its own ("" for the namespace's router).
        self._written: dict[str, dict[str, _Written]] = {}
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
        if not any(self.store.all(kind, key.namespace) for kind in (BACKEND, ENDPOINT, SPLIT)):
            self._plans.pop(key.namespace, None)
            self._backends.pop(key.namespace, None)
            self._seen.pop(key.namespace, None)
            self._written.pop(key.namespace, None)
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

    def ports(self, namespace: str) -> dict[str, int]:
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
        closed = planned.backends.closed_paths
        served = [
            planned_endpoint
            for planned_endpoint in planned.endpoints
            if (
                planned_endpoint.name == endpoint
                if endpoint
                else planned_endpoint.name in lingering or self.is_shared(planned_endpoint)
            )
        ]
        endpoints = traffic.router_endpoints(served, planned.plan, planned.ports, closed)
        # Those that routers of their own serve by now: their clients are to go there.
        leaving = {each.name for each in served if not endpoint and not self.is_shared(each)}
        return settings.for_router(
            tuple(
                msgspec.structs.replace(each, leaving=True) if each.name in leaving else each
                for each in endpoints
            )
        )

    def is_shared(self, endpoint: ModelEndpoint) -> bool:
        """Whether the namespace's router serves an endpoint, also one on its way to or from its own."""
        live = self.store.get(SERVICE, endpoint.namespace, names.endpoint(endpoint.name))
        return not is_dedicated(endpoint) or (live is not None and not leads_to_dedicated(live))

    def uses_shared(self, namespace: str) -> bool:
        """Whether a namespace is to use the router that namespaces share."""
        live = self.store.get(NAMESPACE, "", namespace)
        asked = ((live or {}).get("metadata", {}).get("labels") or {}).get(labels.ROUTER_MODE)
        return asked == labels.MODE_SHARED or (self._shared and asked != labels.MODE_OWN)

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
        signature = (
            self.store.epoch(ENDPOINT, namespace),
            self.store.epoch(SPLIT, namespace),
            self.store.epoch(SERVICE, namespace),
            id(backends),
        )
        known = self._plans.get(namespace)
        if known is None or known.signature != signature:
            endpoints = self.endpoints(namespace)
            services = [
                service
                for service in self.store.all(SERVICE, namespace)
                if labels.ENDPOINT in (service["metadata"].get("labels") or {})
            ]
            splits = self.splits(namespace)
            plan = traffic.plan(endpoints, splits, backends.ready, backends.untried, backends.priorities)
            releases: dict[str, list[TrafficSplit]] = {}
            for split in splits:
                strategy = split.spec.strategy
                if strategy is not None and plan.splits[split.name].accepted:
                    for name in (strategy.stable, strategy.candidate):
                        releases.setdefault(name, []).append(split)
            known = _Planned(
                signature,
                backends,  # held, so that no other result gets its id
                plan,
                tuple(endpoints),
                ports.allocate([endpoint.name for endpoint in endpoints], services),
                releases,
            )
            self._plans[namespace] = known
        return known

    def _one(self, model: type[R], kind: Kind, namespace: str, name: str) -> R | None:
        stored = self.store.get(kind, namespace, name)
        if stored is None:
            return None
        try:
            parsed = self.read(stored)
        except ResourceError:
            return None
        return parsed if isinstance(parsed, model) and not parsed.deleting else None

    def _all(self, model: type[R], kind: Kind, namespace: str) -> list[R]:
        parsed = [
            self._one(model, kind, namespace, stored["metadata"]["name"])
            for stored in self.store.all(kind, namespace)
        ]
        return [resource for resource in parsed if resource is not None]


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
