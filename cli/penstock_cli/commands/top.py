"""Backends and workloads with injected sidecars, those with the most load first, as their pods reported it.

HELD are requests that routers hold until a pod has room for them; QUEUED wait in pods. REFUSED and FAILED
are of the last minute, ERRORS says why: `kubectl penstock why` explains them. RESTARTS are those of the
model's containers in the pods that there are.

The numbers are those of the statuses of ModelBackends and, for workloads, of their BatchPolicies, which the
operator refreshes within three seconds from the pods' reports; with very many busy ones later. So it needs no
right to reach pods or the operator. A workload whose policy is not there has no such status: it is listed if
the user may list pods.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from penstock_cli import injected
from penstock_cli.cluster import Cluster, ForbiddenError, Resource
from penstock_cli.text import Screen, by_reason, fitted, narrowed

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
        policies = cluster.list("BatchPolicy", everywhere=everywhere)
        try:
            pods = cluster.list_core("pod", injected.LABEL, everywhere=everywhere)
        except ForbiddenError:
            pods = []
        lines = page(backends, policies, pods, everywhere=everywhere, width=screen.width)
        screen.show(lines, anew=again)
        if not again:
            return 0
        time.sleep(arguments.every)


def page(
    backends: Sequence[Resource],
    policies: Sequence[Resource] = (),
    pods: Sequence[Resource] = (),
    *,
    everywhere: bool,
    width: int,
) -> list[str]:
    """Make a table of the backends, and of the workloads whose pods name a policy.

    Args:
        backends: ModelBackends.
        policies: BatchPolicies.
        pods: those with the label of injection.
        everywhere: whether to show names with their namespace.
        width: characters of a line.
    """
    # NB: while a rollout changes a workload's policy, two policies have it, with the load of all its pods.
    workloads = {
        (policy["metadata"]["namespace"], workload["name"]): workload
        for policy in policies
        for workload in (policy.get("status") or {}).get("workloads") or ()
    }
    there = {(policy["metadata"]["namespace"], policy["metadata"]["name"]) for policy in policies}
    unseen = {
        key: (len(with_sidecar), with_sidecar[0]["metadata"]["labels"][injected.LABEL])
        for key, own in injected.by_workload(pods).items()
        if key not in workloads and (with_sidecar := [pod for pod in own if injected.has_sidecar(pod)])
    }
    if not backends and not workloads and not unseen:
        return ["There are no ModelBackends and no injected workloads."]
    loads = [(_load(backend), _row(backend, everywhere=everywhere)) for backend in backends]
    for (namespace, name), workload in workloads.items():
        shown = f"{namespace}/{name}" if everywhere else name
        load = workload.get("load") or {}
        loads.append((_items(load), _cells(shown, str(workload.get("pods", 0)), load)))
    notes = []
    for (namespace, name), (count, policy) in unseen.items():
        shown = f"{namespace}/{name}" if everywhere else name
        loads.append((0, (shown, str(count), *["-"] * (len(HEAD) - 2))))
        if (namespace, policy) not in there:
            notes.append(
                f"{shown}: its queues would stand in the status of BatchPolicy {policy}, which is not there; "
                "one with the spec {} changes nothing else"
            )
    busiest = sorted(loads, key=lambda pair: pair[0], reverse=True)
    return [*narrowed(HEAD, [row for _, row in busiest], width, spare=_SPARE), *fitted(notes, width)]


def _row(backend: Resource, *, everywhere: bool) -> tuple[str, ...]:
    metadata, spec, status = backend["metadata"], backend["spec"], backend.get("status") or {}
    load, recommendation = status.get("load") or {}, status.get("recommendation") or {}
    wanted = spec.get("replicas", 1)
    return _cells(
        f"{metadata['namespace']}/{metadata['name']}" if everywhere else metadata["name"],
        f"{status.get('readyReplicas') or 0}/{wanted}",
        load,
        held=str(_held(status)) if recommendation else "-",
        refused=str(load.get("refusedPerMinute", 0)),
        failed=str(load.get("failedPerMinute", 0)),
        restarts=str((status.get("model") or {}).get("restarts") or 0),
        recommended=str(status.get("desiredReplicas", wanted)) if recommendation else "-",
        verdict=recommendation.get("verdict", "-"),
    )


def _cells(name: str, pods: str, load: Resource, **more: str) -> tuple[str, ...]:
    """A line of the table; what a workload without routers of Penstock does not have is a dash."""
    return (
        name,
        pods,
        more.get("held", "-"),
        str(load.get("queued", 0)),
        str(load.get("ongoing", 0)),
        f"{load.get('oldestAgeMs', 0) / 1000:.1f}s",
        str(load.get("arrivalsPerMinute", 0)),
        more.get("refused", "-"),
        more.get("failed", "-"),
        more.get("restarts", "-"),
        f"{load.get('batchFillPercent', 0)}%",
        more.get("recommended", "-"),
        more.get("verdict", "-"),
        by_reason(load) or "-",
    )


def _load(backend: Resource) -> int:
    status = backend.get("status") or {}
    return _held(status) + _items(status.get("load") or {})


def _items(load: Resource) -> int:
    return int(load.get("queued", 0)) + int(load.get("ongoing", 0))


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
