"""The router that namespaces share: equal names apart, a tenant asleep, changes to it and back, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    INSTALLED_IN,
    ROOT,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    is_going,
    ledger_backend,
    ledger_code,
)
from tests.support.cluster.release import operator_metric, upgrade
from tests.support.cluster.ui import UserPage, user_page
from tests.support.pages.page import Page

ROUTERS = "app.kubernetes.io/name=penstock-router"
SHARED = "app.kubernetes.io/name=penstock-shared-router"
AUTOSCALED = ("--set", "router.autoscaling.enabled=true", "--set", "router.autoscaling.maxReplicas=3")
FLIPS = 8
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
    namespace: Namespace, namespaces: Callable[[str], Namespace], load: Load, tmp_path: Path
) -> None:
    """Two with the same names, one of them at zero; a third, with its own routers, comes, flips and goes."""
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
    with user_page(namespace, tmp_path) as url:
        page = UserPage(url)

        def measured() -> bool:
            view = page.view("ModelEndpoint", namespace.name, "e")
            return bool(view["routers"]) and all(flow["rate"] and flow["p99"] for flow in view["flows"])

        wait_for("the page to show what shared routers measure", measured)
        body = json.dumps({"instances": [{"id": -2}]})
        sent = {"method": "POST", "path": "/predict", "contentType": "application/json", "body": body}
        said = page.ask(f"api/try/{namespace.name}/e", sent)
        assert said["status"] == 200, said
    flip(namespace, load, system)
    use(namespace, "own")
    load.mark("own again")
    wait_for("the shared router to be left", lambda: not leads_to_shared(namespace))
    namespace.wait_ready("modelendpoint", "e")
    wait_for("its part to go", lambda: namespace.name not in configured(system))
    summary = load.stop()
    assert_nothing_lost(summary)
    assert all(part["sent"] for part in summary["parts"]), summary["parts"]


def flip(namespace: Namespace, load: Load, system: Namespace) -> None:
    """Change the label each second, at last to the shared router again; a change costs a few writes."""
    before = operator_metric(system, "penstock_operator_writes_total")
    for number in range(FLIPS):
        answered = load.mark("flips")["answered"]
        use(namespace, ("own", "shared")[number % 2])
        wait_for("a second's answers", lambda: load.mark("flips")["answered"] >= answered + 100)  # noqa: B023
    written = operator_metric(system, "penstock_operator_writes_total") - before
    assert written < 40 * FLIPS


def configured(system: Namespace) -> dict[str, list[str]]:
    """The endpoints in the shared router's settings, by namespace."""
    record = system.get("configmap", "penstock-shared-router-settings")
    assert record is not None
    tenants = json.loads(record["data"]["settings.json"])["tenants"]
    return {name: [each["name"] for each in tenant["endpoints"]] for name, tenant in tenants.items()}


def shared_routers(system: Namespace) -> dict[str, str]:
    """Name and address of each shared router's pod that is not going."""
    pods = [pod for pod in system.list("pods", SHARED) if not is_going(pod)]
    return {pod["metadata"]["name"]: pod["status"].get("podIP", "") for pod in pods}


def led_to(namespace: Namespace) -> set[str]:
    """The shared routers' addresses to which the endpoint's Service leads."""
    slice_ = namespace.get("endpointslice", "e-shared-router") or {}
    return {address for each in slice_.get("endpoints") or () for address in each["addresses"]}


def served(namespace: Namespace, load: Load) -> None:
    """A namespace on the shared router, with a model that the load asks, ready."""
    use(namespace, "shared")
    namespace.apply(ledger_code(), ledger_backend("m", collector=load.port, replicas=1), endpoint("e", "m"))
    namespace.wait_ready("modelendpoint", "e")
    wait_for("the Services to lead to the shared router", lambda: leads_to_shared(namespace))


def test_a_namespace_that_goes_and_one_with_too_many_endpoints_cost_no_other_an_answer(
    namespace: Namespace, namespaces: Callable[[str], Namespace], load: Load
) -> None:
    """One is deleted with all that is in it while it is asked; one makes endpoints up to its quota."""
    system = Namespace(namespace.cluster, INSTALLED_IN)
    goes, loops = namespaces("goes"), namespaces("loops")
    served(namespace, load)
    with Load(goes) as asked:
        served(goes, asked)
        load.start(namespace.url("e"), rate=100)
        asked.start(goes.url("e"), rate=100)
        asked.mark("served")
        goes.kubectl("delete", "namespace", goes.name, "--wait=false")
        gone = lambda: goes.get("namespace", goes.name) is None  # noqa: E731
        wait_for("the namespace to go, with all that is in it", gone)
        wait_for("its part to go", lambda: goes.name not in configured(system))
    for address in shared_routers(system).values():
        url = f"http://{address}:8001/metrics"
        wait_for("its series to go", lambda url=url: goes.name not in namespace.curl(url)[2])  # type: ignore[misc]

    use(loops, "shared")
    blocks = map(yaml.safe_load, Page.of(ROOT / "docs/routing.md").blocks("yaml"))
    (quota,) = [block for block in blocks if block.get("kind") == "ResourceQuota"]
    most = int(quota["spec"]["hard"]["count/modelendpoints.penstock.dev"])
    loops.apply(quota)
    holds = lambda: ((loops.get("resourcequota", "penstock") or {}).get("status") or {}).get("used")  # noqa: E731
    wait_for("the quota to hold", holds)
    loops.apply(*[endpoint(f"e{number}", "m") for number in range(most)])
    over = loops.kubectl("create", "-f", "-", input=yaml.safe_dump(endpoint("over", "m")), check=False)
    assert "exceeded quota: penstock" in over
    wait_for("its endpoints to be served", lambda: len(configured(system).get(loops.name, ())) == most)
    assert_nothing_lost(load.stop())


def test_routers_come_and_go_as_an_autoscaler_asks_and_one_that_died_unseen_is_left(
    penstock: Cluster, namespace: Namespace, load: Load
) -> None:
    """More of them and fewer lose nothing; one that dies while no operator acts is left once one does."""
    system = Namespace(penstock, INSTALLED_IN)
    upgrade(penstock, *AUTOSCALED)
    try:
        served(namespace, load)
        scaler = wait_for("the autoscaler", lambda: system.get("hpa", "penstock-shared-router"))
        assert scaler["spec"]["scaleTargetRef"]["name"] == "penstock-shared-router"
        load.start(namespace.url("e"), rate=100)
        for count in (3, 2):
            system.kubectl("scale", "deployment", "penstock-shared-router", f"--replicas={count}")
            wait_for(f"{count} of them", lambda: len(led_to(namespace)) == count)  # noqa: B023
            wait_for("no others", lambda: led_to(namespace) == set(shared_routers(system).values()))
        wait_for("the end of the drain", lambda: len(system.list("pods", SHARED)) == 2)
        assert_nothing_lost(load.stop())

        system.kubectl("scale", "deployment", "penstock-operator", "--replicas=0")
        wait_for("no operator", lambda: system.list("pods", "app.kubernetes.io/name=penstock-operator") == [])
        dies, address = shared_routers(system).popitem()
        system.kubectl("delete", "pod", dies, "--grace-period=0", "--force")
        wait_for("another in its place", lambda: len(set(shared_routers(system)) - {dies}) == 2)
        assert address in led_to(namespace), "nobody could remove it"
    finally:
        upgrade(penstock)
    wait_for("it to be left", lambda: led_to(namespace) == set(shared_routers(system).values()) - {""})
    load.start(namespace.url("e"), rate=100, count=500)
    assert_nothing_lost(load.finish(seconds=120))
