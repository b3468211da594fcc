"""From one pod to none and back: the routers hold what comes meanwhile, and what they hold wakes the backend.

To none only where nothing can be lost by it: the backend has had no request for `scaleToZero.after`, none
waits, is with a model or is held, and every ready router is there to hold the next one. From none at once,
with the first request that is held.

Time without requests counts from when the pod can take one: a model may take longer to load than clients
wait, and would never be loaded if it were taken away meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_operator.autoscaling.window import PodLoad, RouterHolds

STARTS_S = 600.0
"""Seconds after the last request for which a pod may start; Kubernetes gives a Deployment as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Who would hold the requests of a backend without a pod.

    Args:
        named: whether an endpoint sends it requests.
        missing: why not every ready router would hold them, in words; empty where each would.
        awaited: an endpoint sends it none before it has a ready pod, so that no request can wake it.
    """

    named: bool = False
    missing: str = ""
    awaited: bool = False


def active_at(
    before: float | None,
    *,
    current: int,
    pods: Sequence[PodLoad],
    holds: Sequence[RouterHolds],
    now: float,
) -> float:
    """When a request last arrived, waited, was with a model or was held, in seconds.

    Args:
        before: what this returned last; None where nobody has looked yet: what was before is unknown.
        current: `spec.replicas`; at 0 the time begins with the next pod.
        pods: the backend's, those that left included.
        holds: routers that held its requests lately.
        now: the time in seconds.
    """
    if before is None or current == 0:
        return now
    busy = [
        sample.at
        for pod in pods
        for sample in pod.samples
        if sample.load or sample.arrived > 0 or sample.refused > 0
    ]
    busy += [sample.at for router in holds for sample in router.samples if sample.load]
    busy += [now - pod.ready_for for pod in pods if pod.ready and not pod.left]
    return max([before, *busy])


def patience(after: float, pods: Sequence[PodLoad]) -> float:
    """Seconds without a request after which the last pod goes: more while it has never been ready.

    Args:
        after: `scaleToZero.after`.
        pods: the backend's.
    """
    starts = any(not pod.left and not pod.was_ready for pod in pods)
    return max(after, STARTS_S) if starts else after
