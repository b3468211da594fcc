"""Take a release back: the stable backend gets all requests at once.

It stays so until another candidate is named in the strategy, or a user promotes this one, which begins it
again. It sets one annotation of the TrafficSplit and no field of its spec.
"""

from __future__ import annotations

import argparse

from penstock_cli import asking
from penstock_cli.asking import add_arguments
from penstock_cli.cluster import Cluster, CommandError
from penstock_cli.release import PROMOTED, ROLLED_BACK, Release
from penstock_cli.text import Screen

__all__ = ["add_arguments", "run"]


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Request the rollback."""

    def plan(release: Release) -> str:
        return goes_back(release, unready=_is_unready(cluster, release.stable))

    return asking.ask(cluster, screen, arguments, verb="abort", plan=plan)


def goes_back(release: Release, *, unready: bool) -> str:
    """Describe the effect of `abort`.

    Args:
        release: the release now.
        unready: whether the stable backend exists and has no ready pod.
    """
    if release.reason == "StableNotReady":
        raise CommandError(f"nothing to abort: it goes back already ({release.why})")
    if release.phase == ROLLED_BACK:
        raise CommandError(f"nothing to abort: {release.stable} has all requests already")
    if release.phase == PROMOTED:
        raise CommandError(
            f"nothing to abort: {release.candidate} is promoted; to go back, exchange stable and candidate "
            "in the strategy"
        )
    once = f", once {release.stable} has a ready pod" if unready else ""
    return f"{release.stable} gets all requests, {release.candidate} none (it had {release.weight} %){once}"


def _is_unready(cluster: Cluster, stable: str) -> bool:
    try:
        backend = cluster.get("ModelBackend", stable)
    except CommandError:  # it does not exist, or cannot be read: the abort is possible all the same
        return False
    return not (backend.get("status") or {}).get("readyReplicas")
