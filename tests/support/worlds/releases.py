"""Releases for tests: a strategy with a step of each kind, and a world in which all is well."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock_operator.api.strategy import ReleaseState, Strategy, Verdict
from penstock_operator.releases import steps
from penstock_operator.releases.look import text
from penstock_operator.releases.state import BackendSeen, Release, Seen

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
STEPS: tuple[dict[str, Any], ...] = (
    {"mirror": 20},
    {"setWeight": 10},
    {"pause": "10m"},
    {"setWeight": 50},
    {"pause": "Manual"},
    {"setWeight": 75},
)
"""A step of each kind; their number is LAST."""
LAST = len(STEPS)
METRICS: tuple[dict[str, Any], ...] = ({"name": "errorRatio"}, {"name": "mismatch"})


def strategy(*, metrics: tuple[dict[str, Any], ...] = METRICS, **members: Any) -> Strategy:
    """A strategy from `old` to `new`."""
    usual = {"stable": "old", "candidate": "new", "steps": STEPS, "analysis": {"metrics": metrics}}
    return Strategy.model_validate(usual | members)


def verdicts(of: Strategy, *said: str) -> tuple[Verdict, ...]:
    """A verdict for each metric, the last one for those that are left."""
    return tuple(
        Verdict.model_validate(
            {"metric": metric.label, "verdict": said[min(number, len(said) - 1)], "message": "numbers"}
        )
        for number, metric in enumerate(of.analysis.metrics)
    )


def at(of: Strategy, step: int, phase: str = "Progressing", *, ago: float = 120, **state: Any) -> Release:
    """A release that has been at a step for a while: taken up by the routers, judged, all verdicts Pass.

    Args:
        ago: seconds since the step began.
        state: members of `status.release` that are otherwise than that.
    """
    weight = steps.target(of, min(step, LAST - 1) if phase == "Paused" else step)
    weight = 0 if phase == "RolledBack" else weight
    usual = {
        "stable": "old",
        "candidate": "new",
        "phase": phase,
        "weight": weight,
        "target": weight,
        "mirror": 0 if phase == "RolledBack" else steps.mirror(of, step),
        "replicas": 10,
        "steps": steps.fingerprint(of),
        "reason": "StepRunning",
        "message": "before",
        "started": text(NOW - timedelta(hours=1)),
        "settled": text(NOW - timedelta(seconds=ago)),
        "judged": text(NOW - timedelta(seconds=20)),
        "candidate_uid": "uid-new",
    }
    return Release(
        state=ReleaseState.model_validate(usual | state),
        step=step,
        step_started=NOW - timedelta(seconds=ago),
        verdicts=verdicts(of, "Pass"),
    )


def seen(release: Release | None = None, **members: Any) -> Seen:
    """The world: ten ready pods each, and routers that have taken up what the release asks for.

    Args:
        members: of `Seen` that are otherwise; `stable` and `candidate` as members of `BackendSeen`.
    """
    both = {
        "stable": BackendSeen(exists=True, uid="uid-old", ready=10, replicas=10, most=20, answered=0),
        "candidate": BackendSeen(exists=True, uid="uid-new", ready=10, replicas=10, most=20, answered=0),
    }
    for name, usual in both.items():
        both[name] = replace(usual, **members.pop(name, {}))
    applied = None if release is None else release.state.weight
    return Seen(**{"now": NOW, "applied": applied, **both, **members})
