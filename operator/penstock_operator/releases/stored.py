"""A release as a split's status holds it."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock_operator.api import TrafficSplit
from penstock_operator.releases.look import text
from penstock_operator.releases.state import Release

OLDEST = 2000
"""A year before this is nobody's; the first thousand are not even spelled with four digits."""


def stored(split: TrafficSplit) -> Release | None:
    """What an operator goes on from.

    Whoever may write statuses can have written this one: a time that cannot be read is as good as absent.

    Args:
        split: as the store has it.

    Returns:
        None where no release has begun, or what the status says of it cannot be read.
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
    """A time in UTC; None where it cannot be read."""
    try:
        moment = datetime.fromisoformat(written or "")
        return moment.astimezone(UTC) if moment.tzinfo is not None and moment.year > OLDEST else None
    except (ValueError, OverflowError):
        return None
