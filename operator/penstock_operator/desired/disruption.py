"""PodDisruptionBudgets: a node drain takes one pod at a time."""

from __future__ import annotations

from penstock_operator.desired.objects import Object


def budget(metadata: Object, selector: dict[str, str], asked: dict[str, int | str] | None = None) -> Object:
    """A PodDisruptionBudget; a pod that is not ready can always be evicted.

    Args:
        asked: `maxUnavailable` or `minAvailable`; None: one unavailable pod.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {
            **(asked or {"maxUnavailable": 1}),
            "selector": {"matchLabels": selector},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
