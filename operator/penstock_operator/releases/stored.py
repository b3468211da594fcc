"""A release as a split's status holds it."""

from __future__ import annotations

from datetime import datetime

from penstock_operator.api import TrafficSplit
from penstock_operator.releases.state import Release


def stored(split: TrafficSplit) -> Release | None:
    """What an operator goes on from.

    Args:
        split: as the store has it.

    Returns:
        None where no release has begun, or what the status says of it cannot be read.
    """
    status = split.status
    if status.release is None or status.step is None or status.step_started is None:
        return None
    try:
        started = datetime.fromisoformat(status.step_started)
    except ValueError:
        return None
    if started.tzinfo is None:
        return None
    return Release(state=status.release, step=status.step, step_started=started, verdicts=status.verdicts)
