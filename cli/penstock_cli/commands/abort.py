"""Take a release back: the stable backend gets all requests at once.

It stays so until another candidate is named in the strategy, or somebody promotes this one, which begins it
anew. It sets one annotation of the TrafficSplit and no field of its spec.
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
    """Ask for it."""
    return asking.ask(cluster, screen, arguments, verb="abort", plan=goes_back)


def goes_back(release: Release) -> str:
    """What it will do.

    Args:
        release: as it is now.
    """
    if release.phase == ROLLED_BACK:
        raise CommandError(f"nothing to abort: {release.stable} has all requests already")
    if release.phase == PROMOTED:
        raise CommandError(
            f"nothing to abort: {release.candidate} is promoted; to go back, exchange stable and candidate "
            "in the strategy"
        )
    return f"{release.stable} gets all requests, {release.candidate} none (it had {release.weight} %)"
