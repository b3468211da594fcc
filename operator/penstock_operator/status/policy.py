"""The status of a BatchPolicy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock_operator.api import BatchPolicy, Condition
from penstock_operator.api.batchpolicy import BatchPolicyStatus, PolicyUser
from penstock_operator.api.defaults import unreachable_batch
from penstock_operator.status import conditions
from penstock_operator.status.conditions import condition


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUse:
    """The progress of one backend in taking up a policy.

    Args:
        applied_pods: those of them that reported the version of the settings made from the current policy.
    """

    name: str
    ready_pods: int
    applied_pods: int


def policy_status(policy: BatchPolicy, uses: Sequence[PolicyUse], *, now: str) -> dict[str, Any]:
    """Make the whole status of a policy (see `backend.backend_status`)."""
    old, generation = policy.status, policy.metadata.generation
    before = {user.name: user.applied_generation for user in old.backends}
    behind = [use for use in uses if use.applied_pods < use.ready_pods]
    ready = _ready(policy, uses, behind)
    status_conditions = [ready, *conditions.flags(ready, reconciling=bool(behind), stalled=False)]
    return BatchPolicyStatus(
        observed_generation=generation,
        backends=tuple(
            PolicyUser(
                name=use.name,
                applied_generation=generation if _taken_up(use) else before.get(use.name),
                pods=use.applied_pods,
            )
            for use in sorted(uses, key=lambda use: use.name)
        ),
    ).document() | {
        "conditions": conditions.merge(old.conditions, status_conditions, generation=generation, now=now)
    }


def _taken_up(use: PolicyUse) -> bool:
    return use.ready_pods > 0 and use.applied_pods >= use.ready_pods


def _ready(policy: BatchPolicy, uses: Sequence[PolicyUse], behind: Sequence[PolicyUse]) -> Condition:
    if behind:
        applied, all_pods = sum(use.applied_pods for use in uses), sum(use.ready_pods for use in uses)
        text = f"{applied} of {all_pods} ready pods; behind: {conditions.some(use.name for use in behind)}"
        return condition("Ready", "False", "Applying", text)
    note = unreachable_batch(policy.spec)
    if note is not None:
        return condition("Ready", "True", "BatchUnreachable", note)
    if not uses:
        return condition("Ready", "True", "Unused", "no ModelBackend names it")
    return condition("Ready", "True", "Applied")
