"""All objects of a namespace's router and of an endpoint's own, and the Service of each endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_operator.api import ModelEndpoint
from penstock_operator.desired import (
    disruption,
    labels,
    names,
    networkpolicy,
    objects,
    pods,
    ports,
    service,
    settings,
    sidecar,
)
from penstock_operator.desired.config import RenderConfig, RouterAutoscaling
from penstock_operator.desired.deployment import ROLLS
from penstock_operator.desired.objects import Object
from penstock_wire import contract

DATA_PORT = contract.ROUTER_PORT
ADMIN_PORT = contract.ROUTER_ADMIN_PORT

_LEAVE_S = 5
"""Seconds for which a stopping router still takes requests, while kube-proxies remove it."""
_LEAVE_SHARED_S = 15
"""The same of the router that namespaces share: first the operator removes it from each Service's slice."""
_DRAIN_S = 60
"""Seconds that its requests then have to finish."""
_SPARE_S = 10
"""Seconds that the process has in addition to both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RouterSet:
    """Router pods that serve the same endpoints: a namespace's shared ones, or one endpoint's own.

    Args:
        resources: resources of each pod, as in core/v1.
        autoscaling: scaling by the pods' CPU; None = `replicas`.
    """

    name: str
    settings: str
    labels: dict[str, str]
    selector: dict[str, str]
    replicas: int
    resources: dict[str, Any]
    ports: networkpolicy.Ports
    autoscaling: RouterAutoscaling | None = None
    account: str = names.ROUTER
    shared: bool = False

    @property
    def leave_s(self) -> int:
        """Seconds for which a stopping pod still takes requests."""
        return _LEAVE_SHARED_S if self.shared else _LEAVE_S

    @property
    def is_alone(self) -> bool:
        """Whether it has at most one pod."""
        return (self.autoscaling.max_replicas if self.autoscaling else self.replicas) <= 1


def router_objects(
    namespace: str,
    owners: Sequence[ModelEndpoint],
    *,
    config: RenderConfig,
    document: bytes,
    live: Object | None = None,
    idle: bool = False,
) -> list[Object]:
    """Render all objects of a namespace's router, in the order of applying.

    ServiceAccount, RoleBinding, ConfigMap, Service, PodDisruptionBudget (with more than one replica),
    NetworkPolicy (if the installation has them), Deployment, HorizontalPodAutoscaler (if it is asked for).

    Args:
        owners: its endpoints that are not being deleted, which all own the router; at least one.
        live: its live Deployment, whose replicas stay if they are autoscaled.
        idle: whether it serves no endpoint now: then it has no pods. (An autoscaler leaves a Deployment of
            0 replicas alone.)
    """
    # NB: a namespace can have thousands of owners, which all of its objects name.
    common = objects.metadata("", namespace, labels.of_router(), owners, controller=False)

    def metadata(child: str) -> Object:
        return common | {"name": child}

    routers = _RouterSet(
        name=names.ROUTER,
        settings=names.ROUTER_SETTINGS,
        labels=labels.of_router(),
        selector=labels.router_selector(),
        replicas=0 if idle else _replicas(config, live),
        resources=config.router_resources,
        ports=[DATA_PORT, (ports.FIRST, ports.LAST)],
        autoscaling=config.router_autoscaling,
    )
    return [
        objects.service_account(metadata(names.ROUTER)),
        _role_binding(metadata(names.ROUTER), namespace, config),
        settings.configmap(metadata(names.ROUTER_SETTINGS), document, config.authorities),
        _front_door(metadata(names.ROUTER)),
        *_pods_objects(metadata, routers, config),
    ]


def front_door(namespace: str, owners: Sequence[ModelEndpoint]) -> Object:
    """The Service that is the front door of a namespace."""
    meta = objects.metadata(names.ROUTER, namespace, labels.of_router(), owners, controller=False)
    return _front_door(meta)


def _front_door(meta: Object) -> Object:
    spec = service.spec(labels.router_selector(), DATA_PORT)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def shared_objects(
    namespace: str, *, config: RenderConfig, document: bytes, live: Object | None = None
) -> list[Object]:
    """Render all objects of the router that namespaces share, in the order of applying.

    ServiceAccount, ConfigMap, PodDisruptionBudget (with more than one replica), NetworkPolicy (if the
    installation has them), Deployment, HorizontalPodAutoscaler (if it is asked for). No resource owns them.

    Args:
        namespace: the operator's.
        live: as for `router_objects`.
    """

    def metadata(child: str) -> Object:
        return objects.metadata(child, namespace, labels.of_shared_router(), [], controller=False)

    routers = _RouterSet(
        name=names.SHARED_ROUTER,
        settings=names.SHARED_ROUTER_SETTINGS,
        labels=labels.of_shared_router(),
        selector=labels.shared_router_selector(),
        replicas=_replicas(config, live),
        resources=config.router_resources,
        ports=[(ports.SHARED_FIRST, ports.LAST)],
        autoscaling=config.router_autoscaling,
        account=names.SHARED_ROUTER,
        shared=True,
    )
    return [
        objects.service_account(metadata(names.SHARED_ROUTER)),
        settings.configmap(metadata(names.SHARED_ROUTER_SETTINGS), document, config.authorities),
        *_pods_objects(metadata, routers, config),
    ]


def shared_slice(
    service_name: str,
    owners: Sequence[ModelEndpoint],
    *,
    endpoint: str,
    port: int,
    pods: Mapping[str, str],
    home: str,
    family: str = "IPv4",
) -> Object:
    """The EndpointSlice by which a Service leads to the shared router, beside those of its own selector.

    It names the pods, so that who may not list those of the operator's namespace can ask for their metrics.

    Args:
        owners: the endpoints that own the Service; at least one.
        endpoint: the endpoint that the Service is of; empty for a front door.
        port: the port on the shared router.
        pods: names of the router's pods by address; may be none.
        home: their namespace.
        family: of the addresses, IPv4 or IPv6: the first of the Service.
    """
    own = labels.of_endpoint(endpoint) if endpoint else labels.of_router()
    slice_labels = {**own, labels.SLICE_SERVICE: service_name, labels.SLICE_MANAGED_BY: labels.MANAGED}
    name = names.shared_slice(service_name)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": objects.metadata(
            name, owners[0].namespace, slice_labels, owners, controller=bool(endpoint)
        ),
        "addressType": family,
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "namespace": home, "name": pod},
            }
            for address, pod in pods.items()
        ],
        "ports": [{"name": "http", "port": port, "protocol": "TCP", "appProtocol": "http"}],
    }


def family_of(address: str) -> str:
    """The family of an address, as EndpointSlices and Services name it."""
    return "IPv6" if ":" in address else "IPv4"


def slice_addresses(live: Object | None) -> tuple[str, ...]:
    """The addresses to which a live slice leads."""
    return tuple(each["addresses"][0] for each in (live or {}).get("endpoints") or ())


def dedicated_objects(
    endpoint: ModelEndpoint, port: int, *, config: RenderConfig, document: bytes
) -> list[Object]:
    """Render all objects of an endpoint's own router, in the order of applying.

    ConfigMap, PodDisruptionBudget (with more than one replica), NetworkPolicy (if the installation has
    them), Deployment. ServiceAccount and RoleBinding are those of its namespace's router.
    """

    def metadata(child: str) -> Object:
        return objects.metadata(
            child, endpoint.namespace, labels.of_dedicated_router(endpoint.name), [endpoint]
        )

    asked = endpoint.spec.router
    own = asked.resources.document() if asked is not None and asked.resources is not None else None
    routers = _RouterSet(
        name=names.dedicated_router(endpoint.name),
        settings=names.dedicated_router_settings(endpoint.name),
        labels=labels.of_dedicated_router(endpoint.name),
        selector=labels.dedicated_router_selector(endpoint.name),
        replicas=(asked.replicas if asked is not None else None) or config.router_replicas,
        resources=config.router_resources if own is None else own,
        ports=[port],
    )
    return [
        settings.configmap(metadata(routers.settings), document, config.authorities),
        *_pods_objects(metadata, routers, config),
    ]


def endpoint_service(endpoint: ModelEndpoint, port: int, *, dedicated: bool = False) -> Object:
    """The Service of an endpoint: from port 80 to its own port on router pods.

    Args:
        dedicated: whether it leads to the endpoint's own router, not to that of the namespace.
    """
    selector = labels.dedicated_router_selector(endpoint.name) if dedicated else labels.router_selector()
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": objects.metadata(
            names.endpoint(endpoint.name), endpoint.namespace, labels.of_endpoint(endpoint.name), [endpoint]
        ),
        "spec": service.spec(selector, port),
    }


def leads_to_dedicated(live: Object | None) -> bool:
    """Whether a live Service of an endpoint leads to the endpoint's own router."""
    selector = ((live or {}).get("spec") or {}).get("selector") or {}
    return bool(selector.get(labels.APP_NAME) == labels.APP_DEDICATED_ROUTER)


def _replicas(config: RenderConfig, live: Object | None) -> int:
    """How many pods a namespace's router should have now.

    An autoscaler writes the live Deployment, and its number stays: if the field were left out, the first
    apply without it would reset it to one.
    """
    scaled = config.router_autoscaling
    if scaled is None:
        return config.router_replicas
    now = ((live or {}).get("spec") or {}).get("replicas")
    replicas = now if isinstance(now, int) else scaled.min_replicas
    return min(max(replicas, scaled.min_replicas), scaled.max_replicas)


def _pods_objects(
    metadata: Callable[[str], Object], routers: _RouterSet, config: RenderConfig
) -> Iterator[Object]:
    """Render the Deployment of some routers, and the objects that govern its pods."""
    if not routers.is_alone:
        yield disruption.budget(metadata(routers.name), routers.selector)
    if config.network_policies:
        yield networkpolicy.of_router(
            metadata(routers.name),
            routers.selector,
            data=routers.ports,
            admin=ADMIN_PORT,
            sidecars=sidecar.DATA_PORT,
            config=config,
            everywhere=routers.shared,
        )
    yield _deployment(metadata(routers.name), routers, config)
    if routers.autoscaling is not None:
        yield _autoscaler(metadata(routers.name), routers.autoscaling)


def _autoscaler(metadata: Object, scaled: RouterAutoscaling) -> Object:
    target = {"type": "Utilization", "averageUtilization": scaled.target}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"]},
            "minReplicas": scaled.min_replicas,
            "maxReplicas": scaled.max_replicas,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def _role_binding(metadata: Object, namespace: str, config: RenderConfig) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": config.router_cluster_role,
        },
        "subjects": [{"kind": "ServiceAccount", "name": names.ROUTER, "namespace": namespace}],
    }


def _deployment(metadata: Object, routers: _RouterSet, config: RenderConfig) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": routers.replicas,
            **ROLLS,
            "selector": {"matchLabels": routers.selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": routers.labels},
                "spec": {
                    "serviceAccountName": routers.account,
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": routers.leave_s + _DRAIN_S + _SPARE_S,
                    "securityContext": pods.pod_security(),
                    "containers": [_container(routers, config)],
                    "volumes": [pods.settings_volume(routers.settings), pods.token_volume(config)],
                    "topologySpreadConstraints": pods.spread(routers.selector),
                    **config.router_scheduling,
                    **pods.pull_secrets(config),
                },
            },
        },
    }


def _container(routers: _RouterSet, config: RenderConfig) -> Object:
    words = {
        "--listen": f"[::]:{DATA_PORT}",
        "--admin": f"[::]:{ADMIN_PORT}",
        "--settings": pods.SETTINGS_FILE,
        **pods.reporting(config),
        "--propagation-delay": f"{routers.leave_s}s",
        "--drain-timeout": f"{_DRAIN_S}s",
    }
    flags = ["--shared"] if routers.shared else []
    return {
        "name": names.ROUTER_CONTAINER,
        **pods.pulled(config.router_image, config.image_pull_policy),
        "args": [*[word for pair in words.items() for word in pair], *flags],
        "env": [*pods.identity_env(), *pods.tracing_env(config)],
        "ports": [
            {"name": "http", "containerPort": DATA_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        **pods.probes(ADMIN_PORT),
        "resources": routers.resources,
        "securityContext": pods.container_security(user=pods.USER),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": pods.reporter_mounts(),
    }
