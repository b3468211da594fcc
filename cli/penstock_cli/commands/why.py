"""Why a backend has its number of replicas, and why requests were refused or failed.

The computation in words, its terms, the last changes; and the errors of the last minute, each reason with
what it means and what helps.

All of it stands in the backend's status: the operator shows there what its autoscaler says, and keeps its
last ten changes. The plot is made of these changes: it goes back as far as they do, and what others wrote
through `/scale` is not in it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock_cli.cluster import Cluster, Resource
from penstock_cli.text import Screen, bars, fitted, last_crash, span, table, when
from penstock_wire import durations

VERDICTS = {
    "Scale": "the load asks for another number; if it may not go all the way yet, the line above says why",
    "Steady": "the load asks for the current number, within the limits",
    "Limited": "HELD BACK by maxReplicas: the load asks for more",
    "Schedule": "HELD by the limits of a schedule that is in force now",
    "Release": "RAISED by a release, which needs its pods before it gets, or while it may get back, requests",
    "Delayed": "HELD BACK for now: replicas may not fall yet",
    "Panic": "HELD BACK for now: a burst was within the last stableWindow, and nothing is lowered so soon",
    "FirstLook": "HELD BACK for now: the operator lowers nothing before it has watched for one stableWindow",
    "ShortOfProcessors": "HELD BACK for now: pods start step by step while processors are short",
    "NoHolder": "no endpoint sends it requests, and none would wake it: 1 stays, or a 0 by hand",
    "NoReports": "the number is KEPT, within its limits: no load is known while no pod has been ready",
    "TooManyUnknown": "the number is KEPT, within its limits: half of the pods or more do not report",
}
TERMS = {
    "load": "the average, over the window that counts, of items queued, with the model and held by routers",
    "held": "requests that routers hold for it now",
    "targetLoad": "items that one pod should have",
    "byLoad": "replicas that the load asks for",
    "byRate": "replicas that the arrivals ask for",
    "arrivalsPerMinute": "items that arrive in a minute",
    "expectedPerMinute": "the same by the time that pods are ready which start now",
    "reservePerMinute": "the greatest rise within such a time lately, which a fall must leave room for",
    "batchSize": "items of the largest batch that keeps latencyObjective; without one, maxBatchSize",
    "batchMs": "milliseconds that such a batch takes",
    "refused": "items refused for a full queue just before",
    "wanted": "replicas that these ask for, before any limit",
    "readyPods": "pods whose reports count",
    "silentPods": "pods that stopped reporting, counted with their last load",
    "processorWaitPercent": "percent of the time without a processor, of the pod that waits most for one",
}
"""Explanations of terms; other terms, of a newer operator, are shown by name alone."""
COST_TERMS = {
    "item": "their number",
    "cost": "the sum of their costs",
    "padded": "their number times the largest cost",
    "square": "their number times the square of the largest cost",
}
"""What the time of a batch goes by."""
REASONS = {
    "deadline": "they would have been late by latencyObjective, defaultTimeout or the caller's own timeout: "
    "more pods, or a longer objective",
    "queue_full": "maxQueuedItems waited already: more pods",
    "cold_start_full": "coldStart.maxPending waited in the router for a pod with room already: more pods",
    "not_ready": "no pod with a loaded model: see Ready and ModelLoaded",
    "model_unreachable": "the model could not be reached, or ended with them: see ModelLoaded, and its log",
    "backend_missing": "a TrafficSplit or ModelEndpoint names a backend that is not there",
    "draining": "their pod was shutting down",
    "moved": "pods handed them to each other too often",
    "no_memory": "the router's memory for bodies was full",
    "model_failed": "the model raised an error: see its log",
    "model_answer": "the model's own answer had a status of 500 or above: see its log",
    "bad_answer": "the model's answer could not be used: the body of the error says why",
    "batch_failed": "another request spoiled their batch, or the model could not answer it",
    "call_cycle": "classes called each other in a circle",
    "internal": "a defect of Penstock: its log has the traceback",
}
"""Explanations of the reasons of errors; others are shown by name alone."""

_WIDTH, _HEIGHT = 64, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("backend", help="name of the ModelBackend")


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Print the explanation."""
    backend = cluster.get("ModelBackend", arguments.backend)
    screen.show(explain(backend, now=datetime.now(UTC), width=screen.width))
    return 0


def explain(backend: Resource, *, now: datetime, width: int = 10_000) -> list[str]:
    """Explain the number of replicas, as lines of text.

    Args:
        backend: the ModelBackend.
        now: the time.
        width: characters of a line; longer lines are wrapped.
    """
    return fitted(_lines(backend, now=now, width=width), width)


def _lines(backend: Resource, *, now: datetime, width: int) -> list[str]:
    metadata, spec, status = backend["metadata"], backend["spec"], backend.get("status") or {}
    replicas, ready = spec.get("replicas", 1), status.get("readyReplicas") or 0
    many = "replica" if replicas == 1 else "replicas"
    lines = [f"{metadata['namespace']}/{metadata['name']}: {replicas} {many} asked for, {ready} ready"]
    well = _condition(status, "Ready")
    if well.get("status") == "True" and well.get("message") and well.get("reason") != "ScaledToZero":
        lines.append(f"  {well['reason']}: {well['message']}")
    if ready < replicas:
        lines += [f"  {each['reason']}: {each['message']}" for each in _not_ready(status)]
    if progress := (status.get("artifact") or {}).get("progress"):
        lines.append(f"  Coming: a pod that downloads its files, {progress}")
    if restarts := (status.get("model") or {}).get("restarts") or 0:
        lines.append(f"  The model's container was restarted {restarts} times in these pods")
    ago, how = last_crash(status, now)
    if ago:
        lines.append(f"  Its last end, {ago}: {how}")
    lines += _by_cost(spec, status)
    behind = status.get("observedGeneration") != metadata.get("generation")
    if behind:
        lines.append("NB: the status below is older than the last change of the spec")
    scaling = spec.get("autoscaling")
    if scaling is None:
        lines += ["", "It has no autoscaling: whoever writes spec.replicas, or /scale, decides."]
        return [*lines, *_errors(status, width=width)]
    lines += ["", *_now(status, scaling, now=now, width=width), "", *limits(spec)]
    lines += [
        *_conditions(status),
        *_errors(status, width=width),
        "",
        *_history(status.get("scaling") or (), replicas, now=now, width=width),
    ]
    return lines


def _by_cost(spec: dict[str, Any], status: dict[str, Any]) -> list[str]:
    """Describe what batches are by cost; nothing where their number of items decides."""
    usual = (status.get("load") or {}).get("byCost")
    if not usual:
        return []
    path = ((spec.get("batching") or {}).get("cost") or {}).get("path")
    unit = f"by {path}" if path else "in cost" if "batchPolicyRef" in spec else "bytes"
    terms = ", ".join(
        f"{each} ({COST_TERMS[each]})" if each in COST_TERMS else each for each in usual["terms"]
    )
    size = f"{usual['items']} items, {usual['cost']} {unit}, {usual['milliseconds']} ms predicted"
    off = f"{usual['errorPercent']}% off at the median"
    by_items = f"by the number of items alone {usual['errorByItemsPercent']}%"
    return [f"  Batches by cost: a usual one has {size}", f"    by {terms}: {off}, {by_items}"]


def errors(load: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The errors of the last minute, the most frequent first: reason, requests, meaning.

    Args:
        load: `status.load`.
    """
    counts = sorted((load.get("errors") or {}).items(), key=lambda error: (-error[1], error[0]))
    return [(reason, str(count), REASONS.get(reason, "")) for reason, count in counts]


def _errors(status: dict[str, Any], *, width: int) -> list[str]:
    """Explain the errors of the last minute; nothing if there were none."""
    load = status.get("load") or {}
    rows = errors(load)
    if not rows:
        return []
    refused, failed = load.get("refusedPerMinute", 0), load.get("failedPerMinute", 0)
    return [
        "",
        (
            f"Of {load.get('requestsPerMinute', 0)} requests in the last minute, {refused} were refused "
            f"and {failed} failed:"
        ),
        *(f"  {line}" for line in table(("REASON", "REQUESTS", ""), rows, width=width - 2)),
    ]


def _not_ready(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the condition with the cause why pods are not ready, if there is one."""
    ready = _condition(status, "Ready")
    return [ready] if ready.get("status") == "False" and ready.get("message") else []


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((entry for entry in status.get("conditions") or () if entry["type"] == kind), {})


def _now(status: dict[str, Any], scaling: dict[str, Any], *, now: datetime, width: int) -> list[str]:
    recommendation = status.get("recommendation")
    if recommendation is None:
        return ["The autoscaler has not said anything yet."]
    desired, since = status.get("desiredReplicas"), when(recommendation.get("since"))
    age = f", for {span((now - since).total_seconds())}" if since is not None else ""
    by = "; another scaler is to write it (mode External)" if scaling.get("mode") == "External" else ""
    active = _condition(status, "ScalingActive")
    if active.get("status") == "False":
        by = f"; it does not write that ({active['reason']})"
    verdict = recommendation.get("verdict", "")
    lines = [
        f"The autoscaler recommends {desired}{age}{by}:",
        f"  {recommendation.get('message', '')}",
        f"  {verdict}: {VERDICTS.get(verdict, 'see status.recommendation.verdict in the reference')}"
        + _until_fall(status, scaling, since, now=now),
    ]
    rows = terms(recommendation.get("inputs") or {})
    return [*lines, "", *(f"  {line}" for line in table(("TERM", "VALUE", ""), rows, width=width - 2))]


def _until_fall(
    status: dict[str, Any], scaling: dict[str, Any], since: datetime | None, *, now: datetime
) -> str:
    """Say how long a decrease still waits, where its end is known; else nothing.

    With targetLoad a decrease waits for downscaleDelay alone, from when as many were last wanted: that is
    when the verdict became Delayed, or before. The last replica can wait for a router instead.
    """
    delayed = status["recommendation"].get("verdict") == "Delayed" and status.get("desiredReplicas", 0) > 1
    if not delayed or "targetLoad" not in scaling or "downscaleDelay" not in scaling or since is None:
        return ""
    left = durations.parse_ms(scaling["downscaleDelay"]) / 1000 - max((now - since).total_seconds(), 0.0)
    return f"; in {span(left)} at the latest, if no more are wanted until then" if left > 0 else ""


def terms(inputs: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The terms of a decision in the order of its computation, unknown ones last: words, value, meaning.

    Args:
        inputs: `status.recommendation.inputs`.
    """
    order = list(TERMS)
    # Without targetLoad, a pod's load is not computed at zero replicas.
    shown = [pair for pair in inputs.items() if pair != ("targetLoad", 0)]
    shown.sort(key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))
    return [(_words(name), str(value), TERMS.get(name, "")) for name, value in shown]


def _words(name: str) -> str:
    """Split a name into words: `targetLoad` becomes `target load`."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda capital: f" {capital[1].lower()}", name)


def limits(spec: dict[str, Any]) -> list[str]:
    """Describe the user's settings that affect the computation, of `autoscaling` and other fields.

    Args:
        spec: a ModelBackend's, with autoscaling.
    """
    scaling, batching = spec["autoscaling"], spec.get("batching") or {}
    shown = {name: value for name, value in scaling.items() if not isinstance(value, dict | list)}
    if "latencyObjective" in batching:
        shown["latencyObjective"] = batching["latencyObjective"]
    if "batchPolicyRef" in spec:
        shown["batchPolicyRef"] = spec["batchPolicyRef"]
    after = (scaling.get("scaleToZero") or {}).get("after")
    described = ", ".join(f"{name} {value}" for name, value in shown.items())
    lines = [f"Settings: {described}" + (f", to 0 after {after} without requests" if after else "")]
    for each in scaling.get("schedules") or ():
        limits = [f"{name} {each[name]}" for name in ("minReplicas", "maxReplicas") if name in each]
        times = f"from {each['start']} to {each['end']} ({each.get('timeZone', 'UTC')})"
        lines.append(f"Schedule {each['name']}: {', '.join(limits)}, {times}")
    return lines


def _conditions(status: dict[str, Any]) -> list[str]:
    lines = []
    for entry in status.get("conditions") or ():
        # Accepted is False if a mistake in one schedule keeps all of them from taking effect.
        refused = entry["type"] == "Accepted" and entry["status"] == "False"
        if refused or entry["type"] in ("ScalingActive", "MetricsAvailable"):
            text = f": {entry['message']}" if entry.get("message") else ""
            lines.append(f"{entry['type']} is {entry['status']} ({entry['reason']}){text}")
    return lines


def _history(changes: Sequence[dict[str, Any]], replicas: int, *, now: datetime, width: int) -> list[str]:
    """List the changes, and plot the replicas over the time that they cover."""
    # NB: by the time alone, as several within a second stay in their order.
    steps: list[tuple[datetime, int, int]] = sorted(
        (
            (at, entry["from"], entry["to"])
            for entry in reversed(changes)
            if (at := when(entry["time"])) is not None
        ),
        key=lambda step: step[0],
    )
    if not steps:
        return ["The autoscaler has changed nothing yet, or none of its changes is remembered."]
    rows = [
        (
            span((now - at).total_seconds()) + " ago",
            f"{entry['from']} → {entry['to']}",
            entry.get("reason", ""),
        )
        for entry in changes
        if (at := when(entry["time"])) is not None
    ]
    lines = [
        "Its last changes, newest first:",
        *(f"  {line}" for line in table(("WHEN", "REPLICAS", "WHY"), rows, width=width - 2)),
    ]
    first = steps[0][0]
    # A margin before the first change shows the number before it.
    length = max((now - first) * (1 + 1 / _WIDTH), timedelta(seconds=_WIDTH))
    began = now - length

    def replicas_in(column: int) -> int:
        moment = began + length * column / _WIDTH
        past = [to for changed, _, to in steps if changed <= moment]
        return past[-1] if past else steps[0][1]

    values = [replicas_in(column) for column in range(_WIDTH - 1)]
    left = f"{span(length.total_seconds())} ago"
    drawn = bars([*values, replicas], height=_HEIGHT)
    axis = " " * (len(drawn[-1]) - _WIDTH) + left + "now".rjust(_WIDTH - len(left))
    return [*lines, "", "Replicas, by these changes:", *drawn, axis]
