"""Limits how many pods start at once while processors are short.

Starting models take all CPU that is free. If none is left, they take it from the pods that serve. Reports
show this: each has the share of the time for which its sender's thread was ready to run and did not. Beyond
`SHORT` a step up asks for as many new pods as are ready, at least one, so that no more pods start than serve.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_operator.autoscaling.window import PodLoad, RouterHolds, is_silent

SHORT = 0.1
"""Share of the time beyond which processors are short. Measured on two cores, at 150 and 700 wake-ups a
second: 0 to 0.005 without other work, 0.14 and 0.3 beside two busy loops per core."""
OVER_S = 5.0
"""Seconds up to the last report over which the share is averaged: one second can be an accident."""


def processor_wait(pods: Sequence[PodLoad], holds: Sequence[RouterHolds], now: float) -> float | None:
    """Return the largest share of the time that a pod or router waits for processors; None if unknown.

    Args:
        pods: the backend's; only those that are ready and report count.
        holds: routers that held its requests lately; only those that hold some now count.
    """
    asked = [pod.samples for pod in pods if pod.ready and not pod.left and not is_silent(pod.samples, now)]
    asked += [router.samples for router in holds if router.held(now) and not is_silent(router.samples, now)]
    shares = []
    for samples in asked:
        lately = [
            sample.processor_wait
            for sample in samples
            if sample.processor_wait is not None and samples[-1].at - sample.at <= OVER_S
        ]
        if lately:
            shares.append(sum(lately) / len(lately))
    return max(shares, default=None)


def step_up(replicas: int, *, current: int, ready: int, least: int, wait: float | None) -> int:
    """Limit the replicas that the load asks for to those that can start now.

    Args:
        current: `spec.replicas` now; never lowered here.
        least: `minReplicas`; it holds at once, since a user asks for it, not the load.
        wait: see `processor_wait`; None sets no limit.
    """
    if replicas <= current or wait is None or wait <= SHORT:
        return replicas
    return min(replicas, max(current, least, ready + max(ready, 1)))
