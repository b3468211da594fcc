"""Whatever is deleted first, what was admitted is answered; who is left without something says so."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.gated_model import Gate, gated
from tests.support.cluster.k8s import Namespace, container_backend, endpoint, is_going, split

HELD = 12

Answers = Future[list[tuple[int, str, Any]]]


def test_whatever_is_deleted_first_what_was_admitted_is_answered(namespace: Namespace) -> None:
    """The split, then the only backend, then the last endpoint and with it the router, each under requests.

    Requests that a model holds as the deletion is carried out are answered 200 by that model afterwards.
    """
    wide = {"maxBatchSize": 1, "maxConcurrentBatches": HELD, "defaultTimeout": "300s"}
    slow = {"timeout": "300s", "propagationDelay": "1s"}
    for name in ("a", "b"):
        namespace.apply(container_backend(name, script=gated(), batching=wide, drain=slow))
    namespace.apply(endpoint("e", "b", timeout="300s"), split("s", "e", {"a": 1, "b": 1}))
    for resource in ("modelbackend/a", "modelbackend/b", "modelendpoint/e", "trafficsplit/s"):
        namespace.wait_ready(*resource.split("/"))
    url = namespace.url("e")
    items = [{"id": number} for number in range(HELD)]
    gates = {name: Gate(namespace, name) for name in ("a", "b")}

    with ThreadPoolExecutor(max_workers=1) as pool:

        def admitted(*backends: str) -> Answers:
            for name in backends:
                gates[name].shut()
            answers = pool.submit(namespace.ask, url, items)
            wait_for("the models to hold all", lambda: sum(gates[name].held() for name in backends) == HELD)
            return answers

        def answered(answers: Answers, *backends: str) -> None:
            assert not answers.done()
            for name in backends:
                gates[name].open()
            results = answers.result()
            assert [status for status, _, _ in results] == [200] * HELD, results
            assert {backend for _, backend, _ in results} == set(backends)
            assert [body["predictions"] for _, _, body in results] == [[item] for item in items]

        answers = admitted("a", "b")
        namespace.kubectl("delete", "trafficsplit", "s")
        wait_for("the endpoint to lead to its own backend", lambda: _backends(namespace) == ["b"])
        answered(answers, "a", "b")

        # The routers get their settings a moment later; both gates are open now.
        wait_for(
            "the routers to lead there",
            lambda: {backend for _, backend, _ in namespace.ask(url, items)} == {"b"},
        )
        answers = admitted("b")
        namespace.kubectl("delete", "modelbackend", "b", "--wait=false")
        namespace.wait_condition("modelendpoint", "e", "BackendsReady", "False", reason="BackendMissing")
        wait_for("its pods to be deleted", lambda: not namespace.pods("b"))
        answered(answers, "b")

        namespace.apply(endpoint("e", "a", timeout="300s"))
        namespace.wait_ready("modelendpoint", "e")
        answers = admitted("a")
        namespace.kubectl("delete", "modelendpoint", "e")
        wait_for("the routers to be deleted", lambda: not _routers(namespace, living=True))
        wait_for("the backend to be unused", lambda: _used_by(namespace, "a") == [])
        answered(answers, "a")
        wait_for("the routers to have ended", lambda: not _routers(namespace, living=False))
    namespace.wait_ready("modelbackend", "a")


def _backends(namespace: Namespace) -> list[str]:
    status = (namespace.get("modelendpoint", "e") or {}).get("status") or {}
    return [backend["name"] for backend in status.get("backends") or []]


def _used_by(namespace: Namespace, name: str) -> list[str]:
    status = (namespace.get("modelbackend", name) or {}).get("status") or {}
    return list(status.get("usedBy") or [])


def _routers(namespace: Namespace, *, living: bool) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in namespace.list("pods", "app.kubernetes.io/name=penstock-router")
        if not (living and is_going(pod))
    ]
