"""Values that the apiserver admits but our parsers refuse: they affect only their own object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Namespace, container_backend, endpoint
from tests.support.cluster.release import OPERATOR_PODS, wait_in_force

LEVELS = 3000
DEEP = "@deep@"
GOOD = '{"instances": [1]}'
SERVES = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(b"ok")
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer(json.dumps({"predictions": asked["instances"]}).encode())
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""


def poisoned() -> dict[str, dict[str, Any]]:
    """A backend for each free-form field that no type of Kubernetes' own bounds, by name."""
    python = {"python": {"image": "none", "target": "m:C", "initKwargs": {"a": DEEP}}}
    warmup = {"requests": [{"path": "/", "body": DEEP}]}
    return {
        "user-config": container_backend("user-config", script="", userConfig=DEEP),
        "init-kwargs": {**container_backend("init-kwargs", script=""), "spec": {"model": python}},
        "warmup-body": container_backend("warmup-body", script="", warmup=warmup),
        "volume": container_backend("volume", script="", podTemplate={"volumes": [{"name": "v", "a": DEEP}]}),
        "affinity": container_backend("affinity", script="", podTemplate={"affinity": {"a": DEEP}}),
    }


def ready_of(namespace: Namespace, name: str) -> dict[str, Any]:
    """The condition Ready of a backend that our parsers refuse; {} if it does not have one."""
    path = "jsonpath={.status.conditions[?(@.type=='Ready')]}"
    condition: dict[str, Any] = json.loads(namespace.kubectl("get", "modelbackend", name, "-o", path) or "{}")
    return condition


@pytest.mark.xdist_group("fight")
def test_an_object_of_3000_levels_is_unreadable_and_the_others_serve_on(
    namespace: Namespace, operator: Namespace
) -> None:
    """One of each free-form field: reported at once, and by an operator that starts later."""
    for backend in poisoned().values():
        text = json.dumps(backend).replace(json.dumps(DEEP), "[" * LEVELS + "]" * LEVELS)
        namespace.kubectl("create", "-f", "-", input=text)
    namespace.apply(container_backend("good", script=SERVES), endpoint("e", "good"))
    namespace.wait_ready("modelbackend", "good")
    namespace.wait_ready("modelendpoint", "e")
    assert namespace.curl(namespace.url("e"), body=GOOD)[0] == 200

    def unreadable() -> bool:
        return all(ready_of(namespace, name).get("reason") == "Unreadable" for name in poisoned())

    wait_for("each to be reported", unreadable)
    message = ready_of(namespace, "user-config")["message"]
    assert "spec.userConfig" in message
    assert "128 levels" in message

    operator.kubectl("delete", "pods", "-l", OPERATOR_PODS)
    wait_in_force(namespace.cluster)
    namespace.apply(container_backend("later", script=SERVES))
    namespace.wait_ready("modelbackend", "later")
    assert unreadable()
    for pod in operator.list("pods", OPERATOR_PODS):
        assert [container["restartCount"] for container in pod["status"]["containerStatuses"]] == [0]

    namespace.kubectl("delete", "modelbackend/user-config")
    namespace.apply(container_backend("user-config", script=SERVES))
    namespace.wait_ready("modelbackend", "user-config")
