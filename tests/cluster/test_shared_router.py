"""The router that namespaces share: equal names apart, a tenant asleep, and the change to it and back."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    INSTALLED_IN,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    ledger_backend,
    ledger_code,
)

ROUTERS = "app.kubernetes.io/name=penstock-router"
SHARED = "app.kubernetes.io/name=penstock-shared-router"
ASLEEP = {"minReplicas": 0, "maxReplicas": 1, "targetLoad": 4, "scaleToZero": {"after": "10m"}}


def use(namespace: Namespace, mode: str) -> None:
    """Label a namespace, as an admin does."""
    namespace.kubectl("label", "namespace", namespace.name, f"penstock.dev/router={mode}", "--overwrite")


def leads_to_shared(namespace: Namespace) -> bool:
    """Whether the endpoint's Service, and that of the front door, lead to the shared router."""
    slices = [namespace.get("endpointslice", f"{name}-shared-router") for name in ("e", "penstock-router")]
    return all(slice_ is not None and slice_.get("endpoints") for slice_ in slices)


def who_answers(namespace: Namespace, url: str) -> set[str]:
    """The pods whose models answer."""
    status, fields, body = namespace.curl(url, body=json.dumps({"instances": [{"id": -1}]}))
    assert status == 200, body
    assert fields["x-penstock-backend"] == "m"
    return {each["pod"] for each in json.loads(body)["predictions"]}


def test_namespaces_share_a_router_and_move_to_it_and_back_without_loss(
    namespace: Namespace, namespaces: Callable[[str], Namespace], load: Load
) -> None:
    """Two with the same names, one of them at zero; a third, with routers of its own, comes and goes."""
    first, second = namespaces("shared a"), namespaces("shared b")
    for each in (first, second):
        use(each, "shared")
    for each, spec in (
        (first, {"replicas": 1}),
        (second, {"replicas": 0, "autoscaling": ASLEEP}),
        (namespace, {"replicas": 2}),
    ):
        each.apply(ledger_code(), ledger_backend("m", collector=load.port, **spec), endpoint("e", "m"))
    first.wait_ready("modelendpoint", "e")
    namespace.wait_ready("modelendpoint", "e")
    assert second.list("pods") == [], "a tenant that sleeps has no pod of ours"
    door = [f"http://{first.get('service', 'penstock-router')['spec']['clusterIP']}/e/predict"]  # type: ignore[index]
    answered = [who_answers(first, url) for url in (first.url("e"), *door)]
    woken = who_answers(second, second.url("e"))
    assert [*answered, woken] == [
        {pod["metadata"]["name"] for pod in each.pods("m")} for each in (first, first, second)
    ]
    for each in (first, second):
        assert each.list("pods", ROUTERS) == []
    system = Namespace(namespace.cluster, INSTALLED_IN)
    (router, *_) = system.list("pods", SHARED)
    metrics = namespace.curl(f"http://{router['status']['podIP']}:8001/metrics")[2]
    assert f'namespace="{first.name}",endpoint="e"' in metrics or f'namespace="{second.name}"' in metrics

    load.start(namespace.url("e"), rate=100)
    load.mark("own")
    use(namespace, "shared")
    wait_for("the Services to lead to the shared router", lambda: leads_to_shared(namespace))
    load.mark("both")
    wait_for("its own to go", lambda: namespace.list("pods", ROUTERS) == [], seconds=180)
    namespace.wait_ready("modelendpoint", "e")
    load.mark("shared")
    use(namespace, "own")
    wait_for("the shared router to be left", lambda: not leads_to_shared(namespace))
    load.mark("own again")
    namespace.wait_ready("modelendpoint", "e")
    wait_for("its part to go", lambda: namespace.name not in configured(system))
    summary = load.stop()
    assert_nothing_lost(summary)
    assert all(part["sent"] for part in summary["parts"]), summary["parts"]


def configured(system: Namespace) -> set[str]:
    """The namespaces in the shared router's settings."""
    record = system.get("configmap", "penstock-shared-router-settings")
    assert record is not None
    return set(json.loads(record["data"]["settings.json"])["tenants"])
