"""The status of a BatchPolicy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock_operator.api import BatchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUse:
    """How far one backend has taken a policy up.

    Args:
        name: the backend.
        ready_pods: its ready pods.
        applied_pods: those of them that reported the version of the settings made from the current policy.
    """

    name: str
    ready_pods: int
    applied_pods: int


def policy_status(policy: BatchPolicy, uses: Sequence[PolicyUse], *, now: str) -> dict[str, Any]:
    """The whole status of a policy (see `backend.backend_status`)."""
    raise NotImplementedError
