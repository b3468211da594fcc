"""The features of a sidecar, enabled by resources: protocols, streams, warm-up, userConfig, every knob."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.gated_model import Gate
from tests.support.cluster.k8s import MODEL_IMAGE, Namespace, container_backend, endpoint

SCRIPTS = Path(__file__).parent / "models"


def script(name: str, seconds: float = 0.2) -> str:
    """The text of a model program."""
    return (SCRIPTS / f"{name}.py").read_text().replace("time.sleep(0.2)", f"time.sleep({seconds})")


def restarts(namespace: Namespace, backend: str) -> list[int]:
    """The restarts of each container of a backend's pods."""
    return [
        status["restartCount"]
        for pod in namespace.pods(backend)
        for status in pod["status"]["containerStatuses"] + pod["status"]["initContainerStatuses"]
    ]


def settled(namespace: Namespace, backend: str) -> list[str]:
    """Uids of a backend's pods, which a change of something hot leaves as they are."""
    return sorted(pod["metadata"]["uid"] for pod in namespace.pods(backend))


def service(namespace: Namespace, backend: str) -> str:
    """The base URL of a backend's own Service."""
    return namespace.url(f"{backend}-backend", path="")


OVERLOAD = """
import asyncio, collections, json, sys
import aiohttp
url = sys.stdin.read()
async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async def one(n):
            async with session.post(url, json={"instances": [n]}) as answer:
                body = await answer.json(content_type=None)
                return str(answer.status) if answer.status == 200 else body["reason"]
        return await asyncio.gather(*(one(n) for n in range(16)))
print(json.dumps(collections.Counter(asyncio.run(main()))))
"""


def test_a_policys_objective_slots_and_priorities_take_effect_without_a_restart(namespace: Namespace) -> None:
    """An objective that the queue cannot keep refuses what it refused not before; no pod is replaced.

    Sixteen requests, half a second each, are eight seconds of work: most cannot be answered within two.
    """
    policy: dict[str, Any] = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "BatchPolicy",
        "metadata": {"name": "p"},
        "spec": {"maxBatchSize": 1, "maxQueuedItems": 100},
    }
    namespace.apply(policy, container_backend("slow", script=script("slow", 0.5), batchPolicyRef="p"))
    namespace.wait_ready("modelbackend", "slow")
    url = service(namespace, "slow") + "/predict"
    (pod,) = namespace.pods("slow")
    before = settled(namespace, "slow")
    assert json.loads(namespace.run_python(OVERLOAD, input=url)) == {"200": 16}

    policy["spec"] |= {
        "latencyObjective": "2s",
        "maxConcurrentBatches": 2,
        "priority": {"levels": 3, "default": 2},
        "fairness": {"header": "X-Tenant"},
        "onBatchError": "Fail",
    }
    namespace.apply(policy)

    def effective() -> dict[str, Any] | None:
        text = namespace.curl(f"http://{pod['status']['podIP']}:8013/settings")[2]
        batching: dict[str, Any] = json.loads(text)["batching"]
        return batching if batching["latencyObjectiveMs"] == 2000 else None

    seconds = wait_for("the sidecar to obey the new policy", effective, every=0.1)
    assert seconds["maxConcurrentBatches"] == 2
    assert seconds["priority"] == {"levels": 3, "default": 2, "header": "x-penstock-priority"}
    assert (seconds["fairness"], seconds["onBatchError"]) == ({"header": "x-tenant"}, "Fail")
    answers = json.loads(namespace.run_python(OVERLOAD, input=url))
    assert set(answers) == {"200", "deadline"}, answers
    namespace.wait_condition("batchpolicy", "p", "Ready")
    namespace.wait_condition("modelbackend", "slow", "SettingsApplied")
    assert settled(namespace, "slow") == before
    assert set(restarts(namespace, "slow")) == {0}


EVENTS = """
import asyncio, json, sys
import aiohttp
url = sys.stdin.read()
async def main():
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "/events") as stream:
            first = (await stream.content.readline()).decode()
            # The model writes the rest only after this request: no part on the way may have waited for it.
            async with session.post(url + "/go") as answer:
                told = answer.status
            return [first, told, (await stream.content.read()).decode(), stream.headers["content-type"]]
print(json.dumps(asyncio.run(main())))
"""

SOCKET = """
import asyncio, json, sys
import aiohttp
url = sys.stdin.read()
async def main():
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(url.replace("http", "ws", 1) + "/socket") as socket:
            seen = []
            for text in ("one", "two"):
                await socket.send_str(text)
                seen.append((await socket.receive(timeout=30)).data)
            return seen
print(json.dumps(asyncio.run(main())))
"""


def test_streams_and_websocket_pass_through_with_protocol_none(namespace: Namespace) -> None:
    """Events come piece by piece and a WebSocket echoes, by the backend's own Service and by an endpoint."""
    namespace.apply(
        container_backend("raw", script=script("raw"), model={"protocol": "none"}, maxOngoingRequests=4),
        endpoint("raw", "raw"),
    )
    namespace.wait_ready("modelbackend", "raw")
    namespace.wait_ready("modelendpoint", "raw")
    own, edge = service(namespace, "raw"), namespace.url("raw", path="")
    for url in (own, edge):
        seen = json.loads(namespace.run_python(EVENTS, input=url))
        assert seen == ["data: 1\n", 200, "\ndata: 2\n\n", "text/event-stream"]
        assert json.loads(namespace.run_python(SOCKET, input=url)) == ["one", "two"]
    assert namespace.curl(edge + "/plain")[::2] == (200, "plain")


def test_a_pod_is_ready_only_after_its_warm_up(namespace: Namespace) -> None:
    """While the model refuses a warm-up request the pod is not ready and says which; then it is."""
    requests = [
        {"path": "/predict", "body": {"instances": [1, 2]}},
        {"path": "/warm?deep=1", "body": "as it is: 1.0", "headers": {"content-type": "text/plain"}},
    ]
    warmup = {"requests": requests, "timeout": "5s"}
    namespace.apply(container_backend("cold", script=script("cold"), warmup=warmup))

    def waits() -> bool:
        condition = namespace.condition("modelbackend", "cold", "ModelLoaded")
        return condition.get("status") == "False" and "warm-up request 2 of 2" in condition["message"]

    wait_for("the status to report the warm-up", waits)
    (pod,) = namespace.pods("cold")
    model = f"http://{pod['status']['podIP']}:8080"
    conditions = {condition["type"]: condition["status"] for condition in pod["status"]["conditions"]}
    assert conditions["Ready"] == "False"
    assert namespace.curl(f"{model}/allow")[0] == 200
    namespace.wait_ready("modelbackend", "cold")
    seen = json.loads(namespace.curl(f"{model}/seen")[2])
    assert seen[0] == ["/predict", "application/json", '{"instances":[1,2]}']
    assert seen[-1] == ["/warm?deep=1", "text/plain", "as it is: 1.0"]


TEN = '{"instances": [10]}'

ADDER = """
import os
import penstock

class Adder:
    def __init__(self):
        self.amount = 0

    def reconfigure(self, config):
        if not isinstance(config["add"], int):
            raise ValueError(f"add: expected a whole number, found {config['add']!r}")
        self.amount = config["add"]

    @penstock.batched
    def predict(self, items):
        if "end" in items:
            os._exit(1)
        return [item + self.amount for item in items]
"""

ANSWERS_OVER_A_RESTART = """
import asyncio, collections, json, sys
import aiohttp
url = sys.stdin.read()
async def main():
    seen = collections.Counter()
    async with aiohttp.ClientSession() as session:
        async def ask(item):
            async with session.post(url, json={"instances": [item]}) as answer:
                body = await answer.json(content_type=None)
                return body["predictions"][0] if answer.status == 200 else body["reason"]
        seen[await ask("end")] += 1
        while (said := await ask(10)) in ("model_unreachable", "deadline"):
            seen[said] += 1
            await asyncio.sleep(0.01)
        for _ in range(500):
            seen[await ask(10)] += 1
    return [said, sorted(map(str, seen))]
print(json.dumps(asyncio.run(main())))
"""


def test_a_user_config_is_hot_and_a_refused_one_changes_nothing(namespace: Namespace) -> None:
    """Both pods' models are reconfigured in place; the status reports refusals; the last one serves.

    A restarted model does not serve before it has it.
    """
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "code"},
        "data": {"adder.py": ADDER},
    }
    python = {
        "target": "adder:Adder",
        "image": MODEL_IMAGE,
        "imagePullPolicy": "Never",
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
        "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
    }
    backend = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {"name": "adder"},
        "spec": {
            "model": {"python": python},
            "podTemplate": {"volumes": [{"name": "code", "configMap": {"name": "code"}}]},
            "userConfig": {"add": 1},
            "replicas": 2,
        },
    }
    namespace.apply(code, backend)
    namespace.wait_ready("modelbackend", "adder")
    before = settled(namespace, "adder")
    pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in namespace.pods("adder")}

    def answers() -> set[int]:
        """Each pod's answer to 10."""
        answers = [namespace.curl(f"http://{ip}:8012/predict", body=TEN) for ip in pods.values()]
        assert {status for status, _, _ in answers} == {200}, answers
        return {int(json.loads(text)["predictions"][0]) for _, _, text in answers}

    def taken() -> dict[str, bool]:
        """By pod, whether its model accepted the last userConfig, by the status."""
        status = (namespace.get("modelbackend", "adder") or {})["status"]
        return {entry["pod"]: entry["ok"] for entry in status.get("reconfigure") or ()}

    assert answers() == {11}
    namespace.patch("modelbackend", "adder", {"spec": {"userConfig": {"add": 5}}})
    wait_for("the new userConfig", lambda: answers() == {15})

    namespace.patch("modelbackend", "adder", {"spec": {"userConfig": {"add": "much"}}})

    def refused() -> str:
        """The condition's message, once it names both pods."""
        condition = namespace.condition("modelbackend", "adder", "SettingsApplied")
        both = condition.get("reason") == "ReconfigureFailed" and all(
            pod in condition["message"] for pod in pods
        )
        return str(condition["message"]) if both else ""

    message = wait_for("the status to report both models' refusals", refused)
    assert "add: expected a whole number, found 'much'" in message
    assert taken() == dict.fromkeys(pods, False)
    assert answers() == {15}

    namespace.patch("modelbackend", "adder", {"spec": {"userConfig": {"add": 7}}})
    namespace.wait_condition("modelbackend", "adder", "SettingsApplied")
    wait_for("the status to report that both models accepted", lambda: taken() == dict.fromkeys(pods, True))
    assert answers() == {17}
    assert settled(namespace, "adder") == before
    assert set(restarts(namespace, "adder")) == {0}

    unseen = "detected by refused connections only"
    for pod, ip in pods.items():  # a process started anew would make 10 of it, until it is configured
        url = f"http://{ip}:8012/predict"
        said, seen = json.loads(namespace.run_python(ANSWERS_OVER_A_RESTART, input=url, seconds=400))
        assert said == 17
        assert {"17", "model_unreachable"} <= set(seen) <= {"17", "model_unreachable", "deadline"}
        assert unseen not in namespace.kubectl("logs", pod, "-c", "penstock-sidecar")
    wait_for("the restarts to be counted", lambda: sorted(restarts(namespace, "adder")) == [0, 0, 1, 1])


TENSORS = """
import asyncio, json, sys
import aiohttp
url = sys.stdin.read()
async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async def one(n):
            x = {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [n, 2**53 + n]}
            async with session.post(url, json={"id": str(n), "inputs": [x]}) as answer:
                return [answer.status, await answer.json(content_type=None)]
        return await asyncio.gather(*(one(n) for n in range(64)))
print(json.dumps(asyncio.run(main())))
"""


def test_tensors_are_batched_with_protocol_v2(namespace: Namespace) -> None:
    """Each caller gets its own rows, exactly, and the model saw batches.

    It holds the first until all are there.
    """
    batching = {"defaultTimeout": "120s"}
    namespace.apply(
        container_backend("v2", script=script("tensors"), model={"protocol": "v2"}, batching=batching)
    )
    namespace.wait_ready("modelbackend", "v2")
    url = service(namespace, "v2") + "/v2/models/sum/infer"
    with ThreadPoolExecutor(max_workers=1) as pool:
        asked = pool.submit(namespace.run_python, TENSORS, input=url, seconds=400)
        Gate(namespace, "v2").open_with(64)
        answers = json.loads(asked.result())
    sizes = []
    for n, (status, body) in enumerate(answers):
        assert status == 200, body
        outputs = {output["name"]: output for output in body["outputs"]}
        assert outputs["sum"]["data"] == [2**53 + 2 * n]
        assert outputs["sum"]["shape"] == [1, 1]
        sizes += outputs["rows"]["data"]
    assert max(sizes) > 1, sizes
