"""Computes when the last pod of a backend can go: routers then hold its requests, and these wake it again.

The last pod goes only if nothing can be lost by it: the backend has had no request for `scaleToZero.after`,
none waits, is with a model or is held, and every ready router would hold the next one. The first request that
is held brings a pod back at once.

Time without requests counts from when the pod can take one: a model can take longer to load than clients
wait, and would never finish loading if its pod were removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_operator.autoscaling.window import PodLoad, RouterHolds

STARTS_S = 600.0
"""Seconds after the last request for which a starting pod is kept; Kubernetes gives a Deployment as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The routers' readiness to hold the requests of a backend without a pod.

    Args:
        named: whether an endpoint sends it requests.
        missing: in words, why not every ready router would hold them; empty if each would.
        awaited: whether an endpoint sends it none before it has a ready pod, so that no request can wake it.
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
    """Return when a request last arrived, waited, was with a model or was held, in seconds.

    Args:
        before: the last result; None at the first call: what was before is unknown.
        current: `spec.replicas`; at 0 the time begins with the next pod.
        pods: the backend's, including those that left.
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
    """Return the seconds without a request after which the last pod goes; more until it was ready once.

    Args:
        after: `scaleToZero.after`.
    """
    starts = any(not pod.left and not pod.was_ready for pod in pods)
    return max(after, STARTS_S) if starts else after
