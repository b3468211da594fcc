"""How many replicas the load asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock_operator.api import ModelBackend
from penstock_operator.api.modelbackend import ScalingInputs
from penstock_operator.autoscaling.window import PodLoad

Verdict = Literal["Scale", "Steady", "Limited", "Delayed", "FirstLook", "NoReports", "TooManyUnknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`spec.autoscaling` in numbers: replicas, items a pod, seconds."""

    min_replicas: int
    max_replicas: int
    target_load: int
    stable_window: float
    downscale_delay: float


def target_of(backend: ModelBackend) -> Target | None:
    """The target of a backend; None where it has no autoscaling, or is suspended."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerState:
    """What the autoscaler of one backend remembers. A new leader begins with `ScalerState()`.

    Args:
        first_look: when it looked first, in seconds.
        wanted: (time, replicas) wanted lately, oldest first.
        panic_until: no decrease before this time, in seconds.
    """

    first_look: float | None = None
    wanted: tuple[tuple[float, int], ...] = ()
    panic_until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """How many replicas there should be, and why.

    Args:
        replicas: the recommendation, within the limits.
        current: `spec.replicas` at the time.
        verdict: one word for the cause.
        message: the cause in words, with the numbers.
        inputs: for `status.scaling`.
        metrics_available: whether enough pods report for the number to mean something.
    """

    replicas: int
    current: int
    verdict: Verdict
    message: str
    inputs: ScalingInputs
    metrics_available: bool


def recommend(
    target: Target, *, current: int, pods: Sequence[PodLoad], state: ScalerState, now: float
) -> tuple[Recommendation, ScalerState]:
    """Recommend replicas: N = ceil(load / target) of the load averaged over the stable window.

    Up at once; down only to the most that was wanted within `downscale_delay`. A pod that fell silent counts
    as its last load; while more than half are unknown the number is held, and on its first look a new leader
    never lowers it.

    Args:
        target: the limits.
        current: `spec.replicas` now.
        pods: what is known of the pods (`LoadWindow.view`).
        state: what the last call returned.
        now: the time in seconds.

    Returns:
        The recommendation, and the state for the next call. Where `replicas` differs from `current`, write it
        through `/scale`.
    """
    raise NotImplementedError
