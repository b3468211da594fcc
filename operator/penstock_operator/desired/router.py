"""All objects of a namespace's router, and the Service of each endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_operator.api import ModelEndpoint
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object


def router_objects(
    namespace: str, owners: Sequence[ModelEndpoint], *, config: RenderConfig, document: bytes
) -> list[Object]:
    """What the router of a namespace consists of, in the order of applying: ServiceAccount, RoleBinding,
    ConfigMap, Service, PodDisruptionBudget (with more than one replica), Deployment.

    Args:
        namespace: the namespace.
        owners: its endpoints that are not being deleted, all of which own the router; at least one.
        config: what the installation decides.
        document: the settings document that the router boots from.
    """
    raise NotImplementedError


def endpoint_service(endpoint: ModelEndpoint, port: int) -> Object:
    """The Service of an endpoint: 80 to its own port on the router pods."""
    raise NotImplementedError
