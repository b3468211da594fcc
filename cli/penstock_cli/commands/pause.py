"""Hold a release where it is until a user promotes or aborts it; its weights stay as they are.

It sets one annotation of the TrafficSplit and no field of its spec.
"""

from __future__ import annotations

import argparse

from penstock_cli import asking
from penstock_cli.asking import add_arguments
from penstock_cli.cluster import Cluster, CommandError
from penstock_cli.release import PAUSED, PROMOTED, ROLLED_BACK, Release
from penstock_cli.text import Screen

__all__ = ["add_arguments", "run"]


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Request the pause."""
    return asking.ask(cluster, screen, arguments, verb="pause", plan=stays)


def stays(release: Release) -> str:
    """Describe the effect of `pause`.

    Args:
        release: the release now.
    """
    already = {PAUSED: "paused", PROMOTED: "promoted", ROLLED_BACK: "rolled back"}
    if release.phase in already:
        raise CommandError(
            f"nothing to pause: the release of {release.candidate} is {already[release.phase]}"
        )
    return f"{release.candidate} stays at {release.weight} % until it is promoted or aborted"
