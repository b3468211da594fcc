"""One look at a release: the observations, and the progress of the release."""

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
    """Format a time as Kubernetes does, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(stored: str) -> datetime:
    """Parse a stored time."""
    return datetime.fromisoformat(stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The inputs of a look."""

    strategy: Strategy
    release: Release
    seen: Seen

    @property
    def last(self) -> int:
        """Index of promotion, which follows the last step."""
        return len(self.strategy.steps)

    @property
    def promoting(self) -> bool:
        """Whether all steps are done, and no user has to promote the release any more."""
        return self.release.state.phase == "Progressing" and self.release.step >= self.last

    @property
    def step_words(self) -> str:
        """The step in words."""
        return steps.words(self.strategy, self.release.step)

    @property
    def stable_waits(self) -> bool:
        """Whether a rolled back release keeps its weight, since the stable has no ready pod to answer."""
        stable, candidate = self.seen.stable, self.seen.candidate
        back = self.release.state.phase == "RolledBack" and self.release.state.weight > 0
        return back and stable.ready == 0 and candidate.ready > 0

    @property
    def stable_stays_away(self) -> bool:
        """Whether the stable is gone, or retired: without pods after promotion, and nothing scales it."""
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
        """Whether the step's weight was set, even if pods were lost since."""
        return self.release.state.target == self.wanted

    @property
    def enough(self) -> bool:
        """Whether the candidate's pods allow the step; always true without a stable."""
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
        """Whether the annotation has a new value, even one that is not a valid action."""
        return bool(self.seen.action) and self.seen.action != self.release.state.handled

    @property
    def action(self) -> str:
        """The action that is newly asked for; empty if there is none."""
        return (self.seen.action or "").partition("@")[0].strip() if self.asked else ""

    @property
    def due(self) -> datetime | None:
        """The earliest end of the current pause; None at any other step."""
        pause = steps.pause_ms(self.strategy, self.release.step)
        return None if pause is None else self.release.step_started + timedelta(milliseconds=pause)

    @property
    def interval(self) -> timedelta:
        """The time between two judgements of the metrics."""
        return timedelta(milliseconds=durations.parse_ms(self.strategy.analysis.interval))

    @property
    def next_judgement(self) -> datetime | None:
        """The end of the current interval; None before the first."""
        judged = self.release.state.judged
        return None if judged is None else moment(judged) + self.interval

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts Fail, of the metrics that the strategy still has."""
        labels = {metric.label for metric in self.strategy.analysis.metrics}
        return tuple(
            each for each in self.release.verdicts if each.verdict == "Fail" and each.metric in labels
        )

    @property
    def judging(self) -> tuple[tuple[ReleaseMetric, Verdict | None], ...]:
        """The metrics that can be judged at this weight, each with its verdict if there is one.

        Without requests or copies for the candidate: none. With copies alone: mismatch and queries. With all
        requests: the metrics that have a threshold, since the stable gives nothing to compare with.
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
        """Whether a whole interval at this weight was judged, or there is nothing to judge."""
        state = self.release.state
        if not self.strategy.analysis.metrics or (state.weight == 0 and state.mirror == 0):
            return True
        if state.judged is None or state.settled is None:
            return False
        return moment(state.judged) >= moment(state.settled) + self.interval

    @property
    def overdue(self) -> bool:
        """Whether the current interval should have ended more than an interval ago."""
        end = self.next_judgement
        return end is not None and self.seen.now > end + self.interval

    @property
    def missing(self) -> tuple[str, ...]:
        """The reasons why metrics have no verdict yet, in words, by metric."""
        return tuple(
            f"{metric.label}: {verdict.message if verdict and verdict.message else 'not judged yet'}"
            for metric, verdict in self.judging
            if verdict is None or verdict.verdict == "Waiting"
        )

    def with_state(self, **members: Any) -> Look:
        """Return the look with some members of the state replaced."""
        state = self.release.state.model_copy(update=members)
        return replace(self, release=replace(self.release, state=state))


def _is_of(verdict: Verdict, metric: ReleaseMetric) -> bool:
    """Whether a verdict is about a metric as it is now, not about its former query or threshold."""
    asked = record.key(metric, len(FIRST_BYTE_SECONDS))
    return verdict.metric == metric.label and (not verdict.state or record.about(verdict.state) == asked)
