"""Let a release go on: past the pause or the step that it is at, or (--full) to all requests at once.

A release that a failed analysis has paused goes on with the next step, and is judged by the requests from
then on. A release that was rolled back begins again from its first step. The candidate never gets more
requests than its ready pods can take, with --full neither. It sets one annotation of the TrafficSplit and no
field of its spec.
"""

from __future__ import annotations

import argparse

from penstock_cli import asking
from penstock_cli.cluster import Cluster, CommandError
from penstock_cli.release import FAILED, PAUSED, PROMOTED, ROLLED_BACK, Release, step_words
from penstock_cli.text import Screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    asking.add_arguments(parser)
    parser.add_argument("--full", action="store_true", help="all requests at once, without the steps left")


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Request the promotion."""
    plan, verb = (all_at_once, "promote-full") if arguments.full else (goes_on, "promote")
    return asking.ask(cluster, screen, arguments, verb=verb, plan=plan)


def goes_on(release: Release) -> str:
    """Describe the effect of a promotion by one step.

    Args:
        release: the release now.
    """
    _some(release)
    steps, step = release.steps, release.step
    if release.phase == ROLLED_BACK:
        return f"begins again with step 1 of {len(steps)}, {step_words(steps[0])}"
    if release.reason == "CapacityShort" and not release.granted:
        raise CommandError(
            f"nothing to promote: {release.candidate} gets the weight once it has pods for it ({release.why})"
        )
    if step >= len(steps):
        return f"{release.candidate} gets all requests"
    here = f"step {step + 1} of {len(steps)}, {step_words(steps[step])}"
    following = step_words(steps[step + 1]) if step + 1 < len(steps) else release.last_words
    place = f"goes on with {here}" if resumes(release) else f"leaves {here}, then {following}"
    if release.phase == PAUSED and release.reason == FAILED:
        place += "; it is judged by the requests from then on, whatever was counted before"
    return place


def resumes(release: Release) -> bool:
    """Whether a promotion goes on with the current step, and does not leave it.

    Args:
        release: the release now, at one of its steps.
    """
    if release.phase != PAUSED:
        return False
    if release.reason == FAILED:
        return not release.granted
    return bool(release.steps[release.step].get("pause") != "Manual")


def label(release: Release) -> str:
    """Name the effect of a promotion by one step in a few words, as on a button.

    Args:
        release: the release now.
    """
    if release.phase == ROLLED_BACK:
        return "Begin again"
    ahead = release.steps[release.step + 1 :]
    if release.step < len(release.steps) and resumes(release):
        return "Resume"
    if ahead and "setWeight" in ahead[0]:
        return f"Promote to {ahead[0]['setWeight']} %"
    last = release.step >= len(release.steps) or release.promotes_itself
    return f"Next: {step_words(ahead[0])}" if ahead else "Promote to 100 %" if last else "End the last step"


def all_at_once(release: Release) -> str:
    """Describe the effect of a full promotion.

    Args:
        release: the release now.
    """
    _some(release)
    return f"{release.candidate} gets all requests, once its ready pods can take them"


def _some(release: Release) -> None:
    if release.phase == PROMOTED:
        raise CommandError(f"nothing to promote: {release.candidate} has all requests already")
    if release.reason == "CandidateMissing":
        raise CommandError(f"nothing to promote: there is no ModelBackend {release.candidate}")
    if release.promoting:
        raise CommandError(f"nothing to promote: promotion is under way ({release.why})")
