"""The store read as resources: parsed once a version, and the traffic plan of a namespace once a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock_operator.api import (
    BatchPolicy,
    ModelBackend,
    ModelEndpoint,
    Resource,
    ResourceError,
    TrafficSplit,
)
from penstock_operator.cluster import Obj
from penstock_operator.desired import labels, names, ports, settings, traffic
from penstock_operator.kinds import (
    BACKEND,
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT,
    POD,
    POLICY,
    SERVICE,
    SPLIT,
    Kind,
)
from penstock_operator.store import Key, Store, key_of

R = TypeVar("R", bound=Resource)

_MODELS: dict[str, type[Resource]] = {
    BACKEND.kind: ModelBackend,
    ENDPOINT.kind: ModelEndpoint,
    SPLIT.kind: TrafficSplit,
    POLICY.kind: BatchPolicy,
}


@dataclass(frozen=True, slots=True)
class _Planned:
    signature: tuple[Any, ...]
    ready: Mapping[str, bool]
    plan: traffic.TrafficPlan
    endpoints: tuple[ModelEndpoint, ...]
    ports: dict[str, int]


class View:
    """Typed, cached reading of a store. Resources that cannot be read are as good as absent here.

    Args:
        store: what is known of the cluster.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._parsed: dict[Key, tuple[Obj, Resource | ResourceError]] = {}
        self._plans: dict[str, _Planned] = {}
        self._ready: dict[str, tuple[tuple[int, int], dict[str, bool]]] = {}
        self._written: dict[str, tuple[_Planned, Obj | None, bool]] = {}

    def read(self, stored: Obj) -> Resource:
        """An object of ours as its resource.

        Args:
            stored: from the store.

        Raises:
            ResourceError: it does not fit its schema.
        """
        key = key_of(stored)
        known = self._parsed.get(key)
        if known is None or known[0] is not stored:
            try:
                parsed: Resource | ResourceError = _MODELS[stored["kind"]].parse(stored)
            except ResourceError as error:
                parsed = error
            known = (stored, parsed)
            self._parsed[key] = known
        if isinstance(known[1], ResourceError):
            raise known[1]
        return known[1]

    def forget(self, key: Key) -> None:
        """Drop what is cached of a resource that is gone, and of a namespace with its last one.

        Args:
            key: which.
        """
        self._parsed.pop(key, None)
        if not any(self.store.all(kind, key.namespace) for kind in (BACKEND, ENDPOINT, SPLIT)):
            self._plans.pop(key.namespace, None)
            self._ready.pop(key.namespace, None)
            self._written.pop(key.namespace, None)

    def backend(self, namespace: str, name: str) -> ModelBackend | None:
        """A readable backend.

        Args:
            namespace: where.
            name: its name.
        """
        return self._one(ModelBackend, BACKEND, namespace, name)

    def policy(self, namespace: str, name: str) -> BatchPolicy | None:
        """A readable policy that is not being deleted.

        Args:
            namespace: where.
            name: its name.
        """
        return self._one(BatchPolicy, POLICY, namespace, name)

    def backends(self, namespace: str) -> list[ModelBackend]:
        """The readable backends of a namespace.

        Args:
            namespace: where.
        """
        return self._all(ModelBackend, BACKEND, namespace)

    def endpoints(self, namespace: str) -> list[ModelEndpoint]:
        """The readable endpoints of a namespace that are not being deleted.

        Args:
            namespace: where.
        """
        return self._all(ModelEndpoint, ENDPOINT, namespace)

    def splits(self, namespace: str) -> list[TrafficSplit]:
        """The readable splits of a namespace that are not being deleted.

        Args:
            namespace: where.
        """
        return self._all(TrafficSplit, SPLIT, namespace)

    def backends_ready(self, namespace: str) -> dict[str, bool]:
        """The backends that exist, and whether each has a ready pod.

        Args:
            namespace: where.
        """
        epochs = (self.store.epoch(BACKEND, namespace), self.store.epoch(DEPLOYMENT, namespace))
        known = self._ready.get(namespace)
        if known is None or known[0] != epochs:
            ready = {
                stored["metadata"]["name"]: self.ready_pods(namespace, stored["metadata"]["name"]) > 0
                for stored in self.store.all(BACKEND, namespace)
                if not stored["metadata"].get("deletionTimestamp")
            }
            # NB: an equal picture keeps its identity, by which the plan is cached.
            known = (epochs, known[1] if known is not None and known[1] == ready else ready)
            self._ready[namespace] = known
        return known[1]

    def ready_pods(self, namespace: str, backend: str) -> int:
        """How many pods of a backend are ready, as its Deployment says.

        Args:
            namespace: where.
            backend: its name.
        """
        live = self.store.get(DEPLOYMENT, namespace, names.backend(backend))
        return int(((live or {}).get("status") or {}).get("readyReplicas") or 0)

    def backend_pods(self, namespace: str, backend: str) -> list[Obj]:
        """A backend's pods.

        Args:
            namespace: where.
            backend: its name.
        """
        return self.store.selected(POD, namespace, labels.BACKEND, backend)

    def router_pods(self, namespace: str) -> list[Obj]:
        """The pods of a namespace's router.

        Args:
            namespace: where.
        """
        return self.store.selected(POD, namespace, labels.APP_NAME, labels.APP_ROUTER)

    def plan(self, namespace: str) -> traffic.TrafficPlan:
        """Who serves what in a namespace.

        Args:
            namespace: where.
        """
        return self._planned(namespace).plan

    def ports(self, namespace: str) -> dict[str, int]:
        """The port of each endpoint of a namespace.

        Args:
            namespace: where.
        """
        return self._planned(namespace).ports

    def router_document(self, namespace: str) -> settings.Maker:
        """What the routers of a namespace are to be told.

        Args:
            namespace: where.
        """
        planned = self._planned(namespace)
        return settings.for_router(traffic.router_endpoints(planned.endpoints, planned.plan, planned.ports))

    def router_written(self, namespace: str) -> bool:
        """Whether just that is recorded in their ConfigMap, so that they can have reported it.

        Args:
            namespace: where.
        """
        planned = self._planned(namespace)
        live = self.store.get(CONFIG_MAP, namespace, names.ROUTER_SETTINGS)
        known = self._written.get(namespace)
        if known is None or known[0] is not planned or known[1] is not live:
            recorded = settings.recorded_version(live)
            same = recorded is not None and recorded.document == self.router_document(namespace)(
                recorded.version
            )
            known = self._written[namespace] = (planned, live, same)
        return known[2]

    def _planned(self, namespace: str) -> _Planned:
        ready = self.backends_ready(namespace)
        signature = (
            self.store.epoch(ENDPOINT, namespace),
            self.store.epoch(SPLIT, namespace),
            self.store.epoch(SERVICE, namespace),
            id(ready),
        )
        known = self._plans.get(namespace)
        if known is None or known.signature != signature:
            endpoints = self.endpoints(namespace)
            services = [
                service
                for service in self.store.all(SERVICE, namespace)
                if labels.ENDPOINT in (service["metadata"].get("labels") or {})
            ]
            known = _Planned(
                signature,
                ready,  # held, so that no other picture gets its id
                traffic.plan(endpoints, self.splits(namespace), ready),
                tuple(endpoints),
                ports.allocate([endpoint.name for endpoint in endpoints], services),
            )
            self._plans[namespace] = known
        return known

    def _one(self, model: type[R], kind: Kind, namespace: str, name: str) -> R | None:
        stored = self.store.get(kind, namespace, name)
        if stored is None:
            return None
        try:
            found = self.read(stored)
        except ResourceError:
            return None
        return found if isinstance(found, model) and not found.deleting else None

    def _all(self, model: type[R], kind: Kind, namespace: str) -> list[R]:
        found = [
            self._one(model, kind, namespace, stored["metadata"]["name"])
            for stored in self.store.all(kind, namespace)
        ]
        return [resource for resource in found if resource is not None]
