"""The zeros and falses that a live object keeps: the drift rule's list against the real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from penstock_operator.desired.drift import contained
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Load, Namespace, ledger_backend, ledger_code

PROBE = {"httpGet": {"path": "/", "port": 8080}, "initialDelaySeconds": 0}
POD_SPEC: dict[str, Any] = {
    "hostNetwork": False,
    "hostPID": False,
    "hostIPC": False,
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "shareProcessNamespace": False,
    "setHostnameAsFQDN": False,
    "terminationGracePeriodSeconds": 0,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "model",
            "image": "model",
            "stdin": False,
            "stdinOnce": False,
            "tty": False,
            "readinessProbe": PROBE,
            "resources": {"requests": {"cpu": "0"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": False}],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "privileged": False,
                "readOnlyRootFilesystem": False,
                "capabilities": {"drop": ["ALL"]},
            },
            "ports": [{"containerPort": 8080, "hostPort": 0}],
        }
    ],
    "volumes": [{"name": "v", "secret": {"secretName": "s", "optional": False, "defaultMode": 0}}],
}
LABELS = {"app": "zeros"}
OBJECTS: list[dict[str, Any]] = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "zeros"},
        "spec": {
            "replicas": 0,
            "paused": False,
            "minReadySeconds": 0,
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": LABELS},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": LABELS}, "spec": POD_SPEC},
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "zeros"},
        "spec": {
            "selector": LABELS,
            "publishNotReadyAddresses": False,
            "healthCheckNodePort": 0,
            "ports": [{"port": 80, "nodePort": 0}],
        },
    },
    {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "zeros"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": LABELS}},
    },
    {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "zeros"},
        "automountServiceAccountToken": False,
    },
]


@pytest.mark.parametrize("wanted", OBJECTS, ids=[obj["kind"] for obj in OBJECTS])
def test_what_the_apiserver_makes_of_zeros_is_no_drift(namespace: Namespace, wanted: dict[str, Any]) -> None:
    """Or every start of the operator would write such an object anew."""
    output = namespace.kubectl(
        "apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-", input=yaml.safe_dump(wanted)
    )
    live = json.loads(output)
    assert contained(wanted, live)
    for path in kept(wanted, live):
        assert not contained(wanted, without(live, path)), path


def kept(wanted: Any, live: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of a wanted false or 0 that the live object has."""
    if isinstance(wanted, dict):
        return [at for name in wanted if name in live for at in kept(wanted[name], live[name], (*path, name))]
    if isinstance(wanted, list):
        pairs = zip(wanted, live, strict=True)
        return [at for index, (item, other) in enumerate(pairs) for at in kept(item, other, (*path, index))]
    return [path] if wanted in (False, 0) and not isinstance(wanted, str) else []


def without(live: Any, path: tuple[Any, ...]) -> Any:
    """A copy that lacks one member."""
    copy = json.loads(json.dumps(live))
    parent = copy
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    return copy


def test_a_false_that_somebody_takes_out_comes_back(namespace: Namespace, load: Load) -> None:
    """No API token for model pods, no privilege escalation: their absence would mean the opposite."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port))
    # NB: long, since a whole run comes here from a lost node: a pod was seen to be made 89 s late then.
    namespace.wait_ready("modelbackend", "b", seconds=240)

    def spec() -> dict[str, Any]:
        return dict((namespace.get("deployment", "b-backend") or {})["spec"]["template"]["spec"])

    def index() -> int:
        return [container["name"] for container in spec()["containers"]].index("model")

    def whole() -> bool:
        model = spec()["containers"][index()]
        account = namespace.get("serviceaccount", "b-backend") or {}
        return (
            spec().get("automountServiceAccountToken") is False
            and account.get("automountServiceAccountToken") is False
            and model["securityContext"].get("allowPrivilegeEscalation") is False
        )

    assert whole()
    pod = "/spec/template/spec"
    taken_out = [
        ("deployment", f"{pod}/automountServiceAccountToken"),
        ("serviceaccount", "/automountServiceAccountToken"),
        ("deployment", f"{pod}/containers/{index()}/securityContext/allowPrivilegeEscalation"),
    ]
    for kind, path in taken_out:
        patch = json.dumps([{"op": "remove", "path": path}])
        namespace.kubectl("patch", kind, "b-backend", "--type=json", "-p", patch)
        wait_for(f"{path} of the {kind} again", whole)
