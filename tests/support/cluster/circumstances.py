"""The state of a cluster when a test on it failed, in a few screens of text."""

from __future__ import annotations

import json
from pathlib import Path

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import shown
from tests.support.cluster.k8s import INSTALLED_IN
from tests.support.cluster.release import OPERATOR_PODS

MOST = 12_000
"""Characters of one section; of more, the last."""
SECONDS = 20.0
KINDS = "modelbackends,modelendpoints,trafficsplits,batchpolicies"
LEASE = ("-n", "kube-system", "get", "lease", "penstock-installation")
LOGS = 6
"""Pods of a test's namespace whose sidecar's or router's log is shown."""


def circumstances(cluster: Cluster, namespace: str | None) -> list[tuple[str, str]]:
    """Sections of a report: title and text. A section that fails has its error as text; nothing is raised.

    Args:
        cluster: where the test ran, which may be gone.
    """
    sections = [("the machine", _machine()), ("the operator", _operator(cluster, namespace))]
    if namespace is not None:
        sections += [
            (f"pods of {namespace}", _said(cluster, "-n", namespace, "get", "pods", "-o", "wide")),
            (f"resources of {namespace}", _resources(cluster, namespace)),
            (f"events of {namespace}", _events(cluster, namespace)),
            (f"logs of {namespace}", _logs(cluster, namespace)),
        ]
    return [(title, text if len(text) <= MOST else f"… {text[-MOST:]}") for title, text in sections]


def components(cluster: Cluster) -> str:
    """The state of a cluster's own programs, and the end of each log.

    Args:
        cluster: which; it may be gone.
    """
    logs = sorted(cluster.state.logs.glob("*.log")) if cluster.state.logs.exists() else []
    texts = [str(cluster.status()), *(f"-- {log.name}\n{tail(log, 8)[-1200:]}" for log in logs)]
    return "\n".join(texts)[-MOST:]


def tail(path: Path, lines: int = 60) -> str:
    """The end of a file, at most so many lines and `MOST` characters."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return str(error)
    return "\n".join(text.splitlines()[-lines:])[-MOST:]


def _said(cluster: Cluster, *arguments: str) -> str:
    """The output of kubectl, or the error that it ended with."""
    try:
        done = cluster.kubectl(*arguments, check=False, timeout=SECONDS)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return str(done.stdout) + str(done.stderr)


def _machine() -> str:
    """Its load, and for how much of the time some task waited for a core, a disk or memory."""
    lines = ["load " + Path("/proc/loadavg").read_text()]
    for resource in ("cpu", "io", "memory"):
        pressure = Path("/proc/pressure", resource)
        if pressure.exists():
            lines.append(f"{resource} {pressure.read_text().splitlines()[0]}\n")
    return "".join(lines)


def _operator(cluster: Cluster, namespace: str | None) -> str:
    """Its pods, who leads, and the end of each one's log, the process before a restart included.

    Args:
        namespace: lines about objects in other namespaces are left out; None: all lines.
    """
    where, selected = ("-n", INSTALLED_IN), ("-l", OPERATOR_PODS)
    texts = [
        _said(cluster, *where, "get", "pods", "-o", "wide"),
        "leads: " + _said(cluster, *LEASE, "-o", "jsonpath={.spec}"),
    ]
    for name in _said(cluster, *where, "get", "pods", *selected, "-o", "name").split():
        before = _said(cluster, *where, "logs", name, "--previous", "--tail=15")
        texts += [f"-- {name}, before its restart", before[-3000:]] if before[:1] == "{" else []
        lines = _said(cluster, *where, "logs", name, "--tail=1000").splitlines()
        kept = [line for line in lines if not namespace or namespace in line or '"key"' not in line]
        texts += [f"-- {name}", "\n".join(kept[-50:])[-8000:]]
    return "\n".join(texts)


def _resources(cluster: Cluster, namespace: str) -> str:
    text = _said(cluster, "-n", namespace, "get", KINDS, "-o", "json")
    try:
        items = json.loads(text)["items"]
    except ValueError:
        return text
    return "\n".join(f"{item['kind']} {shown(item, 2000)}" for item in items)


def _events(cluster: Cluster, namespace: str) -> str:
    text = _said(cluster, "-n", namespace, "get", "events", "--sort-by=.metadata.creationTimestamp")
    return "\n".join(line[:300] for line in text.splitlines()[-40:])


def _logs(cluster: Cluster, namespace: str) -> str:
    texts = []
    for label, container in (
        ("penstock.dev/backend", "penstock-sidecar"),
        ("app.kubernetes.io/name=penstock-router", "router"),
    ):
        names = _said(cluster, "-n", namespace, "get", "pods", "-l", label, "-o", "name").split()
        for name in [name for name in names if name.startswith("pod/")][:LOGS]:
            said = _said(cluster, "-n", namespace, "logs", name, "-c", container, "--tail=12")
            texts.append(f"-- {name}\n{said[-2000:]}")
    return "\n".join(texts)
