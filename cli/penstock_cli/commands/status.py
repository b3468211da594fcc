"""All resources of a namespace, each with what is wrong with it or worth knowing, on one screen.

A cause stands once, at the resource where it arises, with all conditions that come of it; other resources
refer to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime

from penstock_cli import causes
from penstock_cli.cluster import PLURALS, Cluster, Resource
from penstock_cli.release import Release
from penstock_cli.text import Screen, by_reason, fitted, span, table, when


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument(
        "-c", "--conditions", action="store_true", help="all conditions, also those that are well"
    )


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Print the overview; the exit code is 0 whatever the state of the resources."""
    by_kind = {kind: cluster.list(kind, everywhere=arguments.all_namespaces) for kind in PLURALS}
    if not any(by_kind.values()):
        where = "any namespace" if arguments.all_namespaces else f"namespace {cluster.namespace}"
        screen.show([f"There are no resources of Penstock in {where}."])
        return 0
    now = datetime.now(UTC)
    screen.show(
        overview(
            by_kind,
            now=now,
            everywhere=arguments.all_namespaces,
            all_conditions=arguments.conditions,
            width=screen.width,
        )
    )
    return 0


def overview(
    by_kind: dict[str, list[Resource]], *, now: datetime, everywhere: bool, all_conditions: bool, width: int
) -> list[str]:
    """Make a table of all resources, each with its conditions below it.

    Args:
        by_kind: resources by kind.
        now: the time.
        everywhere: whether names are shown with their namespace.
        all_conditions: whether conditions that are well are shown too.
        width: characters of a line; longer lines are wrapped.
    """
    rows, below, said = [], [], causes.Said()
    for kind, resources in by_kind.items():
        for resource in resources:
            metadata, status = resource["metadata"], resource.get("status") or {}
            name = f"{metadata['namespace']}/{metadata['name']}" if everywhere else metadata["name"]
            conditions = status.get("conditions") or ()
            ready: Resource = next((each for each in conditions if each["type"] == "Ready"), {})
            created = when(metadata.get("creationTimestamp"))
            rows.append(
                (
                    f"{kind}/{name}",
                    ready.get("status", "-"),
                    ready.get("reason", "-"),
                    _detail(kind, resource),
                    span((now - created).total_seconds()) if created is not None else "-",
                )
            )
            known = {"kind": kind, **resource}
            notes = causes.lines(known, f"{kind}/{name}", said, everything=all_conditions)
            copies = status.get("mirrored")
            below.append([*notes, *([f"mirrors: {copies}"] if copies else [])])
    head, *lines = table(("RESOURCE", "READY", "REASON", "", "AGE"), rows)
    if max(map(len, (head, *lines))) > width:
        head, *lines = table(
            ("RESOURCE", "READY", "REASON", "AGE"), [(*cells, age) for *cells, _, age in rows]
        )
        below = [[*filter(None, [row[3]]), *notes] for row, notes in zip(rows, below, strict=True)]
    shown = [head]
    for line, notes in zip(lines, below, strict=True):
        shown += [line, *fitted((f"    {note}" for note in notes), width)]
    return shown


def _detail(kind: str, resource: Resource) -> str:
    return ", ".join(_details(kind, resource))


def _details(kind: str, resource: Resource) -> Iterator[str]:
    """Yield the details of a resource that its kind shows, in a few words each."""
    spec, status = resource.get("spec") or {}, resource.get("status") or {}
    if kind == "ModelBackend":
        wanted, ready = spec.get("replicas", 1), status.get("readyReplicas") or 0
        yield f"{ready} of {wanted} ready"
        desired = status.get("desiredReplicas", wanted)
        if desired != wanted:
            yield f"{desired} recommended"
        load = status.get("load") or {}
        yield f"{load.get('queued', 0)} queued, {load.get('ongoing', 0)} ongoing"
        counts = [(load.get(f"{kind}PerMinute", 0), kind) for kind in ("refused", "failed")]
        if bad := ", ".join(f"{count} {kind}" for count, kind in counts if count):
            yield f"{bad} of {load.get('requestsPerMinute', 0)} a minute ({by_reason(load)})"
        if restarts := (status.get("model") or {}).get("restarts"):
            yield f"{restarts} restarts of the model"
    elif kind == "ModelEndpoint":
        shares = status.get("shares") or spec["backend"]
        yield f"to {shares}" if "," in shares else f"to {shares.removesuffix(' 100%')}"
    elif kind == "TrafficSplit":
        release = Release.of(resource) if "strategy" in spec else None
        weights = {backend["name"]: backend.get("weight", 0) for backend in spec.get("backends") or ()}
        if release is not None and release.stored:
            weights |= {release.stable: 100 - release.weight, release.candidate: release.weight}
        shares = " ".join(f"{name}:{weight}" for name, weight in weights.items())
        yield f"{spec.get('endpoint')} to {shares}"
        if release is not None:
            yield f"release {release.summary}"
    elif kind == "BatchPolicy" and status.get("backends"):
        yield "of " + ", ".join(backend["name"] for backend in status["backends"])
