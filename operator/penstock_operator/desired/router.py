"""All objects of a namespace's router, and the Service of each endpoint."""

from __future__ import annotations

from collections.abc import Sequence

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
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_wire import contract

DATA_PORT = contract.ROUTER_PORT
ADMIN_PORT = contract.ROUTER_ADMIN_PORT

_LEAVE_S = 5
"""Seconds that a router which goes away keeps taking requests, while kube-proxies learn of it."""
_DRAIN_S = 60
"""Seconds that its requests then have."""
_SPARE_S = 10
"""Seconds that the process has beyond both."""


def router_objects(
    namespace: str, owners: Sequence[ModelEndpoint], *, config: RenderConfig, document: bytes
) -> list[Object]:
    """What the router of a namespace consists of, in the order of applying.

    ServiceAccount, RoleBinding, ConfigMap, Service, PodDisruptionBudget (with more than one replica),
    NetworkPolicy (where the installation has them), Deployment.

    Args:
        namespace: the namespace.
        owners: its endpoints that are not being deleted, all of which own the router; at least one.
        config: what the installation decides.
        document: the settings document that the router boots from.
    """

    def metadata(child: str) -> Object:
        return objects.metadata(child, namespace, labels.of_router(), owners, controller=False)

    selector = labels.router_selector()
    found = [
        objects.service_account(metadata(names.ROUTER)),
        _role_binding(metadata(names.ROUTER), namespace, config),
        settings.configmap(metadata(names.ROUTER_SETTINGS), document, config.authorities),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(names.ROUTER),
            "spec": service.spec(selector, DATA_PORT),
        },
    ]
    if config.router_replicas > 1:
        found.append(disruption.budget(metadata(names.ROUTER), selector))
    if config.network_policies:
        data: networkpolicy.Ports = [DATA_PORT, (ports.FIRST, ports.LAST)]
        found.append(
            networkpolicy.of_router(
                metadata(names.ROUTER),
                selector,
                data=data,
                admin=ADMIN_PORT,
                sidecars=sidecar.DATA_PORT,
                config=config,
            )
        )
    found.append(_deployment(metadata(names.ROUTER), config))
    return found


def endpoint_service(endpoint: ModelEndpoint, port: int) -> Object:
    """The Service of an endpoint: 80 to its own port on the router pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": objects.metadata(
            names.endpoint(endpoint.name), endpoint.namespace, labels.of_endpoint(endpoint.name), [endpoint]
        ),
        "spec": service.spec(labels.router_selector(), port),
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


def _deployment(metadata: Object, config: RenderConfig) -> Object:
    selector = labels.router_selector()
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": config.router_replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels.of_router()},
                "spec": {
                    "serviceAccountName": names.ROUTER,
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": _LEAVE_S + _DRAIN_S + _SPARE_S,
                    "securityContext": pods.pod_security(),
                    "containers": [_container(config)],
                    "volumes": [pods.settings_volume(names.ROUTER_SETTINGS), pods.token_volume(config)],
                    "topologySpreadConstraints": pods.spread(selector),
                    **config.router_scheduling,
                    **pods.pull_secrets(config),
                },
            },
        },
    }


def _container(config: RenderConfig) -> Object:
    words = {
        "--listen": f"[::]:{DATA_PORT}",
        "--admin": f"[::]:{ADMIN_PORT}",
        "--settings": pods.SETTINGS_FILE,
        **pods.reporting(config),
        "--propagation-delay": f"{_LEAVE_S}s",
        "--drain-timeout": f"{_DRAIN_S}s",
    }
    return {
        "name": names.ROUTER_CONTAINER,
        **pods.pulled(config.router_image, config.image_pull_policy),
        "args": [word for pair in words.items() for word in pair],
        "env": pods.identity_env(),
        "ports": [
            {"name": "http", "containerPort": DATA_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        **pods.probes(ADMIN_PORT),
        "resources": config.router_resources,
        "securityContext": pods.container_security(user=pods.USER),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": pods.reporter_mounts(),
    }
