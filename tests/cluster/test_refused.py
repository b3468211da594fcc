"""New objects and refused children on a real API server."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.network import FIRST
from penstock_operator.control import pki
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import INSTALLED_IN, Namespace, condition_of, container_backend, endpoint

Obj = dict[str, Any]
OPERATOR = f"system:serviceaccount:{INSTALLED_IN}:penstock-operator"
SERVICES = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}]
PROBE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "probe"},
    "spec": {"ports": [{"port": 1}]},
}

WEBHOOK = """
import http.server, json, ssl, sys
class Webhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = json.loads(sys.argv[3])
        answer = {**asked, "request": None, "response": {"uid": asked["request"]["uid"], **said}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Webhook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
SERVES = (
    "import http.server as s; s.ThreadingHTTPServer(('', 8080), s.SimpleHTTPRequestHandler).serve_forever()"
)
WORDS = "every Service needs an owner's telephone number"


def test_a_new_object_has_observed_nothing(namespace: Namespace) -> None:
    """As the apiserver stores it, before any operator: kstatus takes it for in progress, not for current."""
    shown = namespace.kubectl(
        *("create", "--dry-run=server", "-o", "json", "-f", "-"), input=json.dumps(endpoint("e", "b"))
    )
    assert json.loads(shown)["status"] == {"observedGeneration": -1}


@contextlib.contextmanager
def webhook(namespace: Namespace, kind: str, folder: Path, says: Obj, **more: Any) -> Iterator[None]:
    """An admission webhook on the first node that is asked of the namespace's Services."""
    now = time.time()
    authority = pki.make_authority(now=now, life=3600.0)
    issued = pki.issue(authority, names=(FIRST.address,), now=now, life=3600.0)
    chain = folder / "chain.pem"
    chain.write_bytes(issued.certificate + issued.key)
    command = [*namespace.cluster.exec_prefix, sys.executable, "-c", WEBHOOK]
    command += [FIRST.address, str(chain), json.dumps(says)]
    mark = f"penstock-test-{namespace.name}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            bundle = base64.b64encode(authority.certificate).decode()
            asked = {"name": "says.penstock.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                     "timeoutSeconds": 10, "failurePolicy": "Fail", "rules": SERVICES,
                     "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
                     "clientConfig": {"url": f"https://{FIRST.address}:{port}/", "caBundle": bundle},
                     **more}  # fmt: skip
            namespace.apply(
                {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                 "metadata": {"name": mark}, "webhooks": [asked]}
            )  # fmt: skip
            yield
        finally:
            process.kill()  # first: its end is waited for, whatever the deletion says
            namespace.kubectl("delete", kind, mark, "--ignore-not-found")


def _obstacle(namespace: Namespace, name: str) -> list[Obj]:
    """Objects that keep Services out of a namespace."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    mark = f"penstock-test-{namespace.name}"
    return {
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
        "silent webhook": [
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
             "metadata": {"name": mark},
             "webhooks": [{"name": "nobody.penstock.dev", "admissionReviewVersions": ["v1"],
                           "sideEffects": "None", "timeoutSeconds": 1, "failurePolicy": "Fail",
                           "namespaceSelector": here, "rules": SERVICES,
                           "clientConfig": {"service": {"namespace": namespace.name, "name": "nobody"}}}]},
        ],
    }[name]  # fmt: skip


@contextlib.contextmanager
def _standing(namespace: Namespace, name: str, folder: Path) -> Iterator[None]:
    """An obstacle, while it stands."""
    if name == "denying webhook":
        no = {"allowed": False, "status": {"message": WORDS, "code": 403}}
        with webhook(namespace, "ValidatingWebhookConfiguration", folder, no):
            yield
        return
    obstacles = _obstacle(namespace, name)
    try:
        namespace.apply(*obstacles)
        yield
    finally:
        for obstacle in reversed(obstacles):
            namespace.kubectl("delete", obstacle["kind"], obstacle["metadata"]["name"], "--ignore-not-found")


def test_what_the_apiserver_refuses_is_told_in_its_words(
    namespaces: Callable[[str], Namespace], tmp_path: Path
) -> None:
    """A quota, an admission policy, a webhook that does not answer or says no: the reason, and its end.

    All at once, in a namespace each: the operator tries again after half a minute.
    """
    told = []
    with contextlib.ExitStack() as obstacles:
        for name, words, reason, flag, message in (
            ("quota", "exceeded quota", "QuotaExceeded", "Stalled", ""),
            ("policy", "no services in tests", "PolicyDenied", "Stalled", ""),
            ("silent webhook", "failed calling webhook", "WebhookFailed", "Reconciling", ""),
            ("denying webhook", WORDS, "WebhookDenied", "Stalled",
             f'admission webhook "says.penstock.dev" denied the request: {WORDS}'),
        ):  # fmt: skip
            namespace = namespaces(f"refused {name}")
            obstacles.enter_context(_standing(namespace, name, tmp_path))
            # A quota refuses in other words until it is counted.
            wait_for("the obstacle to stand", lambda here=namespace, text=words: text in _refused(here))
            namespace.apply(container_backend("b", script="", replicas=0))
            condition = namespace.wait_object("modelbackend", "b", "Ready", "False", reason=reason)
            assert condition_of(condition, "Ready")["message"].startswith(f"Service b-backend: {message}")
            assert condition_of(condition, flag)["reason"] == reason
            assert namespace.get("deployment", "b-backend") is not None
            told.append((namespace, flag))
    for namespace, flag in told:
        assert condition_of(namespace.wait_object("modelbackend", "b", "Ready"), flag) == {}


def test_a_quota_on_limits_and_a_limit_range_admit_what_penstock_adds(namespace: Namespace) -> None:
    """Routers and sidecars have all that it can demand; of a model without, the status names the field."""
    hard = {f"{part}.cpu": "8" for part in ("requests", "limits")}
    hard |= {f"{part}.memory": "8Gi" for part in ("requests", "limits")}
    namespace.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}},
        container_backend("b", script=SERVES),
        endpoint("e", "b"),
    )
    refused = namespace.wait_object("modelbackend", "b", "Ready", "False", reason="PodsRefused")
    message = condition_of(refused, "Ready")["message"]
    assert "failed quota: q: must specify " in message
    assert message.endswith(
        "(to change the resources of model: resources in spec.model.container, python or format)"
    )
    namespace.wait_condition("modelendpoint", "e", "RouterReady", "True")
    bounds = {"type": "Container", "max": {"cpu": "1", "memory": "1Gi"}, "min": {"memory": "32Mi"}}
    namespace.apply(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [bounds]}}
    )
    small = {"cpu": "100m", "memory": "64Mi"}
    given = {"model": {"container": {"resources": {"requests": small, "limits": small}}}}
    namespace.patch("modelbackend", "b", {"spec": given})
    namespace.wait_condition("modelendpoint", "e", "Ready", "True")


def test_a_conflict_at_each_write_is_told_in_the_apiservers_words(
    namespace: Namespace, tmp_path: Path
) -> None:
    """WriteConflict of a backend's, an endpoint's and the router's Service; it ends with what makes it.

    Each write of the operator's (no other's) meets a webhook that gives the object an old version. The
    API server sees the same as when another client was faster, tries five times, and answers 409.
    """
    namespace.apply(container_backend("b", script="", replicas=0), endpoint("e", "b"))
    namespace.wait_condition("modelbackend", "b", "Ready", "True")
    namespace.wait_condition("modelendpoint", "e", "RouterReady", "True")
    operations = json.dumps([{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}])
    older = {
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(operations.encode()).decode(),
    }
    theirs = f"request.userInfo.username == '{OPERATOR}'"
    stands = ("annotate", "service", "b-backend", "a=b", "--dry-run=server", f"--as={OPERATOR}")
    messages = {
        "b-backend": ("modelbackend", "b", "Ready"),
        "e": ("modelendpoint", "e", "Accepted"),
        "penstock-router": ("modelendpoint", "e", "RouterReady"),
    }
    with webhook(
        namespace, "MutatingWebhookConfiguration", tmp_path, older,
        rules=[{**SERVICES[0], "operations": ["UPDATE"]}],
        matchConditions=[{"name": "theirs", "expression": theirs}],
    ):  # fmt: skip
        said = "the object has been modified; please apply your changes to the latest version and try again"
        wait_for("the webhook", lambda: said in namespace.kubectl(*stands, check=False))
        for service, where in messages.items():
            namespace.patch("service", service, {"spec": {"selector": {"somebody": "s"}}})
            condition = namespace.wait_object(*where, "False", reason="WriteConflict")
            words = f'Operation cannot be fulfilled on services "{service}": {said}'
            assert condition_of(condition, where[2])["message"] == f"Service {service}: {words}"
            assert condition_of(condition, "Reconciling")["reason"] == "WriteConflict"
            assert condition_of(condition, "Stalled").get("reason") != "WriteConflict"
    for service, where in messages.items():
        namespace.wait_condition(*where, "True")
        assert "somebody" not in (namespace.get("service", service) or {})["spec"]["selector"]


@pytest.mark.xdist_group("fight")
def test_a_right_that_was_taken_away_is_told_in_the_apiservers_words(namespace: Namespace) -> None:
    """Without the right to write Services: Forbidden, naming who may not do what; given back, it goes on."""
    cluster, role = namespace.cluster, ("clusterrole", "penstock-operator")
    rules = json.loads(cluster.kubectl("get", *role, "-o", "json").stdout)["rules"]
    less = [
        {
            **rule,
            "resources": [
                resource
                for resource in rule["resources"]
                if (rule["apiGroups"], resource) != ([""], "services")
            ],
        }
        for rule in rules
    ]
    less.append({"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]})
    may = ("auth", "can-i", "patch", "services", "-n", namespace.name, f"--as={OPERATOR}")
    try:
        cluster.kubectl("patch", *role, "--type=merge", "-p", json.dumps({"rules": less}))
        wait_for("the right to be gone", lambda: "no" in cluster.kubectl(*may, check=False).stdout)
        namespace.apply(container_backend("b", script="", replicas=0))
        condition = namespace.wait_object("modelbackend", "b", "Ready", "False", reason="Forbidden")
        assert condition_of(condition, "Ready")["message"].startswith(
            f'Service b-backend: services "b-backend" is forbidden: User "{OPERATOR}" cannot patch resource '
        )
        assert condition_of(condition, "Stalled")["reason"] == "Forbidden"
        assert namespace.get("deployment", "b-backend") is not None
    finally:
        cluster.kubectl("patch", *role, "--type=merge", "-p", json.dumps({"rules": rules}))
    assert condition_of(namespace.wait_object("modelbackend", "b", "Ready"), "Stalled") == {}


def _refused(namespace: Namespace) -> str:
    """The API server's refusal of a Service in the namespace; empty if it accepts one."""
    command = ("-n", namespace.name, "create", "--dry-run=server", "-f", "-")
    done = namespace.cluster.kubectl(*command, input=json.dumps(PROBE), check=False)
    return done.stderr if done.returncode else ""
