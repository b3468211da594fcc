"""What the tests of losses share: a served ledger model, the rate that this machine bears, and the table."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.run import machine
from tests.support.cluster_waits import heard, wait_for
from tests.support.k8s import Load, Namespace, endpoint, ledger_backend, ledger_code

BACKEND = "penstock.dev/backend=b"
ROUTERS = "app.kubernetes.io/name=penstock-router"
RATES = (1000.0, 700.0, 500.0, 350.0, 200.0)
"""Requests a second that are tried; the last is taken without more ado."""
TRIED_SECONDS = 3
LATE_MS = 20.0
"""How late the generator may be with one request in a hundred."""
SLOW_MS = 60.0
"""How long one request in a hundred may take, while one pod serves and nothing has gone wrong."""
IDLE_SHARE = 0.5
"""How much of all processors must be idle: pods that start take as much as they get, and on a machine with
nothing left kubelets miss their probes, so that pods that are well are taken out."""


def serve(namespace: Namespace, load: Load, *, waits: dict[str, Any] | None = None, **spec: object) -> str:
    """A ledger backend `b` behind an endpoint `b`, both Ready; the endpoint's URL.

    Args:
        namespace: where.
        load: whose collector the models tell.
        waits: the endpoint's `coldStart`; None for the defaults.
        spec: of the backend, as `ledger_backend` takes it.
    """
    more = {} if waits is None else {"coldStart": waits}
    namespace.apply(
        ledger_code(), ledger_backend("b", collector=load.port, **spec), endpoint("b", "b", **more)
    )
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "b")
    return namespace.url("b")


def pods_of(namespace: Namespace, selector: str = BACKEND) -> list[dict[str, Any]]:
    """Pods by label, those that go included. Not by kubectl: each start of it takes time from the load."""
    path = f"/api/v1/namespaces/{namespace.name}/pods?labelSelector={quote(selector)}"
    status, found = namespace.cluster.api().request("GET", path)
    assert status == 200, found
    items: list[dict[str, Any]] = found["items"]
    return items


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod is Ready and stays."""
    conditions = pod["status"].get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def ready_pods(namespace: Namespace, selector: str = BACKEND) -> list[str]:
    """Names of the pods that are Ready and stay."""
    return [pod["metadata"]["name"] for pod in pods_of(namespace, selector) if is_ready(pod)]


def wait_settled(namespace: Namespace, count: int, selector: str = BACKEND) -> None:
    """Wait for so many ready pods, and none that still comes or goes."""

    def settled() -> bool:
        found = pods_of(namespace, selector)
        heard(f"pods {selector}", found)
        return len(found) == count and all(map(is_ready, found))

    wait_for(f"{count} ready pods and no other", settled, seconds=300)


def pod_on(namespace: Namespace, node: str) -> str:
    """Name of a ready pod of the backend on a node; where none is, one is made to move there."""

    def there() -> list[str]:
        found = pods_of(namespace)
        return [one["metadata"]["name"] for one in found if is_ready(one) and one["spec"]["nodeName"] == node]

    if not there():
        cluster, count = namespace.cluster, len(pods_of(namespace))
        others = [name for name in cluster.nodes() if name != node]
        cluster.kubectl("cordon", *others)
        try:
            namespace.kubectl("delete", "pod", ready_pods(namespace)[0], "--wait=true", "--timeout=110s")
            wait_settled(namespace, count)
        finally:  # or no test after this one has a node
            cluster.kubectl("uncordon", *others)
    return there()[0]


def processor_times() -> tuple[int, int]:
    """How long all processors of the machine have been idle, and have been there, in clock ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3], sum(ticks)


def calibrate(load: Load, url: str) -> tuple[float, list[dict[str, Any]]]:
    """The highest of `RATES` that this machine bears with nothing going wrong, as it is loaded now.

    Both ends must hold: the generator sends in time, and answers come in time, with half of the processors
    left to what the changes start.

    Returns:
        The rate, and what each try found.
    """
    found: list[dict[str, Any]] = []
    for rate in RATES:
        before = processor_times()
        load.start(url, rate=rate, count=int(rate * TRIED_SECONDS))
        seen = load.finish(seconds=120)
        idle, total = (after - since for after, since in zip(processor_times(), before, strict=True))
        in_time = seen["late_p99_ms"] <= LATE_MS and seen["p99_ms"] <= SLOW_MS and seen["ok"] == seen["sent"]
        held = in_time and idle / max(1, total) >= IDLE_SHARE
        print(
            f"calibration: {rate:.0f} requests/s {'held' if held else 'not held'}: {seen['ok']} of "
            f"{seen['sent']} ok, p99 {seen['p99_ms']} ms, sends late by {seen['late_p99_ms']} ms (p99), "
            f"processors {idle / max(1, total):.0%} idle"
        )
        found.append(
            {"rate": rate, "held": held, "p99_ms": seen["p99_ms"], "late_p99_ms": seen["late_p99_ms"]}
        )
        if held:
            break
    return rate, found


def record(path: str, name: str, *, asked: dict[str, Any], found: dict[str, Any]) -> None:
    """Write what a test found into the results, under its name, beside what others found.

    Args:
        path: the file; empty = nothing is written.
        name: of the test.
        asked: what it ran with.
        found: figures.
    """
    if not path:
        return
    file = Path(path)
    results = json.loads(file.read_text()) if file.exists() else {}
    described = machine()
    results[name] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load_average": round(described.pop("load_average_before"), 2),  # the run's own work is in it
        "machine": described,
        "asked": asked,
        **found,
    }
    file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def totals(summary: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run that results keep."""
    names = ("sent", "ok", "not_ok", "mismatched", "lost", "duplicated", "unexecuted", "p50_ms", "p99_ms")
    more = ("late_p99_ms", "late_max_ms", "parts")
    errors = Counter(f"{error['part']}: {error['detail']}" for error in summary["errors"])
    return {name: summary[name] for name in (*names, *more)} | {"errors": dict(errors)}


def table(summary: dict[str, Any]) -> str:
    """The parts of a run as lines of a Markdown table."""
    rows = [("part", "s", "requests", "wrong", "p50 ms", "p99 ms", "max ms")]
    for part in summary["parts"]:
        names = ("name", "seconds", "sent", "not_ok", "p50_ms", "p99_ms", "max_ms")
        rows.append(tuple(str(part[name]) for name in names))
    rows.insert(1, ("--",) * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
