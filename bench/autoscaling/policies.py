"""The operator's own recommender as an autoscaler of the simulation; and oracles, which know the trace."""

from __future__ import annotations

import math
from collections import deque

from bench.autoscaling.simulator import Model, Seen
from bench.autoscaling.traces import Trace
from penstock_operator.autoscaling import (
    Objective,
    Recommendation,
    ScalerState,
    Target,
    recommend,
)

MOST = 40
"""`maxReplicas` of all."""


class Penstock:
    """The operator's recommender, looked at as often as the operator looks.

    Args:
        model: what is scaled.
        target_load: `targetLoad`; None where it is to follow from the objective.
        delay: `downscaleDelay` in seconds.
        window: `stableWindow` in seconds.
    """

    interval = 2.0

    def __init__(
        self, model: Model, *, target_load: int | None = None, delay: float = 300.0, window: float = 60.0
    ) -> None:
        policy = model.batching
        self._target = Target(
            min_replicas=1,
            max_replicas=MOST,
            target_load=target_load,
            stable_window=window,
            downscale_delay=delay,
            objective=Objective(
                max_batch_size=policy.max_batch_size,
                latency=None if policy.latency_objective_ms is None else policy.latency_objective_ms / 1000,
            ),
        )
        self._state = ScalerState()
        self.last: Recommendation | None = None

    def look(self, seen: Seen) -> int:
        """See `Policy`."""
        self.last, self._state = recommend(
            self._target,
            current=seen.current,
            pods=seen.pods,
            state=self._state,
            now=seen.now,
            holds=seen.holds,
            startup=seen.startup,
        )
        return self.last.replicas


class Oracle:
    """Knows the rate of arrivals at each moment, with no delay and without chance in it.

    Args:
        trace: what arrives.
        share: of what a pod can do that arrivals are to take.
        foresees: whether it knows the rates to come, too, for as long as pods take to start.
        delay: seconds for which it keeps what was wanted.
    """

    interval = 2.0

    def __init__(self, trace: Trace, *, share: float, foresees: bool, delay: float) -> None:
        self._trace, self._share, self._delay = trace, share, delay
        # The slowest of some hundred pods takes a third more than the middle one.
        self._ahead = 1.33 * trace.startup + self.interval if foresees else 0.0
        self._wanted: deque[tuple[float, int]] = deque()

    def look(self, seen: Seen) -> int:
        """See `Policy`."""
        times = range(math.floor(seen.now), math.ceil(seen.now + self._ahead) + 1) if self._ahead else ()
        rate = max(self._trace.load(at) for at in (seen.now, *times))
        wanted = min(max(math.ceil(rate / self._share - 1e-9), 1), MOST)
        self._wanted.append((seen.now, wanted))
        while self._wanted[0][0] < seen.now - self._delay:
            self._wanted.popleft()
        return max(count for _, count in self._wanted)
