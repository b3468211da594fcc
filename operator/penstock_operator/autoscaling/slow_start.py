"""A slower start of many pods where the node is full: what a step up may ask for while processors are short.

Starting models take all CPU that is free. Where there is none left, they take it from the pods that serve.
These say so themselves: each report has the share of time for which its thread was ready to run and did not.
Beyond `SHORT` a step up asks for as many new pods as are ready, at least one, so that no more pods start than
serve.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_operator.autoscaling.window import PodLoad, RouterHolds, is_silent

SHORT = 0.1
"""Share of the time. Measured on two cores, for 150 and 700 wake-ups a second: 0 to 0.005 without other work,
0.14 and 0.3 beside two busy loops a core."""
OVER_S = 5.0
"""Seconds up to the last report that the share is averaged over: one second may be an accident."""


def processor_wait(pods: Sequence[PodLoad], holds: Sequence[RouterHolds], now: float) -> float | None:
    """The share of the time that those wait for processors who wait most; None where nobody says.

    Args:
        pods: the backend's; those count that are ready and report.
        holds: routers that held its requests lately; those count that hold some now.
        now: the time in seconds.
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
    """What to ask for now, of the replicas that the load asks for.

    Args:
        replicas: what the load asks for.
        current: `spec.replicas` now; never lowered here.
        ready: pods that are ready.
        least: `minReplicas`, which a user asks for and not the load: it holds at once.
        wait: see `processor_wait`; None bounds nothing.
    """
    if replicas <= current or wait is None or wait <= SHORT:
        return replicas
    return min(replicas, max(current, least, ready + max(ready, 1)))
