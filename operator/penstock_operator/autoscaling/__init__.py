"""Reports in, a recommendation out. Pure: the time is an argument, in seconds of any steady clock.

Read `window` (what pods and routers reported lately), then `recommend` (how many replicas that asks for) and
`slow_start` (how many at once where processors are short).
"""

from penstock_operator.autoscaling.recommend import Recommendation, ScalerState, Target, recommend, target_of
from penstock_operator.autoscaling.window import LoadWindow, PodLoad, RouterHolds, Sample

__all__ = [
    "LoadWindow",
    "PodLoad",
    "Recommendation",
    "RouterHolds",
    "Sample",
    "ScalerState",
    "Target",
    "recommend",
    "target_of",
]
