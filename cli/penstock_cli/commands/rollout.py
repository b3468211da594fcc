"""A release on one screen: its steps, weights, verdicts, pods, and last Events.

With --watch it is updated until the release ends: the exit code is then 0 where the candidate was
promoted and 1 where it was rolled back. Without a terminal --watch prints a line for each change, and the
whole at the end. Who may not read Events, or backends, sees the rest.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock_cli.cluster import Cluster, CommandError, NotFoundError, Resource, event_time
from penstock_cli.release import PAUSED, PROMOTED, ROLLED_BACK, Release, step_words
from penstock_cli.text import Screen, fitted, folded, share_bar, span, table, when
from penstock_wire import durations

EVENTS = 6
EVENT_LINES = 2
"""The most lines of one Event; `kubectl events` shows all of it."""
EVERY = 2.0
PATIENCE = 60.0
"""Seconds without an answer of the apiserver that --watch tolerates."""
_BAR = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("split", help="name of the TrafficSplit")
    parser.add_argument("-w", "--watch", action="store_true", help="until the release ends")


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Print the release; with --watch, until it ends."""
    looked = look(cluster, arguments.split)
    if not arguments.watch:
        screen.show(page(looked, now=datetime.now(UTC), width=screen.width))
        return 0
    shown = ""
    answered = time.monotonic()
    while True:
        now = datetime.now(UTC)
        ended = looked.release.ended
        if screen.live or ended:
            screen.show(page(looked, now=now, width=screen.width), anew=screen.live, last=ended)
        elif (line := _line(looked.release)) != shown:
            screen.show([f"{now:%H:%M:%S}  {line}"])
            shown = line
        if ended:
            return 0 if looked.release.phase == PROMOTED else 1
        time.sleep(EVERY)
        try:
            looked = look(cluster, arguments.split)
            answered = time.monotonic()
        except NotFoundError:
            raise
        except CommandError:
            if time.monotonic() > answered + PATIENCE:
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """All that `rollout` shows of a release at one moment.

    Args:
        release: the release.
        backends: the stable and the candidate backend by name, or the error of reading each.
        events: the split's Events, oldest first, or the error of reading them.
    """

    release: Release
    backends: dict[str, Resource | CommandError]
    events: list[Resource] | CommandError


def look(cluster: Cluster, split: str) -> Looked:
    """Read a release, its backends and its Events.

    Args:
        cluster: the cluster.
        split: name of the TrafficSplit.

    Raises:
        CommandError: the split cannot be read, or has no strategy.
    """
    release = Release.of(cluster.get("TrafficSplit", split))
    backends: dict[str, Resource | CommandError] = {}
    for name in (release.stable, release.candidate):
        try:
            backends[name] = cluster.get("ModelBackend", name)
        except CommandError as error:
            backends[name] = error
    try:
        events: list[Resource] | CommandError = cluster.events("TrafficSplit", split)
    except CommandError as error:
        events = error
    return Looked(release=release, backends=backends, events=events)


def page(looked: Looked, *, now: datetime, width: int) -> list[str]:
    """Make the lines of the page.

    Args:
        looked: the result of `look`.
        now: the time.
        width: characters of a line; longer messages are folded.
    """
    release = looked.release
    lines = fitted([f"{release.name}: {release.summary}"], width)
    if release.why:
        lines += folded(_without_verdicts(release), width, indent="  ")
    if not release.current:
        lines.append("  NB: the status is older than the last change of the spec")
    return [
        *lines,
        *_times(release, now=now),
        "",
        *table(("", "STEP", "", "TIME"), steps(release, now=now)),
        "",
        *_weights(release, width=width),
        "",
        *_pods(looked),
        "",
        *_verdicts(release, width=width),
        "",
        *_events(looked, now=now, width=width),
    ]


def _without_verdicts(release: Release) -> str:
    """The cause of the release's state, without the metrics' messages that are shown with the verdicts."""
    why = release.why
    for each in judged(release):
        if each.get("message"):
            why = why.replace(f"{each['metric']}: {each['message']}", f"{each['metric']} (below)")
    return why


def judged(release: Release) -> Sequence[dict[str, Any]]:
    """The verdicts of a release's analysis, as the status has them.

    Args:
        release: the release.
    """
    return (release.status.get("verdicts") or ()) if release.stored else ()


def _line(release: Release) -> str:
    return f"{release.summary}  {release.why}".rstrip()


def _times(release: Release, *, now: datetime) -> list[str]:
    started = when(release.stored.get("started"))
    if started is None:
        return []
    if release.phase in (PROMOTED, ROLLED_BACK):
        ended = when(release.stored.get("ended"))
        if ended is None:
            return []
        took = span((ended - started).total_seconds())
        return [f"  ended {span((now - ended).total_seconds())} ago, took {took}"]
    return [f"  started {span((now - started).total_seconds())} ago"]


def steps(release: Release, *, now: datetime) -> list[tuple[str, str, str, str]]:
    """The steps of a release, each as a mark, its number, its words, and the time spent in it.

    Args:
        release: the release.
        now: the time.
    """
    over = release.phase == PROMOTED
    rows: list[tuple[str, str, str, str]] = []
    for index, step in enumerate(release.steps):
        here = bool(release.phase) and index == release.step and not over
        done = over or index < release.step
        mark = ("✗" if release.phase == ROLLED_BACK else "▶") if here else "✓" if done else " "
        rows.append((mark, str(index + 1), step_words(step), _elapsed(release, step, now) if here else ""))
    after = bool(release.phase) and release.step == len(release.steps) and not over
    mark = "✓" if over else "▶" if after else " "
    rows.append((mark, "", release.last_words, _elapsed(release, {}, now) if after else ""))
    return rows


def _elapsed(release: Release, step: dict[str, Any], now: datetime) -> str:
    """The time spent in the current step, in words."""
    began = when(release.status.get("stepStarted"))
    if began is None or release.phase == ROLLED_BACK:
        return "rolled back here" if release.phase == ROLLED_BACK else ""
    passed = span((now - began).total_seconds())
    paused = ", paused" if release.phase == PAUSED else ""
    try:
        whole = durations.parse_ms(step.get("pause", "")) / 1000
    except ValueError:
        return passed + paused
    return f"{passed} of {span(whole)}{paused}"


def shares(release: Release) -> dict[str, float | None]:
    """The candidate's percent of the requests as desired, applied and observed; None where it is not known.

    Args:
        release: the release.
    """
    entries = {entry["name"]: entry for entry in release.status.get("weights") or ()}
    applied = {name: entry["applied"] for name, entry in entries.items() if entry.get("applied") is not None}
    of_all = sum(applied.values())
    return {
        "desired": float(release.weight) if release.stored else None,
        "applied": 100 * applied[release.candidate] / of_all
        if of_all and release.candidate in applied
        else None,
        "observed": _percent(entries.get(release.candidate, {}).get("observed")),
    }


def _weights(release: Release, *, width: int) -> list[str]:
    rows = [
        (name, share_bar(share, width=_BAR), f"{share:.3g} %") if share is not None else (name, "-", "")
        for name, share in shares(release).items()
    ]
    copies = release.stored.get("mirror", 0)
    mirrors = {entry["name"]: entry.get("summary") for entry in release.status.get("mirrors") or ()}
    came = mirrors.get(release.candidate)
    note = f"and copies of {copies} % of the requests" + (f": {came}" if came else "")
    return [
        *table(("WEIGHT", f"of {release.candidate}", ""), rows),
        *(fitted([note], width) if copies else []),
    ]


def _percent(text: str | None) -> float | None:
    try:
        percent = float((text or "").removesuffix("%"))
    except ValueError:
        return None
    return percent if math.isfinite(percent) else None


def _pods(looked: Looked) -> list[str]:
    release = looked.release
    needs = {
        release.stable: f"{release.stored['replicas']} for all requests"
        if release.stored.get("replicas")
        else "-",
        release.candidate: f"{release.needed} for {release.target} %" if release.stored else "-",
    }
    rows = []
    for name, role in ((release.stable, "stable"), (release.candidate, "candidate")):
        backend = looked.backends[name]
        if isinstance(backend, CommandError):
            ready, asked = ("-", "there is none" if isinstance(backend, NotFoundError) else str(backend))
        else:
            ready = str((backend.get("status") or {}).get("readyReplicas") or 0)
            asked = str(backend["spec"].get("replicas", 1))
        rows.append((name, role, ready, asked, needs[name]))
    return table(("BACKEND", "", "READY", "ASKED FOR", "NEEDED"), rows)


def _verdicts(release: Release, *, width: int) -> list[str]:
    rows = [(each["metric"], each["verdict"], each.get("message", "")) for each in judged(release)]
    if not rows:
        return ["Nothing was judged." if release.ended else "Nothing has been judged yet."]
    return table(("METRIC", "VERDICT", ""), rows, width=width)


def _events(looked: Looked, *, now: datetime, width: int) -> list[str]:
    events, release = looked.events, looked.release
    if isinstance(events, CommandError):
        return [f"({events})"]
    if not events:
        return ["There are no Events."]
    rows = []
    for event in reversed(events[-EVENTS:]):
        at = when(event_time(event))
        ago = f"{span((now - at).total_seconds())} ago" if at is not None else "-"
        reason, message = event.get("reason", ""), event.get("message", "")
        again = bool(message) and (reason, message) == (release.reason, release.stored.get("message"))
        rows.append((ago, reason, "as above" if again else message))
    return table(("EVENT", "", ""), rows, width=width, most=EVENT_LINES)
