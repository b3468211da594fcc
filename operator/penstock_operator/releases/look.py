"""One look at a release: what is seen of the world, beside how far the release has come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from penstock_operator.api.strategy import ReleaseMetric, Strategy, Verdict
from penstock_operator.releases import capacity, record, steps
from penstock_operator.releases.state import Release, Seen
from penstock_wire import durations
from penstock_wire.control.report import FIRST_BYTE_SECONDS

OVER = ("Promoted", "RolledBack")
"""Phases in which a release is over."""


def text(moment: datetime) -> str:
    """A time as Kubernetes spells it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(stored: str) -> datetime:
    """A stored time."""
    return datetime.fromisoformat(stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look goes by.

    Args:
        strategy: the split's strategy.
        release: how far it has come.
        seen: the world.
    """

    strategy: Strategy
    release: Release
    seen: Seen

    @property
    def last(self) -> int:
        """The step after the last: promotion."""
        return len(self.strategy.steps)

    @property
    def promoting(self) -> bool:
        """Whether all steps are done, and nobody has to promote the release any more."""
        return self.release.state.phase == "Progressing" and self.release.step >= self.last

    @property
    def step_words(self) -> str:
        """The step in words."""
        return steps.words(self.strategy, self.release.step)

    @property
    def stable_waits(self) -> bool:
        """Whether a release that was taken back keeps its weight: the stable could answer nothing."""
        stable, candidate = self.seen.stable, self.seen.candidate
        back = self.release.state.phase == "RolledBack" and self.release.state.weight > 0
        return back and stable.ready == 0 and candidate.ready > 0

    @property
    def stable_stays_away(self) -> bool:
        """Whether the stable is gone, or was retired: promotion is over, and nothing gives it a pod."""
        stable = self.seen.stable
        promoted = self.release.state.phase == "Promoted"
        return not stable.exists or (promoted and stable.is_at_rest)

    @property
    def allowed(self) -> int:
        """The highest weight that the candidate's pods allow."""
        return capacity.allowed(self.seen.candidate.ready, self.release.state.replicas)

    @property
    def wanted(self) -> int:
        """The weight that the step asks for."""
        return steps.target(self.strategy, self.release.step)

    @property
    def granted(self) -> bool:
        """Whether the step's weight was set, be it that pods were lost since."""
        return self.release.state.target == self.wanted

    @property
    def enough(self) -> bool:
        """Whether the candidate's pods allow what the step asks for; without a stable, whatever it has."""
        if not self.seen.stable.exists:
            return True
        copied = steps.mirror(self.strategy, self.release.step) > 0
        return self.allowed >= self.wanted and (self.seen.candidate.ready > 0 or not copied)

    @property
    def settled(self) -> bool:
        """Whether all ready routers have the weight that the step asks for."""
        state = self.release.state
        whole = state.weight == self.wanted and state.mirror == steps.mirror(self.strategy, self.release.step)
        return whole and state.settled is not None and self.seen.applied == state.weight

    @property
    def asked(self) -> bool:
        """Whether somebody newly asks for something, be it nothing that can be read."""
        return bool(self.seen.action) and self.seen.action != self.release.state.handled

    @property
    def action(self) -> str:
        """What somebody newly asks for; empty where nobody does."""
        return (self.seen.action or "").partition("@")[0].strip() if self.asked else ""

    @property
    def due(self) -> datetime | None:
        """When the pause that is under way is over at the earliest; None at any other step."""
        pause = steps.pause_ms(self.strategy, self.release.step)
        return None if pause is None else self.release.step_started + timedelta(milliseconds=pause)

    @property
    def interval(self) -> timedelta:
        """How often the metrics are judged."""
        return timedelta(milliseconds=durations.parse_ms(self.strategy.analysis.interval))

    @property
    def next_judgement(self) -> datetime | None:
        """When the interval under way ends; None before the first."""
        judged = self.release.state.judged
        return None if judged is None else moment(judged) + self.interval

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts against the candidate, by metrics that are still asked for."""
        labels = {metric.label for metric in self.strategy.analysis.metrics}
        return tuple(
            each for each in self.release.verdicts if each.verdict == "Fail" and each.metric in labels
        )

    @property
    def judging(self) -> tuple[tuple[ReleaseMetric, Verdict | None], ...]:
        """The metrics that can be judged at this weight, each with its verdict if there is one.

        Without requests or copies for the candidate none; with copies alone what is compared, and queries;
        with all requests what needs no stable beside it.
        """
        state, metrics, verdicts = self.release.state, self.strategy.analysis.metrics, self.release.verdicts
        pairs: list[tuple[ReleaseMetric, Verdict | None]] = []
        for number, metric in enumerate(metrics):
            if state.weight == 0:
                judged = state.mirror > 0 and metric.name in ("mismatch", "prometheus")
            else:
                judged = metric.name != "mismatch" and (state.weight < 100 or metric.threshold is not None)
            verdict = verdicts[number] if number < len(verdicts) else None
            if judged:
                pairs.append((metric, verdict if verdict and _is_of(verdict, metric) else None))
        return tuple(pairs)

    @property
    def judged(self) -> bool:
        """Whether a whole interval at this weight was judged, where anything can be."""
        state = self.release.state
        if not self.strategy.analysis.metrics or (state.weight == 0 and state.mirror == 0):
            return True
        if state.judged is None or state.settled is None:
            return False
        return moment(state.judged) >= moment(state.settled) + self.interval

    @property
    def overdue(self) -> bool:
        """Whether the interval under way should have been judged long ago."""
        end = self.next_judgement
        return end is not None and self.seen.now > end + self.interval

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing for a verdict on the candidate, in words, by metric."""
        return tuple(
            f"{metric.label}: {verdict.message if verdict and verdict.message else 'not judged yet'}"
            for metric, verdict in self.judging
            if verdict is None or verdict.verdict == "Waiting"
        )

    def with_state(self, **members: Any) -> Look:
        """The look with other members of the state."""
        state = self.release.state.model_copy(update=members)
        return replace(self, release=replace(self.release, state=state))


def _is_of(verdict: Verdict, metric: ReleaseMetric) -> bool:
    """Whether a verdict is of a metric as it is now: what was said of another query or threshold is not."""
    asked = record.key(metric, len(FIRST_BYTE_SECONDS))
    return verdict.metric == metric.label and (not verdict.state or record.about(verdict.state) == asked)
