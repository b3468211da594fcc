"""Reconciling on a real apiserver: convergence, silence once converged, repair, removal."""

from __future__ import annotations

import datetime
import json
import time

from penstock_operator.reconcile.context import SETTLE_SECONDS
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    WRITTEN_KINDS,
    Load,
    Namespace,
    endpoint,
    ledger_backend,
    ledger_code,
    split,
    versions,
)
from tests.support.cluster.release import (
    OPERATOR_PODS,
    leading_pod,
    operator_idle,
    operator_lease,
    operator_metrics,
)
from tests.support.ledger.zero_loss import is_ready


def serve(namespace: Namespace, load: Load, **spec: object) -> None:
    """A ledger backend `b` behind an endpoint `e`, both Ready."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port, **spec), endpoint("e", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "e")


def events(namespace: Namespace) -> dict[str, str]:
    """The operator's Events about the namespace's resources."""
    return {
        item["metadata"]["name"]: item["note"]
        for item in namespace.list("events.events.k8s.io")
        if item.get("reportingController") == "penstock.dev/operator"
    }


def restart_operator(operator: Namespace, *, grace: str = "30") -> None:
    """End the operator's pod and wait for the next one."""
    name = leading_pod(operator)["metadata"]["name"]
    operator.kubectl("delete", "pod", name, f"--grace-period={grace}", f"--force={str(grace == '0').lower()}")

    def another() -> bool:
        pods = operator.list("pods", OPERATOR_PODS)
        return any(is_ready(pod) and pod["metadata"]["name"] != name for pod in pods)

    wait_for("the operator's next pod", another)


SETTLED = SETTLE_SECONDS + 2.0
"""Seconds after which a new leader waits for no pod's first report any more."""


class Look:
    """The writes in a namespace once all work is done, and the state of its pods then."""

    def __init__(self, namespace: Namespace, operator: Namespace) -> None:
        self.versions: dict[str, str] = {}
        self.events: dict[str, str] = {}
        self.pods: dict[str, object] = {}
        self._namespace = namespace
        self._operator = operator
        wait_for("all reports to be taken, and nothing to be left to do", self._settled, every=0.5)

    def _settled(self) -> bool:
        """Whether nothing waits, every pod reports, and all is as it was at the look before."""
        metrics = operator_metrics(self._operator)
        mark = f'namespace="{self._namespace.name}",backend="b"'
        reporting = [
            value for series, value in metrics.items() if mark in series and 'state="reporting"' in series
        ]
        before = self.versions, self.events, self.pods
        self.versions, self.events = versions(self._namespace), events(self._namespace)
        self.pods = {
            pod["metadata"]["name"]: (pod["status"].get("conditions"), pod["status"].get("containerStatuses"))
            for pod in self._namespace.list("pods")
        }
        well = all(
            self._namespace.condition(kind, name, aspect).get("status") == "True"
            for kind, name, aspect in (
                ("modelbackend", "b", "SettingsApplied"),
                ("modelendpoint", "e", "RouterReady"),
            )
        )
        same = before == (self.versions, self.events, self.pods)
        # A new leader has by then done the work that waits for the pods' reports.
        acquired = operator_lease(self._operator.cluster)["acquireTime"]
        led = time.time() - datetime.datetime.fromisoformat(acquired).timestamp()
        return led > SETTLED and operator_idle(self._operator) and reporting == [1.0] and well and same


def test_a_second_reconcile_writes_nothing(namespace: Namespace, load: Load, operator: Namespace) -> None:
    """A new operator looks at everything again, leaves every object as it is, and sends no Event."""
    serve(namespace, load)
    for _ in range(4):
        before = Look(namespace, operator)
        assert before.events, "Events reported the transitions to Ready"
        restart_operator(operator)
        after = Look(namespace, operator)
        if after.pods == before.pods:
            break  # else a pod was not ready for a moment, and there was an Event to send
    assert after.pods == before.pods, "the pods never stood still through a restart"
    assert after.versions == before.versions
    assert after.events == before.events


def test_a_hand_edited_child_is_mended_and_a_removed_field_leaves_it(
    namespace: Namespace, load: Load
) -> None:
    """Drift goes back; what is taken out of the spec goes out of the child; what others add stays."""
    backend = ledger_backend("b", collector=load.port)
    backend["spec"]["podTemplate"]["nodeSelector"] = {"kubernetes.io/os": "linux"}
    namespace.apply(ledger_code(), backend)
    namespace.wait_ready("modelbackend", "b")

    def deployment() -> dict[str, object]:
        return namespace.get("deployment", "b-backend") or {}

    namespace.kubectl("annotate", "deployment", "b-backend", "somebody.example/note=mine")
    namespace.patch("deployment", "b-backend", {"spec": {"replicas": 3}})
    wait_for("one replica again", lambda: deployment()["spec"]["replicas"] == 1)
    namespace.patch("service", "b-backend", {"spec": {"selector": {"app": "something-else"}}})
    wait_for(
        "the Service's selector again",
        lambda: (
            (namespace.get("service", "b-backend") or {})["spec"]["selector"].get("penstock.dev/backend")
            == "b"
        ),
    )
    assert deployment()["metadata"]["annotations"]["somebody.example/note"] == "mine"

    assert deployment()["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    del backend["spec"]["podTemplate"]["nodeSelector"]
    namespace.apply(backend)
    wait_for(
        "the nodeSelector to leave",
        lambda: "nodeSelector" not in deployment()["spec"]["template"]["spec"],
    )


def test_delete_removes_everything(namespace: Namespace, load: Load) -> None:
    """After the resources are deleted none of our objects is left in the namespace, the router included."""
    serve(namespace, load)
    namespace.apply(split("s", "e", {"b": 1}))
    namespace.wait_ready("trafficsplit", "s")
    namespace.kubectl("delete", "modelendpoint/e", "trafficsplit/s", "modelbackend/b")

    def nothing() -> bool:
        left = json.loads(
            namespace.kubectl(
                *("get", WRITTEN_KINDS + ",pods", "-o", "json", "-l", "app.kubernetes.io/managed-by=penstock")
            )
        )["items"]
        return not left

    wait_for("none of our objects to be left", nothing, seconds=240)


def test_an_operator_killed_in_the_middle_converges(
    namespace: Namespace, load: Load, operator: Namespace
) -> None:
    """The operator is killed again and again while resources change; the last word wins."""
    namespace.apply(ledger_code())
    for index in range(6):
        namespace.apply(
            ledger_backend(f"b{index}", collector=load.port, replicas=0 if index > 1 else 1),
            endpoint(f"e{index}", f"b{index}"),
        )
        if index in (1, 3):
            restart_operator(operator, grace="0")
    namespace.kubectl("delete", "modelbackend", "b5", "--wait=false")
    restart_operator(operator, grace="0")
    for index in range(2):
        namespace.wait_ready("modelbackend", f"b{index}")
        namespace.wait_ready("modelendpoint", f"e{index}")
    for index in range(2, 5):
        namespace.wait_condition("modelbackend", f"b{index}", "Ready", reason="ScaledToZero")
        namespace.wait_condition("modelendpoint", f"e{index}", "Accepted")
    namespace.wait_condition("modelendpoint", "e5", "BackendsReady", "False", reason="BackendMissing")
    wait_for("b5's Deployment to be gone", lambda: namespace.get("deployment", "b5-backend") is None)
    for index in range(2, 5):
        assert namespace.get("deployment", f"b{index}-backend")["spec"]["replicas"] == 0
    ports = [namespace.get("service", f"e{index}")["spec"]["ports"][0]["targetPort"] for index in range(6)]
    assert len(set(ports)) == 6, ports
