"""All objects of one ModelBackend."""

from __future__ import annotations

from penstock_operator.api import ModelBackend
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object


def backend_objects(
    backend: ModelBackend, *, config: RenderConfig, document: bytes, drain_secret: str
) -> list[Object]:
    """What a backend consists of, in the order of applying: ServiceAccount (unless podTemplate names one),
    ConfigMap, Service, PodDisruptionBudget (with more than one replica), Deployment.

    Args:
        backend: the backend.
        config: what the installation decides.
        document: the settings document that its sidecars boot from (`settings.Versioned.document`).
        drain_secret: the secret that kubelet's preStop call shows (see `deployment.drain_secret_of`).
    """
    raise NotImplementedError
