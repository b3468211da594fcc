"""The status of a ModelBackend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_operator.api import ModelBackend
from penstock_operator.api.modelbackend import LoadStatus
from penstock_operator.autoscaling import Recommendation
from penstock_operator.desired.objects import Object
from penstock_wire.report import SidecarReport


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendObserved:
    """What was observed of a backend.

    Args:
        deployment: its live Deployment.
        pods: its live pods.
        reports: the last report of each pod by name, of pods that reported lately (say 10 s).
        settings_version: the version that the sidecars are told; 0 for none.
        policy_missing: whether `batchPolicyRef` names a policy that does not exist.
        taken: children that a stranger holds, as `Service/NAME`; they were not touched.
        apply_error: why the apiserver refused a child, if it did (an image name it does not take, a quota).
        used_by: as `traffic.TrafficPlan.used_by`.
        load: the load to publish (see `publish_load`).
        recommendation: the autoscaler's last one; None where there is no autoscaling.
        scaled: whether that recommendation was just written through `/scale`: it enters `status.scaling`.
        foreign_scaler: another manager that writes `/scale` beside the autoscaler.
        batching_note: why a batch can never be full, if so (`defaults.unreachable_batch`).
    """

    deployment: Object | None = None
    pods: Sequence[Object] = ()
    reports: Mapping[str, SidecarReport] = field(default_factory=dict)
    settings_version: int = 0
    policy_missing: bool = False
    taken: Sequence[str] = ()
    apply_error: str | None = None
    used_by: Sequence[str] = ()
    load: LoadStatus | None = None
    recommendation: Recommendation | None = None
    scaled: bool = False
    foreign_scaler: str | None = None
    batching_note: str | None = None


def backend_status(backend: ModelBackend, seen: BackendObserved, *, now: str) -> dict[str, Any]:
    """The whole status of a backend, as it is to be applied by manager `penstock-status`.

    The old status is taken from `backend.status`: what did not change keeps its times, and the result equals
    the old status where nothing changed.

    Args:
        backend: the backend.
        seen: what was observed.
        now: the time, as RFC 3339 in UTC.
    """
    raise NotImplementedError


def publish_load(old: LoadStatus | None, new: LoadStatus, *, elapsed: float | None) -> LoadStatus:
    """The load to show: the new one at most every 15 s, and only if a number changed by more than 10 %.

    Args:
        old: the load in the live status.
        new: the load now.
        elapsed: seconds since the load was last published; None if never.
    """
    raise NotImplementedError
