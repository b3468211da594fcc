"""All resources of a namespace, each with what is wrong with it or worth knowing, on one screen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from penstock_cli.cluster import PLURALS, Cluster, Resource
from penstock_cli.release import Release
from penstock_cli.text import Screen, span, table, when

_WELL_FALSE = frozenset({"Reconciling", "Stalled"})
"""Conditions that are False where all is well."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument(
        "-c", "--conditions", action="store_true", help="all conditions, also those that are well"
    )


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Print it; the exit code is 0 whatever the resources are like."""
    by_kind = {kind: cluster.list(kind, everywhere=arguments.all_namespaces) for kind in PLURALS}
    if not any(by_kind.values()):
        where = "any namespace" if arguments.all_namespaces else f"namespace {cluster.namespace}"
        screen.show([f"There are no resources of Penstock in {where}."])
        return 0
    now = datetime.now(UTC)
    screen.show(
        overview(by_kind, now=now, everywhere=arguments.all_namespaces, all_conditions=arguments.conditions)
    )
    return 0


def overview(
    by_kind: dict[str, list[Resource]], *, now: datetime, everywhere: bool, all_conditions: bool
) -> list[str]:
    """A table of all resources, each with its conditions below it.

    Args:
        by_kind: resources by kind.
        now: the time.
        everywhere: whether names are shown with their namespace.
        all_conditions: whether those that are well are shown, too.
    """
    rows, below = [], []
    for kind, resources in by_kind.items():
        for resource in resources:
            metadata, conditions = resource["metadata"], _conditions(resource)
            name = f"{metadata['namespace']}/{metadata['name']}" if everywhere else metadata["name"]
            ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
            created = when(metadata.get("creationTimestamp"))
            rows.append(
                (
                    f"{kind}/{name}",
                    ready["status"] if ready is not None else "-",
                    ready["reason"] if ready is not None else "-",
                    _detail(kind, resource),
                    span((now - created).total_seconds()) if created is not None else "-",
                )
            )
            below.append(
                [_line(condition) for condition in conditions if all_conditions or _tells(condition)]
            )
    head, *lines = table(("RESOURCE", "READY", "REASON", "", "AGE"), rows)
    shown = [head]
    for line, notes in zip(lines, below, strict=True):
        shown += [line, *(f"    {note}" for note in notes)]
    return shown


def _conditions(resource: Resource) -> list[dict[str, Any]]:
    return list((resource.get("status") or {}).get("conditions") or ())


def _tells(condition: dict[str, Any]) -> bool:
    """Whether it is not as it is where all is well, or has something to say all the same."""
    well = "False" if condition["type"] in _WELL_FALSE else "True"
    return condition["status"] != well or bool(condition.get("message"))


def _line(condition: dict[str, Any]) -> str:
    text = f": {condition['message']}" if condition.get("message") else ""
    return f"{condition['type']}={condition['status']} {condition['reason']}{text}"


def _detail(kind: str, resource: Resource) -> str:
    return ", ".join(_details(kind, resource))


def _details(kind: str, resource: Resource) -> Iterator[str]:
    """What its kind shows of it, in a few words."""
    spec, status = resource.get("spec") or {}, resource.get("status") or {}
    if kind == "ModelBackend":
        wanted, ready = spec.get("replicas", 1), status.get("readyReplicas") or 0
        yield f"{ready} of {wanted} ready"
        desired = status.get("desiredReplicas", wanted)
        if desired != wanted:
            yield f"{desired} recommended"
        load = status.get("load") or {}
        yield f"{load.get('queued', 0)} queued, {load.get('ongoing', 0)} ongoing"
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
