"""The application of docs/how-to/inject.md: the guide's objects, with the ledger model in its place."""

from __future__ import annotations

from typing import Any

import yaml

from devcluster.network import FIRST
from tests.support.cluster.k8s import MODEL_IMAGE, Load, Namespace, is_going, ledger_code
from tests.support.pages.page import DOCS, Page

GUIDE = DOCS / "how-to/inject.md"
LABEL = {"penstock.dev/inject": "small"}
"""What the guide adds to the labels of the pod template of `fast`."""

RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_SECURITY = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
"""What a container and a pod need under Pod Security `restricted`."""


def plain(load: Load, *, delay_ms: float = 20) -> list[dict[str, Any]]:
    """The code, the Deployment `fast`, its Service and the BatchPolicy `small`.

    Args:
        delay_ms: milliseconds that a batch takes.
    """
    deployment, *others = yaml.safe_load_all(Page.of(GUIDE).recipe("inject"))
    app = deployment["spec"]["template"]["spec"]["containers"][0]
    app |= {
        "image": MODEL_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "penstock.serve", "ledger_model:Ledger", "--host", "0.0.0.0"],
        "args": [
            "--port",
            "8080",
            "--ready-path",
            "/healthz",
            "--init-kwargs",
            f'{{"delay_ms": {delay_ms}}}',
        ],
        "env": [
            {"name": "PYTHONPATH", "value": "/code"},
            {"name": "COLLECTOR", "value": f"{FIRST.address}:{load.port}"},
        ],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    app["readinessProbe"]["periodSeconds"] = 1
    spec = deployment["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "code", "configMap": {"name": "ledger-model"}}]
    return [ledger_code(), deployment, *others]


def living(namespace: Namespace) -> list[dict[str, Any]]:
    """The pods of `fast` that stay."""
    return [pod for pod in namespace.list("pods", "app=fast") if not is_going(pod)]


def rolled_out(namespace: Namespace) -> None:
    """Wait until `fast` is rolled out."""
    namespace.kubectl("rollout", "status", "deployment", "fast", "--timeout=240s")


def workloads(namespace: Namespace) -> list[dict[str, Any]]:
    """The workloads of the policy `small`, by its status: names and pods."""
    status = (namespace.get("batchpolicy", "small") or {}).get("status") or {}
    return [{"name": each["name"], "pods": each["pods"]} for each in status.get("workloads") or ()]
