"""Reconciling on a real apiserver: convergence, silence once converged, repair, removal."""

from __future__ import annotations

import json

from tests.support.k8s import (
    WRITTEN_KINDS,
    Load,
    Namespace,
    endpoint,
    ledger_backend,
    ledger_code,
    operator_metric,
    split,
    versions,
    wait_for,
)


def serve(namespace: Namespace, load: Load, **spec: object) -> None:
    """A ledger backend `b` behind an endpoint `e`, both Ready."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port, **spec), endpoint("e", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "e")


def events(namespace: Namespace) -> dict[str, str]:
    """What the operator told of the namespace's resources, in Events."""
    return {
        item["metadata"]["name"]: item["note"]
        for item in namespace.list("events.events.k8s.io")
        if item.get("reportingController") == "penstock.dev/operator"
    }


def restart_operator(operator: Namespace, *, grace: str = "30") -> None:
    """End the operator's pod and wait for the next one."""
    (pod,) = operator.list("pods", "app.kubernetes.io/name=penstock-operator")
    name = pod["metadata"]["name"]
    operator.kubectl("delete", "pod", name, f"--grace-period={grace}", f"--force={str(grace == '0').lower()}")

    def another() -> bool:
        pods = operator.list("pods", "app.kubernetes.io/name=penstock-operator")
        return any(
            pod["metadata"]["name"] != name
            and any(
                c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", [])
            )
            for pod in pods
        )

    wait_for("the operator's next pod", another, seconds=90)


def test_a_second_reconcile_writes_nothing(namespace: Namespace, load: Load, operator: Namespace) -> None:
    """A new operator looks at everything again, leaves every object as it is, and has no Event to tell."""
    serve(namespace, load)

    def quiet() -> bool:
        seen.append(versions(namespace))
        return len(seen) > 8 and all(one == seen[-1] for one in seen[-8:])

    seen: list[dict[str, str]] = []
    wait_for("quiet", quiet, seconds=60, every=0.5)
    before, told = seen[-1], events(namespace)
    assert told, "the transitions to Ready were told"
    restart_operator(operator)
    wait_for(
        "the new operator to have looked at everything",
        lambda: operator_metric(operator, "penstock_operator_reconcile_duration_seconds_count") > 1,
        seconds=60,
    )
    # It also has to take this backend's reports: only then is its picture whole.
    wait_for(
        "reports to be taken again",
        lambda: operator_metric(operator, "penstock_operator_reports_total") > 3,
        seconds=60,
    )
    seen.clear()
    wait_for("quiet again", quiet, seconds=60, every=0.5)
    assert versions(namespace) == before
    assert events(namespace) == told


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
    wait_for("one replica again", lambda: deployment()["spec"]["replicas"] == 1, seconds=60)
    namespace.patch("service", "b-backend", {"spec": {"selector": {"app": "something-else"}}})
    wait_for(
        "the Service's selector again",
        lambda: (
            (namespace.get("service", "b-backend") or {})["spec"]["selector"].get("penstock.dev/backend")
            == "b"
        ),
        seconds=60,
    )
    assert deployment()["metadata"]["annotations"]["somebody.example/note"] == "mine"

    assert deployment()["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    del backend["spec"]["podTemplate"]["nodeSelector"]
    namespace.apply(backend)
    wait_for(
        "the nodeSelector to leave",
        lambda: "nodeSelector" not in deployment()["spec"]["template"]["spec"],
        seconds=60,
    )


def test_delete_removes_everything(namespace: Namespace, load: Load) -> None:
    """After the resources are deleted nothing of ours is left in the namespace, the router included."""
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

    wait_for("nothing of ours to be left", nothing, seconds=120)


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
    wait_for("b5's Deployment to be gone", lambda: namespace.get("deployment", "b5-backend") is None)
    for index in range(2, 5):
        assert namespace.get("deployment", f"b{index}-backend")["spec"]["replicas"] == 0
    namespace.wait_condition("modelendpoint", "e5", "BackendsReady", "False", reason="BackendMissing")
    ports = [namespace.get("service", f"e{index}")["spec"]["ports"][0]["targetPort"] for index in range(6)]
    assert len(set(ports)) == 6
