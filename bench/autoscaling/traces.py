"""Traces: items a second over time, in units of what one pod can do at most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One trace.

    Args:
        name: what it is called.
        seconds: how long it lasts.
        pods: what arrives at a time, in pods' worth.
        replicas: pods at its beginning.
        startup: seconds from a pod's creation until it is ready.
        before: seconds that the simulation has run when the trace begins: `pods` of negative times. They do
            not count. So an autoscaler begins with the pods that it has chosen, not with those that we chose.
    """

    name: str
    seconds: float
    pods: Callable[[float], float]
    replicas: int = 1
    startup: float = 15.0
    before: float = 0.0

    def load(self, now: float) -> float:
        """What arrives at a time of the simulation, which begins `before` seconds before the trace.

        Args:
            now: seconds since the simulation began.
        """
        return self.pods(now - self.before)


def _ramp(at: float) -> float:
    return 0.6 + 11.4 * min(max(at - 120.0, 0.0) / 600.0, 1.0)


def _bursts(at: float) -> float:
    return 8.0 if at > 0.0 and at % 200.0 > 170.0 else 1.6


def _flash(at: float) -> float:
    return 1.6 if at < 300.0 else max(1.6, 14.0 * math.exp(-(at - 300.0) / 240.0))


def _sine(at: float) -> float:
    return 5 + 3 * math.sin(math.tau * at / 600)


def _jump(at: float) -> float:
    return 0.6 if at < 60 else 5.0


def _diurnal(at: float) -> float:
    return 1.0 + 7.0 * max(0.0, math.sin(math.pi * (at / 3600.0 - 0.1) / 0.8)) ** 2


STEADY = "steady 70 %"
"""The trace that does not change."""

BEFORE = 900.0
"""Longer than the longest delay of any autoscaler here, which is Ray Serve's before it falls: 600 s."""

TRACES = (
    Trace(name="step", seconds=600, pods=lambda at: 0.6 if at < 120 else 12.0, before=BEFORE),
    Trace(name="ramp", seconds=900, pods=_ramp, before=BEFORE),
    Trace(name="sine", seconds=1800, pods=_sine, replicas=6, before=BEFORE),
    Trace(name="sawtooth", seconds=900, pods=lambda at: 2 + 6 * (at % 60) / 60, replicas=6, before=BEFORE),
    Trace(name="bursts", seconds=1200, pods=_bursts, replicas=2, before=BEFORE),
    Trace(name="diurnal day in an hour", seconds=3600, pods=_diurnal, replicas=2, before=BEFORE),
    Trace(name="flash crowd", seconds=1200, pods=_flash, replicas=2, before=BEFORE),
    Trace(
        name="slow leak", seconds=1800, pods=lambda at: 2 + 4 * max(at, 0) / 1800, replicas=3, before=BEFORE
    ),
    Trace(name="cold start of 120 s", seconds=900, pods=_jump, startup=120.0, before=BEFORE),
    Trace(name=STEADY, seconds=1800, pods=lambda _: 7.0, replicas=10),
)
"""The step is of 20 times; the diurnal day has a night at both ends. Before their beginning the sine and
the sawtooth are as they are later, and the others have the load of their first moment."""
