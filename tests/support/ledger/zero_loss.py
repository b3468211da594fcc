"""Shared by the tests of losses: a served ledger model, the rate that this machine bears, and the table."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.run import machine
from tests.support.cluster.cluster_waits import heard, wait_for
from tests.support.cluster.k8s import Load, Namespace, endpoint, ledger_backend, ledger_code

BACKEND = "penstock.dev/backend=b"
ROUTERS = "app.kubernetes.io/name=penstock-router"
MOST_RATE = 1000.0
"""Requests a second at most, where the rate is what the machine bears."""
LEAST_RATE = 50.0
SHARE = 0.5
"""The part of what the machine can do while pods start that is asked of it: other work comes and goes."""


def serve(namespace: Namespace, load: Load, *, waits: dict[str, Any] | None = None, **spec: object) -> str:
    """A ledger backend `b` behind an endpoint `b`, both Ready; the endpoint's URL.

    Args:
        waits: the endpoint's `coldStart`; None for the defaults.
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
    status, answer = namespace.cluster.api().request("GET", path)
    assert status == 200, answer
    items: list[dict[str, Any]] = answer["items"]
    return items


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod is Ready and is not being deleted."""
    conditions = pod["status"].get("conditions", [])
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def ready_pods(namespace: Namespace, selector: str = BACKEND) -> list[str]:
    """Names of the pods that are Ready and stay."""
    return [pod["metadata"]["name"] for pod in pods_of(namespace, selector) if is_ready(pod)]


def wait_settled(namespace: Namespace, count: int, selector: str = BACKEND) -> None:
    """Wait for so many ready pods, and none that still comes or goes."""

    def settled() -> bool:
        current = pods_of(namespace, selector)
        heard(f"pods {selector}", current)
        return len(current) == count and all(map(is_ready, current))

    wait_for(f"{count} ready pods and no other", settled, seconds=300)


def pod_on(namespace: Namespace, node: str) -> str:
    """Name of a ready pod of the backend on a node; where none is, one is made to move there."""

    def there() -> list[str]:
        current = pods_of(namespace)
        return [
            pod["metadata"]["name"] for pod in current if is_ready(pod) and pod["spec"]["nodeName"] == node
        ]

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


def calibrate(load: Load, url: str, start_pods: Callable[[], None]) -> tuple[float, dict[str, Any]]:
    """A rate that this machine bears while pods start, beside whatever else it does now.

    Pods that start take what processors there are, so what the machine does at rest says little: as many
    requests as the generator can send go out while pods start, and the slowest seconds of that count.

    Args:
        start_pods: starts as many pods at once as any change of the test, and returns when all is at rest.

    Returns:
        The rate in requests a second, and what was seen.
    """
    load.start(url, rate=MOST_RATE)
    load.mark("calibration")
    start_pods()
    summary = load.stop()
    print(table(summary))
    (part,) = summary["parts"]
    capacity = float(part["least_rate"])
    rate = max(LEAST_RATE, min(MOST_RATE, SHARE * capacity // 10 * 10))
    print(
        f"calibration: {capacity:.0f} answers a second in the slowest seconds while pods started, sends late "
        f"by {summary['late_p99_ms']} ms (p99): {rate:.0f} requests a second from here on"
    )
    return rate, {"least_rate": capacity, "late_p99_ms": summary["late_p99_ms"], "not_ok": part["not_ok"]}


def record(path: str, name: str, *, asked: dict[str, Any], result: dict[str, Any]) -> None:
    """Write what a test found into the results, under its name, beside what others found.

    Args:
        path: the file; empty = nothing is written.
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
        **result,
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
