"""All resources of a namespace, each with what is wrong with it or worth knowing, on one screen.

A cause stands once, at the resource where it arises, with all conditions that come of it; other resources
refer to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from penstock_cli import causes, injected
from penstock_cli.cluster import PLURALS, Cluster, ForbiddenError, Resource
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
    everywhere = arguments.all_namespaces
    by_kind = {kind: cluster.list(kind, everywhere=everywhere) for kind in PLURALS}
    workloads, services, hidden = {}, [], []
    try:
        workloads = injected.by_workload(cluster.list_core("pod", injected.LABEL, everywhere=everywhere))
        services = cluster.list_core("service", everywhere=everywhere) if workloads else []
    except ForbiddenError as error:
        what = "Services past their sidecars" if workloads else f"Workloads with the label {injected.LABEL}"
        hidden = [f"{what} are not shown: {error}"]
    if not any(by_kind.values()) and not workloads:
        where = "any namespace" if arguments.all_namespaces else f"namespace {cluster.namespace}"
        screen.show([f"There are no resources of Penstock in {where}.", *hidden])
        return 0
    now = datetime.now(UTC)
    lines = overview(
        by_kind,
        workloads,
        services,
        now=now,
        everywhere=arguments.all_namespaces,
        all_conditions=arguments.conditions,
        width=screen.width,
    )
    screen.show([*lines, *fitted(hidden, screen.width)])
    return 0


def overview(
    by_kind: dict[str, list[Resource]],
    workloads: dict[tuple[str, str], list[Resource]] | None = None,
    services: Sequence[Resource] = (),
    *,
    now: datetime,
    everywhere: bool,
    all_conditions: bool,
    width: int,
) -> list[str]:
    """Make a table of all resources, each with its conditions below it.

    Args:
        by_kind: resources by kind.
        workloads: pods with the label of injection, by namespace and workload.
        services: all Services of their namespaces.
        now: the time.
        everywhere: whether names are shown with their namespace.
        all_conditions: whether conditions that are well are shown too.
        width: characters of a line; longer lines are wrapped.
    """
    rows, below, shown = [], [], causes.Shown()
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
                    ", ".join(details(kind, resource)),
                    span((now - created).total_seconds()) if created is not None else "-",
                )
            )
            known = {"kind": kind, **resource}
            notes = causes.lines(known, f"{kind}/{name}", shown, everything=all_conditions)
            copies = status.get("mirrored")
            below.append([*notes, *([f"mirrors: {copies}"] if copies else [])])
    for (namespace, name), pods in (workloads or {}).items():
        oldest = when(min(pod["metadata"].get("creationTimestamp") or "" for pod in pods))
        age = span((now - oldest).total_seconds()) if oldest is not None else "-"
        rows.append((*injected.row(f"{namespace}/{name}" if everywhere else name, pods), age))
        near = [service for service in services if service["metadata"]["namespace"] == namespace]
        known_policies = {
            policy["metadata"]["name"]
            for policy in by_kind["BatchPolicy"]
            if policy["metadata"]["namespace"] == namespace
        }
        below.append([*injected.notes(pods, near, known_policies)])
    head, *lines = table(("RESOURCE", "READY", "REASON", "", "AGE"), rows)
    if max(map(len, (head, *lines))) > width:
        head, *lines = table(
            ("RESOURCE", "READY", "REASON", "AGE"), [(*cells, age) for *cells, _, age in rows]
        )
        below = [[*filter(None, [row[3]]), *notes] for row, notes in zip(rows, below, strict=True)]
    page = [head]
    for line, notes in zip(lines, below, strict=True):
        page += [line, *fitted((f"    {note}" for note in notes), width)]
    return page


def details(kind: str, resource: Resource) -> Iterator[str]:
    """Yield the details of a resource that its kind shows, in a few words each.

    Args:
        kind: such as ModelBackend.
        resource: as the API has it.
    """
    spec, status = resource.get("spec") or {}, resource.get("status") or {}
    if kind == "ModelBackend":
        wanted, ready = spec.get("replicas", 1), status.get("readyReplicas") or 0
        yield f"{ready} of {wanted} ready"
        desired = status.get("desiredReplicas", wanted)
        if desired != wanted:
            yield f"{desired} recommended"
        if progress := (status.get("artifact") or {}).get("progress"):
            yield f"downloads {progress}"
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
    elif kind == "BatchPolicy":
        users = [*(status.get("backends") or ()), *(status.get("workloads") or ())]
        if users:
            yield "of " + ", ".join(user["name"] for user in users)
