"""A TrafficSplit's release, as its resource says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock_cli.cluster import CommandError, Resource

PROGRESSING, PAUSED, PROMOTED, ROLLED_BACK = "Progressing", "Paused", "Promoted", "RolledBack"
"""Phases."""
FAILED = "AnalysisFailed"
"""The reason of a release that a verdict has paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release.

    Args:
        name: namespace and name of the split.
        strategy: `spec.strategy`.
        status: the split's status; empty where the operator has written none.
        stored: `status.release`, if that is of the strategy's pair; else empty.
        current: whether the status is of the spec as it is now.
    """

    name: str
    strategy: dict[str, Any]
    status: dict[str, Any]
    stored: dict[str, Any]
    current: bool

    @classmethod
    def of(cls, split: Resource) -> Release:
        """The release of a split.

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
        """Name of the ModelBackend that served before."""
        return str(self.strategy["stable"])

    @property
    def candidate(self) -> str:
        """Name of the ModelBackend that is to take over."""
        return str(self.strategy["candidate"])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps."""
        return list(self.strategy["steps"])

    @property
    def step(self) -> int:
        """Index of the step that it is at; the number of the steps after the last."""
        return min(max(int(self.status.get("step") or 0), 0), len(self.steps))

    @property
    def phase(self) -> str:
        """Progressing, Paused, Promoted or RolledBack; empty where it has not begun."""
        return str(self.stored.get("phase", ""))

    @property
    def reason(self) -> str:
        """The reason of where it is; empty where it has not begun."""
        return str(self.stored.get("reason", ""))

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.current and self.phase in (PROMOTED, ROLLED_BACK)

    @property
    def weight(self) -> int:
        """The candidate's percent that is asked for now."""
        return int(self.stored.get("weight", 0))

    @property
    def promoting(self) -> bool:
        """Whether all steps are done, and nobody has to promote it any more."""
        return self.phase == PROGRESSING and self.step == len(self.steps)

    @property
    def granted(self) -> bool:
        """Whether the weight of the step that it is at was set."""
        return int(self.stored.get("target", 0)) == self.target

    @property
    def target(self) -> int:
        """The candidate's percent at the step that it is at, which lost pods may keep it from."""
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
        """Ready pods of the candidate that its target takes."""
        replicas = int(self.stored.get("replicas", 0))
        copied = self.stored.get("mirror", 0) > 0
        least = 1 if self.target or copied else 0
        return max(-(-self.target * replicas // 100), least)

    @property
    def promotes_itself(self) -> bool:
        """Whether the candidate gets all requests after the last step without being asked."""
        return bool(self.strategy.get("promotion", "Auto") == "Auto")

    @property
    def last_words(self) -> str:
        """The stage after the last step, in words."""
        return "weight 100 %" if self.promotes_itself else "weight 100 %, once it is promoted"

    @property
    def condition(self) -> dict[str, Any]:
        """The condition Progressing; empty where there is none."""
        return self._condition("Progressing")

    def _condition(self, kind: str) -> dict[str, Any]:
        conditions = self.status.get("conditions") or ()
        return next((dict(each) for each in conditions if each["type"] == kind), {})

    @property
    def refused(self) -> dict[str, Any]:
        """The condition that says why the split is none of its endpoint's; empty where it is one."""
        accepted = self._condition("Accepted")
        return accepted if accepted.get("status") == "False" else {}

    @property
    def obstacle(self) -> dict[str, Any]:
        """The condition that keeps it from beginning, such as an older split; empty where there is none."""
        ready = self._condition("Ready")
        return self.refused or (ready if ready.get("status") == "False" else {})

    @property
    def why(self) -> str:
        """Why it is where it is, in words; first of all what keeps the split from its endpoint."""
        said = self.refused or self.stored or self.condition or self.obstacle
        reason, message = said.get("reason", ""), said.get("message", "")
        return f"{reason}: {message}" if reason and message else reason or message

    def condition_of(self, verb: str) -> str:
        """The condition for which the operator delays an action, in words; empty for none.

        Args:
            verb: as the annotation has it.
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
        """Summarise the state of the release in a few words."""
        if not self.stored:
            return f"{self.stable} → {self.candidate}: not begun"
        place = f", step {self.step + 1} of {len(self.steps)}" if self.step < len(self.steps) else ""
        place = "" if self.phase in (PROMOTED, ROLLED_BACK) else place
        return f"{self.stable} → {self.candidate}: {self.phase}{place}, weight {self.weight} %"


def step_words(step: dict[str, Any]) -> str:
    """A step as people say it.

    Args:
        step: of the strategy.
    """
    if "setWeight" in step:
        return f"weight {step['setWeight']} %"
    if "mirror" in step:
        return f"mirror {step['mirror']} %"
    if step.get("pause") == "Manual":
        return "pause until it is promoted"
    return f"pause {step.get('pause', '')}"
