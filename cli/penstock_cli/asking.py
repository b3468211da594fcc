"""Shared by `promote`, `abort` and `pause`, which ask for an action by an annotation of the split.

The operator carries out each value of the annotation once, and shows the last in `status.release.handled`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime

from penstock_cli.cluster import Cluster, CommandError
from penstock_cli.release import Release
from penstock_cli.text import Screen, fitted

ANNOTATION = "penstock.dev/release"
SECONDS = 60.0
"""Seconds that `--wait` waits for the operator, which needs about one."""
EVERY = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the three commands."""
    parser.add_argument("split", help="name of the TrafficSplit")
    parser.add_argument(
        "--wait", action="store_true", help="until the operator has carried it out; prints what came of it"
    )


def ask(
    cluster: Cluster,
    screen: Screen,
    arguments: argparse.Namespace,
    *,
    verb: str,
    plan: Callable[[Release], str],
) -> int:
    """Print the plan, write the annotation, and wait for the operator if that is wanted.

    Args:
        cluster: the cluster of the release.
        screen: where the plan is printed.
        arguments: as `add_arguments` declares them.
        verb: the action that is written into the annotation.
        plan: describes the verb's effect on a release; raises CommandError if there is none.

    Raises:
        CommandError: there is no such release, nothing to do, or the operator has not answered in time.
    """
    release = Release.of(cluster.get("TrafficSplit", arguments.split))
    if not release.stored:
        why = f" ({release.why})" if release.why else ""
        raise CommandError(
            f"nothing to {arguments.command}: the release of {release.candidate} has not begun{why}"
        )
    will = plan(release)
    value = f"{verb}@{datetime.now(UTC).isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"
    cluster.annotate("TrafficSplit", arguments.split, ANNOTATION, value)
    condition = release.condition_of(verb)
    outlook = f"{release.name}: {will}{f', {condition}' if condition else ''}"
    screen.show(fitted([outlook], screen.width))
    if not arguments.wait:
        return 0
    until = time.monotonic() + SECONDS
    while True:
        is_last = time.monotonic() >= until
        release = Release.of(cluster.get("TrafficSplit", arguments.split))
        if release.stored.get("handled") == value:
            came = [release.summary, *([f"  {release.why}"] if release.why else [])]
            screen.show(fitted(came, screen.width))
            return 0
        if is_last:
            break
        time.sleep(EVERY)
    if release.stored.get("pending") == value:
        raise CommandError(
            f"the operator has not carried it out within {SECONDS:.0f} s, and will do so later "
            f"({release.why})"
        )
    raise CommandError(
        f"the operator has not taken it up within {SECONDS:.0f} s: expected {value} in "
        f"status.release.handled, found {release.stored.get('handled') or 'none'}; is it running?"
    )
