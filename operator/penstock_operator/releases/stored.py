"""A release as a split's status holds it."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock_operator.api import TrafficSplit
from penstock_operator.releases.look import text
from penstock_operator.releases.state import Release

OLDEST = 2000
"""Earlier years are not real times; years below 1000 are not even written with four digits."""


def stored(split: TrafficSplit) -> Release | None:
    """Return the stored release from which an operator continues.

    Any client with the right to write statuses can have written it: an unreadable time counts as absent.

    Returns:
        None if no release has begun, or its status cannot be read.
    """
    status = split.status
    if status.release is None or status.step is None or (started := _moment(status.step_started)) is None:
        return None
    times = {
        name: None if (moment := _moment(getattr(status.release, name))) is None else text(moment)
        for name in ("ended", "settled", "judged", "idle_since")
    }
    return Release(
        state=status.release.model_copy(update=times),
        step=max(status.step, 0),
        step_started=started,
        verdicts=status.verdicts,
    )


def _moment(written: str | None) -> datetime | None:
    """Parse a time, in UTC; None if it cannot be read."""
    try:
        moment = datetime.fromisoformat(written or "")
        return moment.astimezone(UTC) if moment.tzinfo is not None and moment.year > OLDEST else None
    except (ValueError, OverflowError):
        return None
