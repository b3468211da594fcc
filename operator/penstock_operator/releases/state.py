"""Inputs and outputs of the state machine of a release."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock_operator.api.strategy import ReleaseState, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The state of a release between two looks, as the split's `status` holds it."""

    state: ReleaseState
    step: int
    step_started: datetime
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSeen:
    """Observations of one of the two backends.

    Args:
        exists: whether the ModelBackend exists and is not being deleted.
        most: replicas that its autoscaling allows; None if nothing scales it.
        answered: requests of the endpoint that it answered within the last 30 s; None if no router reports.
    """

    exists: bool
    uid: str = ""
    ready: int = 0
    replicas: int = 0
    most: int | None = None
    answered: int | None = None

    @property
    def is_at_rest(self) -> bool:
        """Whether it has no pods, is to have none, and nothing scales it."""
        return self.ready == 0 and self.replicas == 0 and self.most is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Observations of the operator at one look.

    Args:
        applied: the candidate's percent that all ready routers have taken up; None if they have not all
            taken up the weights that `Release.state` asks for, or no router is ready.
        verdicts: one a metric, if an interval has just ended, else None; they go into the status.
        action: the annotation's value: `promote`, `promote-full`, `abort` or `pause`, optionally with `@` and
            any text behind it; the same value is carried out once.
    """

    now: datetime
    stable: BackendSeen
    candidate: BackendSeen
    applied: int | None = None
    verdicts: tuple[Verdict, ...] | None = None
    action: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEvent:
    """A Kubernetes Event to publish."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The result of a look.

    Args:
        release: the new state, to be written to the status before its weights go to the routers. If its
            `state.judged` is `Seen.now`, an interval ends here, and later counts belong to the next one.
        again: seconds after which to look again at the latest.
    """

    release: Release
    events: tuple[ReleaseEvent, ...] = ()
    again: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests of one endpoint to one backend, within an interval, as the routers counted them.

    Args:
        errors: requests with a status of 500 or above, or refused by Penstock with 429.
        refused: errors that are refusals by Penstock (a full queue, a deadline, no pod).
        seconds: time to the first byte of the answers: a count for each of the wire's buckets, and a last
            count for the answers beyond them (not cumulative).
        compared: copies whose answers were compared, if requests are mirrored to a candidate.
    """

    requests: int = 0
    errors: int = 0
    refused: int = 0
    seconds: tuple[int, ...] = ()
    compared: int = 0
    differing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Counts of the routers for both backends within the same interval.

    Args:
        parts: the same counts of stable and candidate for consecutive short spans; empty if only the sums are
            known.
    """

    stable: Counts
    candidate: Counts
    parts: tuple[tuple[Counts, Counts], ...] = ()
