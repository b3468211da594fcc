"""The backends with the most load first: their queues as the pods reported them, at most some seconds ago.

HELD are requests that routers hold until a pod has room for them; QUEUED wait in pods. REFUSED and FAILED
are of the last minute, ERRORS says why: `kubectl penstock why` explains them. RESTARTS are those of the
model's containers in the pods that there are.

The numbers are those of the backends' statuses, which the operator refreshes within three seconds from the
pods' reports; with very many busy backends later. So it needs no right to reach pods or the operator.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from penstock_cli.cluster import Cluster, Resource
from penstock_cli.text import Screen, by_reason, narrowed

HEAD = (
    *("BACKEND", "PODS", "HELD", "QUEUED", "ONGOING", "OLDEST", "PER-MIN", "REFUSED", "FAILED", "RESTARTS"),
    *("FILL", "RECOMMENDED", "VERDICT", "ERRORS"),
)
_SPARE = (
    *("ERRORS", "FILL", "RESTARTS", "RECOMMENDED", "OLDEST", "PER-MIN", "ONGOING", "HELD", "FAILED"),
    "REFUSED",
)
"""Columns that a narrow terminal does not show, the first of them first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument(
        "--once", action="store_true", help="print once and end; so it does without a terminal"
    )
    parser.add_argument(
        "--every",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="time between two updates (default 2)",
    )


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Print the table; on a terminal, redraw it until Ctrl-C."""
    everywhere, again = arguments.all_namespaces, screen.live and not arguments.once
    while True:
        backends = cluster.list("ModelBackend", everywhere=everywhere)
        lines = page(backends, everywhere=everywhere, width=screen.width)
        screen.show(lines, anew=again)
        if not again:
            return 0
        time.sleep(arguments.every)


def page(backends: Sequence[Resource], *, everywhere: bool, width: int) -> list[str]:
    """Make a table of the backends.

    Args:
        backends: ModelBackends.
        everywhere: whether to show names with their namespace.
        width: characters of a line.
    """
    if not backends:
        return ["There are no ModelBackends."]
    busiest = sorted(backends, key=_load, reverse=True)
    rows = [_row(backend, everywhere=everywhere) for backend in busiest]
    return narrowed(HEAD, rows, width, spare=_SPARE)


def _row(backend: Resource, *, everywhere: bool) -> tuple[str, ...]:
    metadata, spec, status = backend["metadata"], backend["spec"], backend.get("status") or {}
    load, recommendation = status.get("load") or {}, status.get("recommendation") or {}
    wanted = spec.get("replicas", 1)
    return (
        f"{metadata['namespace']}/{metadata['name']}" if everywhere else metadata["name"],
        f"{status.get('readyReplicas') or 0}/{wanted}",
        str(_held(status)) if recommendation else "-",
        str(load.get("queued", 0)),
        str(load.get("ongoing", 0)),
        f"{load.get('oldestAgeMs', 0) / 1000:.1f}s",
        str(load.get("arrivalsPerMinute", 0)),
        str(load.get("refusedPerMinute", 0)),
        str(load.get("failedPerMinute", 0)),
        str((status.get("model") or {}).get("restarts") or 0),
        f"{load.get('batchFillPercent', 0)}%",
        str(status.get("desiredReplicas", wanted)) if recommendation else "-",
        recommendation.get("verdict", "-"),
        by_reason(load) or "-",
    )


def _load(backend: Resource) -> int:
    status = backend.get("status") or {}
    load = status.get("load") or {}
    return _held(status) + int(load.get("queued", 0)) + int(load.get("ongoing", 0))


def _held(status: Resource) -> int:
    """The requests that routers hold; the status has them only with the recommendation."""
    inputs = (status.get("recommendation") or {}).get("inputs") or {}
    return int(inputs.get("held", 0))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.5 to 3600, found {text!r}")
    return seconds
