"""Reports in, a recommendation out. Pure: the time is an argument, in seconds of any steady clock.

Read `window` (what pods reported lately), then `recommend` (how many replicas that asks for).
"""

from penstock_operator.autoscaling.recommend import Recommendation, ScalerState, Target, recommend, target_of
from penstock_operator.autoscaling.window import LoadWindow, PodLoad, Sample

__all__ = [
    "LoadWindow",
    "PodLoad",
    "Recommendation",
    "Sample",
    "ScalerState",
    "Target",
    "recommend",
    "target_of",
]
