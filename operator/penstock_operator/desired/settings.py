"""Settings documents, their version rule, and the ConfigMaps that record them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_wire import router_settings, settings

from penstock_operator.api import BatchPolicy, ModelBackend
from penstock_operator.desired.objects import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """A settings document that is to be told.

    Args:
        version: its version.
        document: its bytes: the ConfigMap's value and the member `settings` of a report's answer.
        changed: whether the version was raised.
    """

    version: int
    document: bytes
    changed: bool


def next_version(
    make: Callable[[int], bytes], *, recorded: Object | None, status_version: int, reported: int
) -> Versioned:
    """The document to tell now, by the version rule.

    The version is raised, to 1 + max(ConfigMap, status, reported), only when the bytes differ from those
    recorded in the ConfigMap, or when somebody knows a higher version than the one recorded there.

    Args:
        make: makes the document's bytes for a version.
        recorded: the live settings ConfigMap, if there is one.
        status_version: `status.settingsVersion` of the resource; 0 if there is none.
        reported: the highest version that a pod has reported; 0 if none has.
    """
    raise NotImplementedError


def for_sidecar(backend: ModelBackend, policy: BatchPolicy | None) -> Callable[[int], bytes]:
    """Makes a backend's settings document for a version (the `make` of `next_version`).

    Args:
        backend: the backend.
        policy: the BatchPolicy that it names, if it exists. Where it names one that does not exist, don't
            call this: keep what is recorded (`recorded_version`).
    """

    def make(version: int) -> bytes:
        raise NotImplementedError

    return make


def for_router(endpoints: tuple[router_settings.Endpoint, ...]) -> Callable[[int], bytes]:
    """Makes a router's settings document for a version (the `make` of `next_version`)."""

    def make(version: int) -> bytes:
        raise NotImplementedError

    return make


def recorded_version(configmap: Object | None) -> Versioned | None:
    """What a live settings ConfigMap records; None if there is none or it cannot be read."""
    raise NotImplementedError


def defaults(backend: ModelBackend) -> settings.Settings:
    """What a backend's sidecars obey whose policy has never been there: the defaults."""
    raise NotImplementedError
