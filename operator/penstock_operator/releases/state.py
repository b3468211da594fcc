"""What the machine of a release is given, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock_operator.api.strategy import ReleaseState, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """All that a release is between two looks: what `status` of the split holds of it.

    Args:
        state: `status.release`.
        step: `status.step`.
        step_started: `status.stepStarted`.
        verdicts: `status.verdicts`.
    """

    state: ReleaseState
    step: int
    step_started: datetime
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSeen:
    """One of the two backends.

    Args:
        exists: whether there is such a ModelBackend that is not being deleted.
        uid: its uid, by which one that was deleted and made anew is known.
        ready: its ready pods.
        replicas: its `spec.replicas`.
        most: replicas that its autoscaling allows; None where nothing scales it.
        answered: requests of the endpoint that it answered within the last 30 s; None where no router tells.
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
    """What the operator sees of the world at one look.

    Args:
        now: wall time in UTC.
        stable: the stable backend.
        candidate: the candidate.
        applied: the candidate's percent that all ready routers have taken up; None where they have not all
            taken up the weights that `Release.state` asks for, or no router is ready.
        verdicts: of the interval that has just ended, one a metric, if one has; they go into the status.
        action: what somebody asks for by the annotation, `promote`, `promote-full`, `abort` or `pause`, and
            whatever follows an `@`: the same value is carried out once.
    """

    now: datetime
    stable: BackendSeen
    candidate: BackendSeen
    applied: int | None = None
    verdicts: tuple[Verdict, ...] | None = None
    action: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEvent:
    """Something to tell people: an Event of Kubernetes.

    Args:
        reason: one CamelCase word.
        message: in words.
        warning: whether it is of type Warning.
    """

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What a look comes to.

    Args:
        release: the new state, to be written to the status before its weights go to the routers.
        events: what has happened.
        again: seconds after which to look again at the latest. Where `release.state.judged` is `Seen.now`, an
            interval ends here and the next begins: what is counted from here on belongs to that.
    """

    release: Release
    events: tuple[ReleaseEvent, ...] = ()
    again: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests of one endpoint to one backend, within an interval, as the routers counted them.

    Args:
        requests: answered or refused.
        errors: of those, with a status of 500 or above, or refused by Penstock with 429.
        refused: of the errors, those that are refusals of Penstock (a full queue, a deadline, no pod).
        seconds: time to the first byte of the answers: a count for each of the wire's buckets, and the
            last for those beyond them (not cumulative).
        compared: copies whose answers were compared; of a candidate that is mirrored to.
        differing: of those, the ones that differ.
    """

    requests: int = 0
    errors: int = 0
    refused: int = 0
    seconds: tuple[int, ...] = ()
    compared: int = 0
    differing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What the routers counted within one interval, in the same minutes.

    Args:
        stable: of the stable backend.
        candidate: of the candidate.
        parts: the same, of the stable and of the candidate, in short spans one after another; empty where
            only the sums are known.
    """

    stable: Counts
    candidate: Counts
    parts: tuple[tuple[Counts, Counts], ...] = ()
