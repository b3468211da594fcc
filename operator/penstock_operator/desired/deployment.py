"""The Deployment of a backend: the model container, and the sidecar as a native sidecar."""

from __future__ import annotations

from penstock_operator.api import ModelBackend
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object


def deployment(backend: ModelBackend, *, config: RenderConfig, drain_secret: str) -> Object:
    """The Deployment of a backend (arguments as in `backend.backend_objects`)."""
    raise NotImplementedError


def drain_secret_of(live: Object | None) -> str | None:
    """The drain secret in a live Deployment's pod template; None: make a new one (a random hex string)."""
    raise NotImplementedError
