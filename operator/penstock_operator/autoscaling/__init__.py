"""Computes recommended replicas from reports.

Pure: the time is an argument, in seconds of any steady clock.

Read `window` (what pods and routers reported lately), `capacity` (what a pod can do), `forecast` (how
arrivals rise), `demand` (how many replicas the load asks for) and `recommend` (how many there should be,
within the limits), then `cron` and `schedule` (limits by the clock), `slow_start` (how many pods start at
once while processors are short), `scale_to_zero` (from one pod to none and back) and `victims` (which pods go
when replicas fall).
"""

from penstock_operator.autoscaling.capacity import Objective
from penstock_operator.autoscaling.recommend import (
    NO_HOLDER,
    Floor,
    Recommendation,
    ScalerState,
    Target,
    objective_of,
    recommend,
    target_of,
)
from penstock_operator.autoscaling.scale_to_zero import Holders
from penstock_operator.autoscaling.window import LoadWindow, PodLoad, RouterHolds, Sample

__all__ = [
    "NO_HOLDER",
    "Floor",
    "Holders",
    "LoadWindow",
    "Objective",
    "PodLoad",
    "Recommendation",
    "RouterHolds",
    "Sample",
    "ScalerState",
    "Target",
    "objective_of",
    "recommend",
    "target_of",
]
