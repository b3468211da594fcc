"""Reads a TrafficSplit's release from its resource. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock_cli.cluster import CommandError, Resource

PROGRESSING, PAUSED, PROMOTED, ROLLED_BACK = "Progressing", "Paused", "Promoted", "RolledBack"
"""Phases of a release."""
FAILED = "AnalysisFailed"
"""The reason of a release that a failed analysis has paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release.

    Args:
        name: namespace and name of the split.
        strategy: `spec.strategy`.
        status: the split's status; empty if the operator has not written it yet.
        stored: `status.release`, if it is for the strategy's stable and candidate; else empty.
        current: whether the status is for the current generation of the spec.
    """

    name: str
    strategy: dict[str, Any]
    status: dict[str, Any]
    stored: dict[str, Any]
    current: bool

    @classmethod
    def of(cls, split: Resource) -> Release:
        """Make the release of a split.

        Args:
            split: the TrafficSplit.

        Raises:
            CommandError: it has no strategy.
        """
        metadata, status = split["metadata"], split.get("status") or {}
        name = f"{metadata['namespace']}/{metadata['name']}"
        strategy = split["spec"].get("strategy")
        if strategy is None:
            raise CommandError(
                f"TrafficSplit {name} has fixed weights, and no release: expected spec.strategy, found none"
            )
        stored = status.get("release") or {}
        same = all(stored.get(role) == strategy[role] for role in ("stable", "candidate"))
        return cls(
            name=name,
            strategy=strategy,
            status=status,
            stored=stored if same else {},
            current=status.get("observedGeneration") == metadata.get("generation"),
        )

    @property
    def stable(self) -> str:
        """Name of the stable ModelBackend."""
        return str(self.strategy["stable"])

    @property
    def candidate(self) -> str:
        """Name of the candidate ModelBackend."""
        return str(self.strategy["candidate"])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The strategy's steps."""
        return list(self.strategy["steps"])

    @property
    def step(self) -> int:
        """Index of the current step; the number of steps after the last."""
        return min(max(int(self.status.get("step") or 0), 0), len(self.steps))

    @property
    def phase(self) -> str:
        """Progressing, Paused, Promoted or RolledBack; empty before the release begins."""
        return str(self.stored.get("phase", ""))

    @property
    def reason(self) -> str:
        """The reason of the release's state; empty before it begins."""
        return str(self.stored.get("reason", ""))

    @property
    def ended(self) -> bool:
        """Whether the release is over."""
        return self.current and self.phase in (PROMOTED, ROLLED_BACK)

    @property
    def weight(self) -> int:
        """The candidate's desired weight now, in percent."""
        return int(self.stored.get("weight", 0))

    @property
    def promoting(self) -> bool:
        """Whether all steps are done and the promotion is under way, without a further action of a user."""
        return self.phase == PROGRESSING and self.step == len(self.steps)

    @property
    def granted(self) -> bool:
        """Whether the operator has taken the current step's weight as the release's target."""
        return int(self.stored.get("target", 0)) == self.target

    @property
    def target(self) -> int:
        """The candidate's percent at the current step; its weight is less while it has too few pods."""
        if self.phase == PROMOTED:
            return 100
        if self.phase == ROLLED_BACK:
            return 0
        if self.promoting:
            return 100
        weights = [step["setWeight"] for step in self.steps[: self.step + 1] if "setWeight" in step]
        return int(weights[-1]) if weights else 0

    @property
    def needed(self) -> int:
        """Ready pods that the candidate needs for its target."""
        replicas = int(self.stored.get("replicas", 0))
        copied = self.stored.get("mirror", 0) > 0
        least = 1 if self.target or copied else 0
        return max(-(-self.target * replicas // 100), least)

    @property
    def promotes_itself(self) -> bool:
        """Whether the release is promoted after the last step without a user's action."""
        return bool(self.strategy.get("promotion", "Auto") == "Auto")

    @property
    def last_words(self) -> str:
        """The stage after the last step, in words."""
        return "weight 100 %" if self.promotes_itself else "weight 100 %, once it is promoted"

    @property
    def condition(self) -> dict[str, Any]:
        """The condition Progressing; empty if there is none."""
        return self._condition("Progressing")

    def _condition(self, kind: str) -> dict[str, Any]:
        conditions = self.status.get("conditions") or ()
        return next((dict(each) for each in conditions if each["type"] == kind), {})

    @property
    def refused(self) -> dict[str, Any]:
        """The condition Accepted if it is False, so that the endpoint does not use the split; else empty."""
        accepted = self._condition("Accepted")
        return accepted if accepted.get("status") == "False" else {}

    @property
    def obstacle(self) -> dict[str, Any]:
        """The condition that keeps the release from beginning, such as an older split; empty if none does."""
        ready = self._condition("Ready")
        return self.refused or (ready if ready.get("status") == "False" else {})

    @property
    def why(self) -> str:
        """The cause of the release's state, in words; a refusal of the split takes precedence."""
        cause = self.refused or self.stored or self.condition or self.obstacle
        reason, message = cause.get("reason", ""), cause.get("message", "")
        return f"{reason}: {message}" if reason and message else reason or message

    def condition_of(self, verb: str) -> str:
        """The condition for which the operator delays an action, in words; empty for none.

        Args:
            verb: the action's name in the annotation.
        """
        if self.refused and self.refused["reason"] != "InvalidStrategy":
            return f"once the split is accepted ({self.why})"
        if self.reason == "InvalidStrategy" and verb != "abort":
            return "once the strategy can be followed"
        if self.reason == "StableMissing" and verb != "promote-full":
            return f"once there is a ModelBackend {self.stable} again"
        if self.reason == "StableNotReady" and verb == "promote":
            return f"once {self.stable} has a ready pod"
        return ""

    @property
    def summary(self) -> str:
        """The state of the release in a few words."""
        if not self.stored:
            return f"{self.stable} → {self.candidate}: not begun"
        place = f", step {self.step + 1} of {len(self.steps)}" if self.step < len(self.steps) else ""
        place = "" if self.phase in (PROMOTED, ROLLED_BACK) else place
        return f"{self.stable} → {self.candidate}: {self.phase}{place}, weight {self.weight} %"


def step_words(step: dict[str, Any]) -> str:
    """Describe a step in words.

    Args:
        step: a step of the strategy.
    """
    if "setWeight" in step:
        return f"weight {step['setWeight']} %"
    if "mirror" in step:
        return f"mirror {step['mirror']} %"
    if step.get("pause") == "Manual":
        return "pause until it is promoted"
    return f"pause {step.get('pause', '')}"
