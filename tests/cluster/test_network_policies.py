"""NetworkPolicies on a real apiserver: taken, and selecting the pods they are meant for.

Nothing here enforces them: whether a connection is refused is for the cluster's CNI plugin to show.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import INSTALLED_IN, Load, Namespace, endpoint, ledger_backend, ledger_code
from tests.support.cluster.release import upgrade
from tests.support.pages.documented import default_deny_example


def selected(namespace: Namespace, selector: dict[str, Any]) -> set[str]:
    """Names of the pods that a label selector selects, as the apiserver sees it."""
    assert set(selector) <= {"matchLabels"}
    text = ",".join(f"{key}={value}" for key, value in selector.get("matchLabels", {}).items())
    return {pod["metadata"]["name"] for pod in namespace.list("pods", text)}


def of_deployment(namespace: Namespace, name: str) -> set[str]:
    """Names of a Deployment's pods, by who owns them."""
    return {
        pod["metadata"]["name"]
        for pod in namespace.list("pods")
        for owner in pod["metadata"].get("ownerReferences") or ()
        if owner["name"].rpartition("-")[0] == name
    }


def policy(namespace: Namespace, name: str) -> dict[str, Any]:
    """A policy's spec."""
    spec: dict[str, Any] = (namespace.get("networkpolicy", name) or {})["spec"]
    return spec


def test_policies_select_their_pods_and_follow_the_chart(
    namespace: Namespace, operator: Namespace, load: Load
) -> None:
    """Each selects its Deployment's pods, and its peers; values change them, restarting nothing.

    The operator's lets each pod that Penstock renders or injects report.
    """
    namespace.apply(
        ledger_code(),
        ledger_backend("one", collector=load.port, replicas=2),
        ledger_backend("two", collector=load.port),
        endpoint("one", "one"),
    )
    for name in ("one", "two"):
        namespace.wait_ready("modelbackend", name)
    namespace.wait_ready("modelendpoint", "one")
    for name in ("one-backend", "two-backend", "penstock-router"):
        pods = selected(namespace, policy(namespace, name)["podSelector"])
        assert pods == of_deployment(namespace, name)
        assert pods
    (rule,) = policy(namespace, "one-backend")["ingress"]
    assert selected(namespace, rule["from"][0]["podSelector"]) == of_deployment(namespace, "penstock-router")
    assert not selected(namespace, rule["from"][1]["podSelector"])  # routers of an endpoint's own
    assert rule["from"][2]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": operator.name
    }
    assert selected(namespace, rule["from"][3]["podSelector"]) == {
        pod["metadata"]["name"] for pod in namespace.list("pods")
    }
    (port,) = (namespace.get("service", "one") or {})["spec"]["ports"]
    (opened,) = policy(namespace, "penstock-router")["ingress"]
    reporters_may_report(namespace, operator)
    assert any(rule["port"] <= port["targetPort"] <= rule.get("endPort", 0) for rule in opened["ports"])

    checked = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = namespace.kubectl(*checked, input=default_deny_example())
    assert said.count("created (server dry run)") == 3

    before = {pod["metadata"]["uid"] for pod in namespace.list("pods", "penstock.dev/backend")}
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    try:
        egress = [{"ports": [{"protocol": "TCP", "port": 6443}]}]
        upgrade(
            namespace.cluster,
            *("--set-json", f"metrics.from={json.dumps([peer])}"),
            *("--set-json", f"networkPolicies.egress={json.dumps(egress)}"),
        )
        wait_for("the peers of metrics", lambda: len(policy(namespace, "two-backend")["ingress"]) == 2)
        metrics = policy(namespace, "two-backend")["ingress"][1]
        assert metrics == {"from": [peer], "ports": [{"protocol": "TCP", "port": 8013}]}
        limited = wait_for("what routers open", lambda: policy(namespace, "penstock-router").get("egress"))
        models, reports = (rule["to"][0] for rule in limited[:2])
        assert limited[-1] == egress[0]
        assert selected(namespace, models["podSelector"]) == of_deployment(
            namespace, "one-backend"
        ) | of_deployment(namespace, "two-backend")
        labels = operator.get("namespace", INSTALLED_IN) or {}
        assert reports["namespaceSelector"]["matchLabels"].items() <= labels["metadata"]["labels"].items()
        assert selected(operator, reports["podSelector"]) == of_deployment(operator, "penstock-operator")
        assert policy(operator, "penstock-operator")["egress"][-1] == egress[0]
        upgrade(namespace.cluster, "--set", "networkPolicies.enabled=false")
        wait_for("no policy", lambda: not namespace.list("networkpolicies"))
        assert operator.get("networkpolicy", "penstock-operator") is None
    finally:
        upgrade(namespace.cluster)
    wait_for("three policies again", lambda: len(namespace.list("networkpolicies")) == 3)
    assert {pod["metadata"]["uid"] for pod in namespace.list("pods", "penstock.dev/backend")} == before


def reporters_may_report(namespace: Namespace, operator: Namespace) -> None:
    """The operator's policy selects its pods, and takes reports of models, routers and injected pods."""
    policies = policy(operator, "penstock-operator")
    assert selected(operator, policies["podSelector"]) == of_deployment(operator, "penstock-operator")
    reporters, asks = policies["ingress"]
    peer, injected = reporters["from"]
    assert peer["namespaceSelector"] == injected["namespaceSelector"] == {}
    asked = {"matchExpressions": [{"key": "penstock.dev/inject", "operator": "Exists"}]}
    assert injected["podSelector"] == asked
    names = ("one-backend", "two-backend", "penstock-router")
    reporting = {pod for name in names for pod in of_deployment(namespace, name)}
    assert selected(namespace, peer["podSelector"]) == reporting
    assert [port["port"] for port in reporters["ports"]] == [8016]
    assert [port["port"] for port in asks["ports"]] == [8015]
