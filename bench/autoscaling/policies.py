"""The operator's own recommender, with and without `targetLoad`, as an autoscaler of the simulation."""

from __future__ import annotations

from bench.autoscaling.simulator import Model, Seen
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
