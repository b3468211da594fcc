"""Bad input: each gives its condition with reason and message, or its problem+json; all else serves on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.gated_model import Gate, gated
from tests.support.cluster.k8s import (
    Load,
    Namespace,
    condition_of,
    container_backend,
    endpoint,
    ledger_backend,
    ledger_code,
    split,
)

GOOD = '{"instances": [{"id": 1}]}'


def test_requests_that_cannot_be_read_are_refused_and_neighbours_are_served(
    namespace: Namespace, load: Load
) -> None:
    """Not JSON, no instances, a name twice, too large, cut in the middle: problem+json; then a good one."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port), endpoint("e", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "e")
    url = namespace.url("e")
    for body, status, reason in (
        ("{not json", 400, "bad_json"),
        ('{"inputs": []}', 422, "bad_shape"),
        ('{"instances": 3}', 422, "bad_shape"),
        ('{"instances": [1], "instances": [2]}', 400, "bad_json"),
        ("[" * 600 + "]" * 600, 400, "bad_json"),
        ('{"instances": ["' + "x" * (65 * 1024 * 1024) + '"]}', 413, "too_large"),
    ):
        code, headers, text = namespace.curl(url, body=body)
        assert code == status, text
        assert headers["content-type"] == "application/problem+json"
        problem = json.loads(text)
        assert (problem["reason"], problem["status"]) == (reason, status)
        assert problem["detail"]
        assert namespace.curl(url, body=GOOD)[0] == 200

    host = url.removeprefix("http://").split("/")[0]
    cut = (
        "import socket; s = socket.create_connection(('" + host + "', 80)); "
        "s.sendall(b'POST /predict HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 100\\r\\n\\r\\n{'); s.close()"
    )
    namespace.run_python(cut)
    assert namespace.curl(url, body=GOOD)[0] == 200


def test_a_model_that_answers_garbage_gives_502_alone(namespace: Namespace, load: Load) -> None:
    """A wrong number of predictions is 502 `bad_answer` for its callers; another backend is untouched.

    Not run again: a request that runs alone gets the model's answer as it is, whatever its number.
    """
    namespace.apply(
        ledger_code(),
        container_backend(
            "garbage",
            script=gated("[1, 2, 3, 4, 5]"),
            batching={"defaultTimeout": "120s", "onBatchError": "Fail"},
        ),
        ledger_backend("good", collector=load.port),
        endpoint("garbage", "garbage", timeout="120s"),
        endpoint("good", "good"),
    )
    for name in ("garbage", "good"):
        namespace.wait_ready("modelbackend", name)
        namespace.wait_ready("modelendpoint", name)
    # Batches of one pass byte for byte: the checks concern what was put together from several.
    gate, url = Gate(namespace, "garbage"), namespace.url("garbage")
    gate.open()
    status, _, text = namespace.curl(url, body='{"instances": [1]}')
    assert status == 200, text
    # While the model holds the first, all others come together.
    gate.shut()
    with ThreadPoolExecutor(max_workers=1) as pool:
        asked = pool.submit(namespace.ask, url, [{"id": n} for n in range(64)])
        gate.open_with(64)
        answers = asked.result()
    assert {status for status, _, _ in answers} <= {200, 502}
    problems = [body for status, _, body in answers if status == 502]
    assert problems
    assert {problem["reason"] for problem in problems} == {"bad_answer"}
    assert namespace.curl(namespace.url("good"), body=GOOD)[0] == 200


def test_a_model_whose_image_is_not_there_is_told(namespace: Namespace) -> None:
    """ModelLoaded=False with the reason and the image; `status.model` says the same."""
    namespace.apply(container_backend("b", script="pass", image="localhost/penstock/no-such-image:dev"))
    condition = namespace.wait_object("modelbackend", "b", "ModelLoaded", "False", reason="ImagePullFailed")
    assert "localhost/penstock/no-such-image:dev" in condition_of(condition, "ModelLoaded")["message"]
    model = condition["status"]["model"]
    assert model["state"] == "FailedToLoad"
    assert "localhost/penstock/no-such-image:dev" in model["lastFailure"]
    assert condition_of(condition, "Ready")["status"] == "False"


def test_a_model_that_crashes_is_told_with_its_exit_code_and_its_last_words(namespace: Namespace) -> None:
    """In ModelLoaded and in `status.model`, which keeps them until the backend is well again."""
    script = "import sys; print('the weights are gone', file=sys.stderr); sys.exit(37)"
    namespace.apply(container_backend("b", script=script))
    last_words = "its last words: the weights are gone"

    def crashed() -> dict[str, Any] | None:
        # NB: it is Loading again for a moment at each new start, and keeps the last failure meanwhile; and
        # kubelet reads a container's last words from a log that may be written after its end.
        backend = namespace.get("modelbackend", "b") or {}
        loaded, model = condition_of(backend, "ModelLoaded"), (backend.get("status") or {}).get("model") or {}
        failed = loaded.get("reason") == "ContainerCrashed" and model.get("state") == "FailedToLoad"
        return backend if failed and loaded["message"].endswith(last_words) else None

    failure = wait_for("the status to show the crash with its last words", crashed)
    assert condition_of(failure, "ModelLoaded")["status"] == "False"
    assert "exited with code 37" in condition_of(failure, "ModelLoaded")["message"]
    assert "exited with code 37" in failure["status"]["model"]["lastFailure"]
    assert failure["status"]["model"]["lastFailure"].endswith(last_words)
    assert condition_of(failure, "Ready")["status"] == "False"


def test_what_is_missing_is_told_and_heals(namespace: Namespace, load: Load) -> None:
    """A missing policy, a missing backend, a split that names one: conditions; once there, Ready."""
    namespace.apply(
        ledger_code(),
        ledger_backend("b", collector=load.port, batchPolicyRef="later"),
        endpoint("e", "nowhere"),
        endpoint("f", "b"),
        split("s", "f", {"b": 1, "nowhere": 1}),
    )
    condition = namespace.wait_condition("modelbackend", "b", "Ready", "False", reason="BatchPolicyMissing")
    assert "later" in condition["message"]
    condition = namespace.wait_condition(
        "modelendpoint", "e", "BackendsReady", "False", reason="BackendMissing"
    )
    assert "nowhere" in condition["message"]
    condition = namespace.wait_condition("trafficsplit", "s", "Ready", "False", reason="BackendMissing")
    assert "nowhere" in condition["message"]

    namespace.apply(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "BatchPolicy",
            "metadata": {"name": "later"},
            "spec": {},
        },
        ledger_backend("nowhere", collector=load.port),
    )
    for kind, name in (
        ("modelbackend", "b"),
        ("modelbackend", "nowhere"),
        ("modelendpoint", "e"),
        ("trafficsplit", "s"),
    ):
        namespace.wait_ready(kind, name)
    assert namespace.curl(namespace.url("e"), body=GOOD)[0] == 200
    assert namespace.curl(namespace.url("f"), body=GOOD)[0] == 200


def test_a_name_taken_by_a_stranger_is_told_and_left_alone(namespace: Namespace, load: Load) -> None:
    """A foreign Service under a name that we would render is never touched; removed, we go on."""
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "b-backend", "labels": {"team": "somebody"}},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 5432}]},
    }
    namespace.apply(ledger_code(), foreign)
    before = namespace.get("service", "b-backend")
    namespace.apply(ledger_backend("b", collector=load.port))
    condition = namespace.wait_condition("modelbackend", "b", "Ready", "False", reason="NameTaken")
    assert "b-backend" in condition["message"]
    assert namespace.get("service", "b-backend") == before
    namespace.kubectl("delete", "service", "b-backend")
    namespace.wait_ready("modelbackend", "b")
    assert (namespace.get("service", "b-backend") or {})["spec"]["selector"]["penstock.dev/backend"] == "b"


def test_two_splits_on_one_endpoint_and_two_endpoints_on_one_route(namespace: Namespace, load: Load) -> None:
    """The oldest applies; the other's condition says so, and it takes over when the first is deleted."""
    namespace.apply(
        ledger_code(), ledger_backend("b", collector=load.port), endpoint("e", "b", route="/same")
    )
    namespace.apply(split("first", "e", {"b": 1}))
    namespace.wait_ready("trafficsplit", "first")
    namespace.wait_ready("modelendpoint", "e")
    namespace.apply(split("second", "e", {"b": 1}), endpoint("f", "b", route="/same"))
    namespace.wait_condition("trafficsplit", "second", "Accepted", "False", reason="Conflict")
    namespace.wait_condition("modelendpoint", "f", "Accepted", "False", reason="RouteConflict")
    namespace.kubectl("delete", "trafficsplit/first", "modelendpoint/e")
    namespace.wait_condition("modelendpoint", "f", "Accepted", "True")
