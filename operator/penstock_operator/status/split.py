"""The status of a TrafficSplit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_operator.api import TrafficSplit
from penstock_operator.desired.traffic import SplitPlan
from penstock_operator.status.endpoint import RouterObserved


def split_status(
    split: TrafficSplit,
    plan: SplitPlan,
    router: RouterObserved,
    backends: Mapping[str, bool],
    *,
    now: str,
) -> dict[str, Any]:
    """The whole status of a split (see `backend.backend_status`).

    Args:
        split: the split.
        plan: what it gets (`traffic.plan`).
        router: the namespace's router.
        backends: the backends that exist in the namespace, and whether each has a ready pod.
        now: the time, as RFC 3339 in UTC.
    """
    raise NotImplementedError
