"""Injection into pods of whatever makes pods, within the bounds of a namespace."""

from __future__ import annotations

import json
from typing import Any

import yaml

from devcluster.network import FIRST
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.injected_app import POD_SECURITY, RESTRICTED, workloads
from tests.support.cluster.k8s import MODEL_IMAGE, Namespace
from tests.support.cluster.late_webhook import NAMES
from tests.support.cluster.tls_app import running

SERVER = """
import http.server, json, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({})
    def do_POST(self):
        items = json.loads(self.rfile.read(int(self.headers["content-length"])))["instances"]
        self.answer({"predictions": [len(items)] * len(items)})
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(json.dumps(body))))
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
"""
"""A model of somebody else, without a line of ours; it listens on the port of its argument."""


def app_pod(*command: str, **more: Any) -> dict[str, Any]:
    """The spec of a pod with a container that runs Python."""
    container = {
        "name": "app",
        "image": MODEL_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-u", *command],
        "ports": [{"name": "http", "containerPort": 8080}],
        "securityContext": RESTRICTED,
    }
    return {"securityContext": POD_SECURITY, "containers": [container], **more}


def makers() -> list[dict[str, Any]]:
    """One object of each kind that makes pods, and bounds of the namespace that the sidecar keeps to."""
    serves = app_pod("-c", SERVER, "8080")

    def maker(kind: str, name: str, pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
        own = {"app": name, "penstock.dev/inject": "small"}
        if kind != "Job":
            spec["selector"] = {"matchLabels": {"app": name}}
        template = {"metadata": {"labels": own}, "spec": pod}
        version = "batch/v1" if kind == "Job" else "apps/v1"
        return {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec | {"template": template},
        }

    def bare(name: str, pod: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, "labels": {"app": name, "penstock.dev/inject": "small"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}

    bounds = {"limits.cpu": "20", "limits.memory": "20Gi", "requests.cpu": "2"}
    least: dict[str, Any] = {"type": "Container"} | {
        "type": "Container",
        "default": {"cpu": "1", "memory": "256Mi"},
        "defaultRequest": {"cpu": "10m"},
    }
    headless = {"clusterIP": "None", "selector": {"app": "stateful"}, "ports": [{"port": 80}]}
    names = {"metadata": {"name": "stateful"}}
    return [
        {"apiVersion": "v1", "kind": "LimitRange", **names, "spec": {"limits": [least]}},
        {"apiVersion": "v1", "kind": "ResourceQuota", **names, "spec": {"hard": bounds}},
        {"apiVersion": "v1", "kind": "Service", **names, "spec": headless},
        {
            "apiVersion": "penstock.dev/v1alpha1", "kind": "BatchPolicy", "metadata": {"name": "small"},
            "spec": {"maxBatchSize": 4},
        },
        maker("StatefulSet", "stateful", serves, serviceName="stateful"),
        maker("DaemonSet", "daemon", serves),
        maker("Job", "job", app_pod("-c", "print('done')", restartPolicy="Never")),
        maker("Deployment", "kserve-predictor", serves),
        bare("bare", serves),
        bare("taken", app_pod("-c", SERVER, "8012", restartPolicy="Never")),
    ]  # fmt: skip


def test_whatever_makes_pods_they_get_a_sidecar_and_serve(namespace: Namespace) -> None:
    """Under a quota, limits and Pod Security, before a webhook like KServe's.

    GitOps tools see no difference, except in a pod that they make themselves.

    A Job's pod ends. An application that has our port without declaring it says so itself.
    """
    manifest = yaml.safe_dump_all(makers())
    with running(namespace.cluster, "late_webhook") as (port, authority):
        rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
        webhook = {
            "name": "late.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": f"https://{FIRST.address}:{port}/", "caBundle": authority},
            "rules": rules,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
            "objectSelector": {"matchLabels": {"app": "kserve-predictor"}},
        }  # fmt: skip
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
        document = kind | {"metadata": {"name": namespace.name}, "webhooks": [webhook]}
        namespace.cluster.kubectl("apply", "-f", "-", input=json.dumps(document))
        try:
            namespace.kubectl("apply", "--server-side", "-f", "-", input=manifest)
            ready = ("wait", "pod", "--for=condition=Ready", "--timeout=120s", "-l")
            serving = "app in (stateful, daemon, kserve-predictor, bare)"
            wait_for("the pods to be made", lambda: len(namespace.list("pods", serving)) == 4)
            namespace.kubectl(*ready, serving)
        finally:
            namespace.cluster.kubectl("delete", "mutatingwebhookconfiguration", namespace.name)
    pods = {pod["metadata"]["labels"]["app"]: pod for pod in namespace.list("pods", serving)}
    for name, pod in pods.items():
        first, *others = pod["spec"]["initContainers"]
        late = name == "kserve-predictor"
        assert (first["name"], [each["name"] for each in others]) == ("penstock-sidecar", [*NAMES[:1]] * late)
        assert len(pod["spec"]["containers"]) == 1 + late
        answer = namespace.curl(f"http://{pod['status']['podIP']}:8012/", body='{"instances": [1, 2]}')
        assert (answer[0], json.loads(answer[2])) == (200, {"predictions": [2, 2]})
    namespace.kubectl("wait", "job", "job", "--for=condition=Complete", "--timeout=120s")
    (ended,) = namespace.list("pods", "app=job")
    (sidecar,) = ended["status"]["initContainerStatuses"]
    assert sidecar["state"]["terminated"]["exitCode"] == 0
    namespace.kubectl("wait", "pod", "taken", "--for=jsonpath={.status.phase}=Failed", "--timeout=120s")
    assert "Address already in use" in namespace.kubectl("logs", "taken", "-c", "app")
    known = ("Deployment/kserve-predictor", "StatefulSet/stateful", "DaemonSet/daemon", "Pod/bare")
    names = [{"name": name, "pods": 1} for name in sorted(known)]
    wait_for("the policy's workloads", lambda: workloads(namespace) == names)
    manifest = yaml.safe_dump_all(document for document in makers() if document["kind"] != "Pod")
    diff = ("-n", namespace.name, "diff", "--server-side", "-f", "-")
    found = namespace.cluster.kubectl(*diff, input=manifest, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
