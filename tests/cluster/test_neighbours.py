"""Other objects in a namespace do not affect an endpoint's clients."""

from __future__ import annotations

import json

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Load, Namespace, endpoint, ledger_backend, ledger_code, split

MANY = 100


def shares(namespace: Namespace) -> str:
    """The backends that share the endpoint's requests, by its status."""
    status = (namespace.get("modelendpoint", "e") or {}).get("status") or {}
    return str(status.get("shares"))


def test_a_canary_that_was_never_ready_costs_no_request(namespace: Namespace, load: Load) -> None:
    """An image that is not there: its 10 % are answered by the others, and the split waits for it by name."""
    namespace.apply(
        ledger_code(),
        ledger_backend("stable", collector=load.port),
        ledger_backend("canary", collector=load.port, image="penstock.test/typo:1"),
        endpoint("e", "stable", timeout="5s", coldStart={"timeout": "5s"}),
        split("s", "e", {"stable": 90, "canary": 10}),
    )
    namespace.wait_ready("modelbackend", "stable")
    condition = namespace.wait_condition("trafficsplit", "s", "Ready", "False", reason="WaitingForBackend")
    assert "canary" in condition["message"]
    wait_for("the canary to lose its share", lambda: shares(namespace) == "stable 100%")
    namespace.wait_condition("modelendpoint", "e", "RouterReady")
    items = [{"id": number} for number in range(MANY)]
    answers = namespace.ask(namespace.url("e"), items)
    assert [(status, backend) for status, backend, _ in answers] == [(200, "stable")] * MANY

    namespace.apply(ledger_backend("canary", collector=load.port))
    namespace.wait_ready("modelbackend", "canary")
    namespace.wait_ready("trafficsplit", "s")
    namespace.wait_ready("modelendpoint", "e")
    answers = namespace.ask(namespace.url("e"), items)
    assert {status for status, _, _ in answers} == {200}
    assert {backend for _, backend, _ in answers} == {"stable", "canary"}


def test_a_service_is_a_backends_by_its_labels_not_by_its_name(namespace: Namespace, load: Load) -> None:
    """A user's own Service `x-backend` gets no request, with or without a backend of that name."""

    def service(name: str) -> dict[str, object]:
        # It leads to pods that would answer.
        port = {"name": "http", "port": 80, "targetPort": 8012}
        selector = {"penstock.dev/backend": "private"}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"{name}-backend"},
            "spec": {"selector": selector, "ports": [port]},
        }

    namespace.apply(service("missing"), service("taken"))
    short = {"timeout": "2s", "coldStart": {"timeout": "1s"}}
    namespace.apply(
        ledger_code(),
        ledger_backend("private", collector=load.port),
        ledger_backend("taken", collector=load.port),
        endpoint("p", "private"),
        endpoint("m", "missing", **short),
        endpoint("t", "taken", **short),
    )
    namespace.wait_ready("modelendpoint", "p")
    namespace.wait_condition("modelendpoint", "m", "BackendsReady", "False", reason="BackendMissing")
    condition = namespace.wait_condition("modelendpoint", "t", "BackendsReady", "False", reason="NoService")
    assert "taken-backend" in condition["message"]
    namespace.wait_condition("modelbackend", "taken", "Ready", "False", reason="NameTaken")
    body = json.dumps({"instances": [{"id": 1}]})
    assert namespace.curl(namespace.url("p"), body=body)[0] == 200
    for name in ("m", "t"):
        namespace.wait_condition("modelendpoint", name, "RouterReady")
        status, _, text = namespace.curl(namespace.url(name), body=body)
        assert (status, json.loads(text)["reason"]) == (503, "backend_missing")
    # With the name free again the backend gets its Service, and the endpoint its requests answered.
    namespace.kubectl("delete", "service", "taken-backend")
    namespace.wait_ready("modelbackend", "taken")
    namespace.wait_ready("modelendpoint", "t")
    assert namespace.curl(namespace.url("t"), body=body)[0] == 200


def test_no_client_reconfigures_a_model(namespace: Namespace, load: Load) -> None:
    """Neither through its endpoint nor at its backend's own Service; the model keeps its userConfig."""
    namespace.apply(
        ledger_code(),
        ledger_backend("b", collector=load.port),
        endpoint("e", "b"),
    )
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "e")
    (pod,) = namespace.pods("b")
    for url in (
        namespace.url("e", "/-/reconfigure"),
        namespace.url("e", "/-/reconfigur%65/"),
        f"http://{pod['status']['podIP']}:8012/-/reconfigure",
    ):
        status, _, text = namespace.curl(url, body='{"threshold": 9}')
        assert (status, json.loads(text)["reason"]) == (403, "forbidden"), url
    # The pod's two containers share what shows the model who reconfigures it.
    spec = pod["spec"]
    secrets = {
        variable["value"]
        for container in (*spec["initContainers"], *spec["containers"])
        for variable in container.get("env") or ()
        if variable["name"] == "PENSTOCK_RECONFIGURE_SECRET"
    }
    assert len(secrets) == 1
