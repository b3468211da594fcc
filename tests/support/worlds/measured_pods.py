"""Pods whose sidecars report a known service curve."""

from __future__ import annotations

from typing import Any

from penstock_operator.autoscaling import Objective, PodLoad, Sample
from penstock_operator.autoscaling.capacity import Curve
from penstock_operator.autoscaling.window import FittedLine

OBJECTIVE = Objective(max_batch_size=32, latency=1.0)
LINE = FittedLine(a=0.1, b=0.02, n=100, items=8, spread=4)
CURVE = Curve(at=0, items=1, level=0.12, slope=0.02)
"""L(26) = 0.651 s, and 1.5 times that is within the objective: 39.9 items a second."""


def pod(
    name: str, *, rate: float = 0, load: int = 0, until: float = 100, seconds: int = 70, **more: Any
) -> PodLoad:
    """A pod that serves and has reported each second.

    Args:
        rate: items that arrive a second.
        load: items that wait or are with the model.
    """
    sample: dict[str, Any] = {"load": load, "slots": 1, "lines": (LINE,)} | {
        key: more.pop(key) for key in ("refused", "slots", "lines") if key in more
    }
    total = [round(rate * second) for second in range(seconds + 2)]
    samples = tuple(
        Sample(at=until - seconds + second, arrived=total[second + 1] - total[second], **sample)
        for second in range(seconds + 1)
    )
    values: dict[str, Any] = {"name": name, "ready": True, "was_ready": True, "samples": samples} | more
    return PodLoad(**values)
