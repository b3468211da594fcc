"""Reports in, a recommendation out. Pure: the time is an argument, in seconds of any steady clock.

Read `window` (what pods and routers reported lately), `capacity` (what a pod can do by that), `forecast` (how
arrivals rise), `demand` (how many replicas are asked for) and `recommend` (how many there are to be, within
the limits), then `cron` and `schedule` (limits by the clock), `slow_start` (how many at once where processors
are short), `scale_to_zero` (from one to none, and back) and `victims` (which pods go when there are to be
fewer).
"""

from penstock_operator.autoscaling.capacity import Objective
from penstock_operator.autoscaling.recommend import (
    NO_HOLDER,
    Floor,
    Recommendation,
    ScalerState,
    Target,
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
    "recommend",
    "target_of",
]
