"""What a new object and a refused child look like on a real apiserver."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.network import FIRST
from penstock_operator.control import pki
from tests.support.k8s import INSTALLED_IN, Namespace, container_backend, endpoint, wait_for

Obj = dict[str, Any]
SERVICES = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}]
PROBE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "probe"},
    "spec": {"ports": [{"port": 1}]},
}

DENIES = """
import http.server, json, ssl, sys
class Denies(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        no = {"allowed": False, "status": {"message": sys.argv[3], "code": 403}}
        answer = {**asked, "request": None, "response": {"uid": asked["request"]["uid"], **no}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Denies)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
WORDS = "every Service needs an owner's telephone number"


def test_a_new_object_has_observed_nothing(namespace: Namespace) -> None:
    """As the apiserver stores it, before any operator: kstatus takes it for in progress, not for current."""
    shown = namespace.kubectl(
        *("create", "--dry-run=server", "-o", "json", "-f", "-"), input=json.dumps(endpoint("e", "b"))
    )
    assert json.loads(shown)["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize(
    ("name", "reason", "flag"),
    [("quota", "QuotaExceeded", "Stalled"), ("policy", "PolicyDenied", "Stalled"),
     ("webhook", "WebhookFailed", "Reconciling")],
)  # fmt: skip
def test_what_the_apiserver_refuses_is_told_in_its_words(
    namespace: Namespace, name: str, reason: str, flag: str
) -> None:
    """A quota, an admission policy, a webhook that does not answer: the reason, and its end."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    mark = f"penstock-test-{namespace.name}"
    obstacles = {
        "quota": [
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": mark},
             "spec": {"hard": {"count/services": "0"}}},
        ],
        "policy": [
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
             "metadata": {"name": mark},
             "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": SERVICES},
                      "validations": [{"expression": "false", "message": "no services in tests"}]}},
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
             "metadata": {"name": mark},
             "spec": {"policyName": mark, "validationActions": ["Deny"],
                      "matchResources": {"namespaceSelector": here}}},
        ],
        "webhook": [
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
             "metadata": {"name": mark},
             "webhooks": [{"name": "nobody.penstock.dev", "admissionReviewVersions": ["v1"],
                           "sideEffects": "None", "timeoutSeconds": 1, "failurePolicy": "Fail",
                           "namespaceSelector": here, "rules": SERVICES,
                           "clientConfig": {"service": {"namespace": namespace.name, "name": "nobody"}}}]},
        ],
    }[name]  # fmt: skip
    try:
        namespace.apply(*obstacles)
        wait_for("the obstacle to stand", lambda: _refused(namespace), seconds=60)
        namespace.apply(container_backend("b", script="", replicas=0))
        told = namespace.wait_condition("modelbackend", "b", "Ready", "False", reason=reason)
        assert told["message"].startswith("Service b-backend: ")
        assert namespace.condition("modelbackend", "b", flag)["status"] == "True"
        assert namespace.get("deployment", "b-backend") is not None
    finally:
        for one in reversed(obstacles):
            namespace.kubectl("delete", one["kind"], one["metadata"]["name"])
    namespace.wait_condition("modelbackend", "b", "Ready", "True", seconds=120)
    assert namespace.condition("modelbackend", "b", flag) == {}


@pytest.fixture
def webhook(cluster: Cluster, tmp_path: Path) -> Iterator[Obj]:
    """The `clientConfig` of an admission webhook on the first node that denies everything, with `WORDS`."""
    now = time.time()
    authority = pki.make_authority(now=now, life=3600.0)
    issued = pki.issue(authority, names=(FIRST.address,), now=now, life=3600.0)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(issued.certificate + issued.key)
    command = [*cluster.exec_prefix, sys.executable, "-c", DENIES, FIRST.address, str(chain), WORDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            bundle = base64.b64encode(authority.certificate).decode()
            yield {"url": f"https://{FIRST.address}:{port}/", "caBundle": bundle}
        finally:
            process.kill()


def test_what_a_webhook_denies_is_told_in_its_words(namespace: Namespace, webhook: Obj) -> None:
    """One that answers, and says no: WebhookDenied, with the webhook's name and reason, until it is gone."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    mark = f"penstock-test-{namespace.name}"
    denies = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
              "metadata": {"name": mark},
              "webhooks": [{"name": "denies.penstock.dev", "admissionReviewVersions": ["v1"],
                            "sideEffects": "None", "timeoutSeconds": 10, "failurePolicy": "Fail",
                            "namespaceSelector": here, "rules": SERVICES,
                            "clientConfig": webhook}]}  # fmt: skip
    try:
        namespace.apply(denies)
        wait_for("the webhook to deny", lambda: WORDS in _refused(namespace), seconds=60)
        namespace.apply(container_backend("b", script="", replicas=0))
        told = namespace.wait_condition("modelbackend", "b", "Ready", "False", reason="WebhookDenied")
        assert told["message"] == (
            f'Service b-backend: admission webhook "denies.penstock.dev" denied the request: {WORDS}'
        )
        assert namespace.condition("modelbackend", "b", "Stalled")["reason"] == "WebhookDenied"
        assert namespace.get("deployment", "b-backend") is not None
    finally:
        namespace.kubectl("delete", denies["kind"], mark)
    namespace.wait_condition("modelbackend", "b", "Ready", "True", seconds=120)
    assert namespace.condition("modelbackend", "b", "Stalled") == {}


def test_a_right_that_was_taken_away_is_told_in_the_apiservers_words(namespace: Namespace) -> None:
    """Without the right to write Services: Forbidden, naming who may not do what; given back, it goes on."""
    cluster, role = namespace.cluster, ("clusterrole", "penstock-operator")
    rules = json.loads(cluster.kubectl("get", *role, "-o", "json").stdout)["rules"]
    less = [
        {
            **rule,
            "resources": [one for one in rule["resources"] if (rule["apiGroups"], one) != ([""], "services")],
        }
        for rule in rules
    ]
    less.append({"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]})
    who = f"system:serviceaccount:{INSTALLED_IN}:penstock-operator"
    may = ("auth", "can-i", "patch", "services", "-n", namespace.name, f"--as={who}")
    try:
        cluster.kubectl("patch", *role, "--type=merge", "-p", json.dumps({"rules": less}))
        wait_for(
            "the right to be gone", lambda: "no" in cluster.kubectl(*may, check=False).stdout, seconds=60
        )
        namespace.apply(container_backend("b", script="", replicas=0))
        told = namespace.wait_condition("modelbackend", "b", "Ready", "False", reason="Forbidden")
        assert told["message"].startswith(
            f'Service b-backend: services "b-backend" is forbidden: User "{who}" cannot patch resource '
        )
        assert namespace.condition("modelbackend", "b", "Stalled")["reason"] == "Forbidden"
        assert namespace.get("deployment", "b-backend") is not None
    finally:
        cluster.kubectl("patch", *role, "--type=merge", "-p", json.dumps({"rules": rules}))
    namespace.wait_condition("modelbackend", "b", "Ready", "True", seconds=120)
    assert namespace.condition("modelbackend", "b", "Stalled") == {}


def _refused(namespace: Namespace) -> str:
    """What the apiserver says against a Service in the namespace; empty where it would take one."""
    command = ("-n", namespace.name, "create", "--dry-run=server", "-f", "-")
    done = namespace.cluster.kubectl(*command, input=json.dumps(PROBE), check=False)
    return done.stderr if done.returncode else ""
