"""The ledger under change, over HTTP and gRPC: nothing lost, doubled, mis-assigned or non-2xx, ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devcluster import images
from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    INSTALLED_IN,
    MODEL_IMAGE,
    ROOT,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    ledger_backend,
    ledger_code,
)
from tests.support.cluster.release import leading_pod, upgrade
from tests.support.ledger.zero_loss import (
    MOST_RATE,
    ROUTERS,
    SHARE,
    calibrate,
    pod_on,
    pods_of,
    ready_pods,
    record,
    serve,
    table,
    totals,
    wait_settled,
)

WAITS = {"maxPending": 20_000}
"""Room in the routers for all that comes until a pod is ready, however long the machine takes to start it; by
default 1000 requests wait."""
OTHER_IMAGE = "localhost/penstock/python-model:other"


@pytest.fixture
def two_nodes(second_node: Cluster) -> Iterator[Cluster]:
    """A second node, and two routers in each namespace, as a cluster needs for drains."""
    upgrade(second_node, "--set", "router.replicas=2")
    yield second_node
    upgrade(second_node)


class Changes:
    """The changes of a backend `b` of two pods while requests flow; each returns when it is over."""

    def __init__(self, cluster: Cluster, namespace: Namespace, backend: dict[str, Any]) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.backend = backend

    def parts(self) -> dict[str, Callable[[], None]]:
        """All of them, in the order in which they are done."""
        return {
            "image": self.image,
            "env": self.env,
            "policy": self.policy,
            "settings": self.settings,
            "replicas 1-5-1": self.replicas,
            "pods deleted": self.pods_deleted,
            "operator killed": self.operator_killed,
            "node drained": self.node_drained,
            "routers replaced": self.routers_replaced,
        }

    def image(self) -> None:
        """Another image."""
        python = self.backend["spec"]["model"]["python"]
        python["image"] = OTHER_IMAGE if python["image"] == MODEL_IMAGE else MODEL_IMAGE
        self._roll()

    def env(self) -> None:
        """Another variable."""
        env = self.backend["spec"]["model"]["python"]["env"]
        env.append({"name": f"CHANGED_{len(env)}", "value": "yes"})
        self._roll()

    def policy(self) -> None:
        """Other knobs in the BatchPolicy."""
        self.backend["spec"].pop("batching", None)
        self.backend["spec"]["batchPolicyRef"] = "p"
        self.namespace.apply(policy(maxBatchSize=4), self.backend)
        self._applied("maxBatchSize", 4)

    def settings(self) -> None:
        """Knobs of the backend's own instead of the policy's, and another timeout of the endpoint."""
        del self.backend["spec"]["batchPolicyRef"]
        self.backend["spec"]["batching"] = policy(maxBatchSize=24)["spec"]
        self.namespace.apply(self.backend, endpoint("b", "b", timeout="45s"))
        self._applied("maxBatchSize", 24)
        self.namespace.wait_ready("modelendpoint", "b")

    def replicas(self) -> None:
        """To one, to five, to one, and back to two."""
        for count in (1, 5, 1, 2):
            self.namespace.patch("modelbackend", "b", {"spec": {"replicas": count}})
            wait_settled(self.namespace, count)
        self.backend["spec"]["replicas"] = 2

    def pods_deleted(self) -> None:
        """Each pod in turn, with its grace."""
        for name in ready_pods(self.namespace):
            self.namespace.kubectl("delete", "pod", name, "--wait=true", "--timeout=110s")
            wait_settled(self.namespace, 2)

    def operator_killed(self) -> None:
        """By SIGKILL; then it acts again."""
        pod = leading_pod(Namespace(self.cluster, INSTALLED_IN))
        self.cluster.kill_container(INSTALLED_IN, pod["metadata"]["name"], "operator")
        self.namespace.patch("modelbackend", "b", {"spec": {"batching": {"maxBatchSize": 12}}})
        self._applied("maxBatchSize", 12)

    def node_drained(self) -> None:
        """`kubectl drain`: a pod of the backend, and what else is there, moves to the other node."""
        pod_on(self.namespace, "node1")
        drain = ("drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
        try:
            self.cluster.kubectl(*drain, timeout=330)
            wait_settled(self.namespace, 2)
            wait_settled(self.namespace, 2, ROUTERS)
            assert {pod["spec"]["nodeName"] for pod in self.namespace.list("pods")} == {"node0"}
        finally:  # or no test after this one has that node
            self.cluster.kubectl("uncordon", "node1")

    def routers_replaced(self) -> None:
        """`kubectl rollout restart`: clients' connections, and the channel, go to the next ones."""
        before = set(ready_pods(self.namespace, ROUTERS))
        self.namespace.kubectl("rollout", "restart", "deployment/penstock-router")

        def replaced() -> bool:
            return not before & {pod["metadata"]["name"] for pod in pods_of(self.namespace, ROUTERS)}

        wait_for("no old router", replaced, seconds=300)
        wait_settled(self.namespace, 2, ROUTERS)

    def _roll(self) -> None:
        before = set(ready_pods(self.namespace))
        self.namespace.apply(self.backend)

        def replaced() -> bool:
            return not before & {pod["metadata"]["name"] for pod in pods_of(self.namespace)}

        wait_for("no old pod", replaced, seconds=300)
        wait_settled(self.namespace, 2)

    def _applied(self, name: str, value: int) -> None:
        addresses = [pod["status"]["podIP"] for pod in self.namespace.pods("b")]
        wanted = f'"{name}":{value}'
        wait_for(
            f"{wanted} in every sidecar",
            lambda: all(wanted in self.namespace.curl(f"http://{ip}:8013/settings")[2] for ip in addresses),
        )


def policy(**spec: object) -> dict[str, Any]:
    """A BatchPolicy `p` whose queues take what comes while pods start, at 1 000 requests a second."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "BatchPolicy",
        "metadata": {"name": "p"},
        "spec": {"maxBatchSize": 16, "maxQueuedItems": 10_000, **spec},
    }


@pytest.mark.xdist_group("nodes")
@pytest.mark.timeout(3600)
def test_nothing_is_lost_through_changes_deletions_a_killed_operator_and_a_drained_node(
    two_nodes: Cluster,
    namespace: Namespace,
    load: Load,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """One ledger over all of it; with `--loss-rate 0` at half of what this machine answers while pods start.

    Every second request is a call over gRPC, all of them on one channel.
    """
    images.build(
        dockerfile=ROOT / "tests/support/cluster/other_image/Dockerfile",
        tag=OTHER_IMAGE,
        build_args={"BASE": MODEL_IMAGE},
    )
    two_nodes.load(OTHER_IMAGE)
    namespace.apply(policy())
    rounds = int(request.config.getoption("--loss-rounds"))
    knobs: dict[str, Any] = {"batchPolicyRef": "p", "init_kwargs": {"delay_ms": 2.0}}
    url = serve(namespace, load, **knobs)
    wait_settled(namespace, 2, ROUTERS)
    changes = Changes(two_nodes, namespace, ledger_backend("b", collector=load.port, replicas=2, **knobs))
    with capsys.disabled():
        print()
        rate, seen = float(request.config.getoption("--loss-rate")), {}
        if not rate:
            rate, seen = calibrate(load, url, changes.replicas)
        namespace.apply(changes.backend)
        wait_settled(namespace, 2)
        print(f"ledger: {rate:.0f} requests/s, through {', '.join(changes.parts())}")
        load.start(url, rate=rate, calls=True)
        for turn in range(rounds):
            for name, change in changes.parts().items():
                part = f"{name} ({turn + 1})" if turn else name
                load.mark(part)
                change()
                # What a busy machine left behind is not carried into the next change. The load goes on.
                wait_for("answers to keep up", lambda: load.mark(part)["open"] < rate, seconds=240)  # noqa: B023
        summary = load.stop()
        print(table(summary))
    record(
        request.config.getoption("--loss-results"),
        "changes",
        asked={
            "most_rate": MOST_RATE,
            "share": SHARE,
            "rounds": rounds,
            "replicas": 2,
            "batching": policy()["spec"],
            **knobs,
        },
        result={"rate": rate, "calibration": seen, **totals(summary)},
    )
    assert_nothing_lost(summary)


def test_replicas_follow_the_load_up_and_down_and_nothing_is_lost(namespace: Namespace, load: Load) -> None:
    """1 → 3 → 1 replicas by `targetLoad` under load; the reasons stand in `status.scaling`."""
    url = serve(
        namespace,
        load,
        waits=WAITS,
        # One pod takes 16 items in 140 ms: twice what comes, so that it bears all on a busy machine, too.
        init_kwargs={"delay_ms": 60.0, "delay_item_ms": 5.0},
        batching={"maxBatchSize": 16, "maxQueuedItems": 10_000},
        autoscaling={
            "minReplicas": 1,
            "maxReplicas": 3,
            "targetLoad": 2,
            "stableWindow": "6s",
            # Nobody goes while others start, however long they take: two need less than one.
            "downscaleDelay": "10m",
        },
    )
    load.start(url, rate=55)  # of 5 items that are with the model or wait some 7, at one pod
    wait_for("three ready pods", lambda: len(ready_pods(namespace)) == 3, seconds=240)
    fewer = {"targetLoad": 50, "downscaleDelay": "8s"}
    namespace.patch("modelbackend", "b", {"spec": {"autoscaling": fewer}})
    wait_for("one pod", lambda: len(namespace.list("pods", "penstock.dev/backend=b")) == 1, seconds=300)
    assert_nothing_lost(load.stop())

    def scalings() -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = namespace.get("modelbackend", "b")["status"]["scaling"]
        return entries

    wait_for("the newest change first in status.scaling", lambda: scalings()[0]["to"] == 1)
    scaling = scalings()
    assert max(decision["to"] for decision in scaling) == 3, scaling
    assert all(decision["reason"] and decision["inputs"] for decision in scaling)


def test_from_zero_and_back_loses_nothing(namespace: Namespace, load: Load) -> None:
    """0 → a burst of 50 → as many pods as it asks for → 0: each request is held until a pod is ready."""
    url = serve(
        namespace,
        load,
        waits=WAITS,
        init_kwargs={"delay_ms": 20.0},
        batching={"maxBatchSize": 4, "maxQueuedItems": 10_000},
        autoscaling={
            "minReplicas": 0,
            "maxReplicas": 2,
            "targetLoad": 16,
            "stableWindow": "2s",
            "downscaleDelay": "5s",
            "scaleToZero": {"after": "10s"},
        },
    )

    def sleeps() -> bool:
        pods = namespace.list("pods", "penstock.dev/backend=b")
        return not pods and namespace.get("modelbackend", "b")["spec"]["replicas"] == 0

    wait_for("no pod", sleeps, seconds=240)
    namespace.wait_condition("modelendpoint", "b", "BackendsReady", "True", reason="ScaledToZero")
    load.start(url, rate=1000, count=50)
    summary = load.finish(seconds=120)
    assert_nothing_lost(summary)
    assert summary["ok"] == 50
    wait_for("no pod again", sleeps, seconds=240)
    scaling = namespace.get("modelbackend", "b")["status"]["scaling"]
    changes = [(decision["from"], decision["to"]) for decision in reversed(scaling)]
    assert changes[:2] == [(1, 0), (0, 1)] or changes[:2] == [(1, 0), (0, 2)], scaling
    assert max(to for _, to in changes) == 2, scaling
    assert changes[-1] == (1, 0), scaling
    assert sum(decision["inputs"]["held"] for decision in scaling if decision["from"] == 0) >= 1
    operator = Namespace(namespace.cluster, INSTALLED_IN).kubectl(
        "logs", "--selector=app.kubernetes.io/name=penstock-operator", "--tail=-1"
    )
    # The API server answers so where the autoscaler applies what nobody owns, as after a 0.
    assert not [line for line in operator.splitlines() if namespace.name in line and "autoscaling/v1" in line]
    # A 0 that somebody writes is another: the API server does not say whose it is.
    for replicas, reason in ((1, "ForeignScaler"), (0, "ScalingDisabled")):
        namespace.kubectl("scale", "modelbackend", "b", f"--replicas={replicas}")
        namespace.wait_condition("modelbackend", "b", "ScalingActive", "False", reason=reason)
    namespace.wait_condition("modelendpoint", "b", "BackendsReady", "False", reason="BackendNotReady")


LIFE = "open('/proc/1/stat').read().split()[21]"
"""When the container's first process began: another number in each of its lives."""
FALLS_ILL = f"text = {LIFE}; open('/tmp/ill', 'w').write(text)"
IS_ILL = f"import os, sys; sys.exit(os.path.exists('/tmp/ill') and open('/tmp/ill').read() == {LIFE})"
"""Whoever fell ill in this life; the next one is well, without anybody's help."""


def test_a_model_restarted_by_its_liveness_probe_does_not_leave_the_pod_draining(
    namespace: Namespace, load: Load
) -> None:
    """Kubelet calls preStop for a failed liveness probe too: once the model is back, the pod serves again."""
    backend = ledger_backend("b", collector=load.port, drain={"propagationDelay": "1s", "timeout": "2s"})
    backend["spec"]["model"]["container"] = {
        "image": MODEL_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "penstock.serve", "ledger_model:Ledger", "--port", "8080"],
        "env": backend["spec"]["model"].pop("python")["env"],
        "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
        "livenessProbe": {
            "exec": {"command": ["python", "-c", IS_ILL]},
            "periodSeconds": 1,
            "failureThreshold": 2,
            "timeoutSeconds": 30,
        },
    }
    namespace.apply(ledger_code(), backend, endpoint("b", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "b")
    (pod,) = namespace.pods("b")
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]

    namespace.kubectl("exec", name, "-c", "model", "--", "python", "-c", FALLS_ILL)

    def model(field: str) -> int:
        statuses = (namespace.get("pod", name) or {})["status"]["containerStatuses"]
        return int(next(status[field] for status in statuses if status["name"] == "model"))

    wait_for("the model's restart", lambda: model("restartCount") >= 1)
    wait_for("the pod to be ready again", lambda: ready_pods(namespace) == [name])
    (pod,) = namespace.pods("b")
    assert pod["metadata"]["uid"] == uid
    sidecar = pod["status"]["initContainerStatuses"][0]
    assert sidecar["restartCount"] == 0
    status, _, body = namespace.curl(namespace.url("b"), body='{"instances": [{"id": 7}]}')
    assert (status, '"id":7' in body.replace(" ", "")) == (200, True), body
