"""The life of clusters: ready, side by side, killed in the middle, and gone without a trace.

These make clusters of their own beside the one that the other tests share.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import images, network
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.paths import REPOSITORY
from devcluster.processes import children, clients
from tests.support.cluster.cluster_traces import Marks, machine_state, marks, traces
from tests.support.cluster.cluster_waits import wait_for

pytestmark = pytest.mark.xdist_group("devcluster")

_POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  initContainers:
  - name: native-sidecar
    restartPolicy: Always
    image: localhost/penstock/python-model:dev
    command: [python, -m, http.server, "8081"]
    securityContext: &confined
      {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    startupProbe: {httpGet: {path: /, port: 8081}, periodSeconds: 1}
  containers:
  - name: web
    image: localhost/penstock/python-model:dev
    command: [sh, -c, "id -u > /tmp/index.html && exec python -m http.server 8080 --directory /tmp"]
    ports: [{name: http, containerPort: 8080}]
    resources: {limits: {cpu: 500m, memory: 64Mi}}
    securityContext: *confined
    volumeMounts: [{name: tmp, mountPath: /tmp}]
    readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
  volumes: [{name: tmp, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
"""


@pytest.fixture
def before() -> dict[str, str]:
    """The machine before a cluster was there."""
    return machine_state()


@pytest.fixture
def fresh(before: dict[str, str]) -> Iterator[Cluster]:
    """A cluster that is not started yet, and is gone after the test."""
    cluster = Cluster("penstock-t2")
    cluster.down()
    yield cluster
    cluster.down()


@pytest.fixture
def other() -> Iterator[Cluster]:
    """Another one."""
    cluster = Cluster("penstock-t3")
    cluster.down()
    yield cluster
    cluster.down()


def _start_up(cluster: Cluster) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "devcluster", "--name", cluster.name, "up"],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_cluster_runs_pods_and_goes_without_a_trace(fresh: Cluster, before: dict[str, str]) -> None:
    """Restricted pods, native sidecars, probes, DNS, logs, exec and forwards work; then nothing is left.

    The pod is on a second node, which has the images that were loaded before it came.
    """
    fresh.up()
    images.build_targets(["python-model"])
    fresh.load(images.image_name("python-model"))
    fresh.up(node_count=2)
    fresh.up()  # nothing happens to one that is up
    assert fresh.nodes() == ["node0", "node1"]
    mark = marks(fresh)
    fresh.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
    fresh.kubectl("apply", "-f", "-", input=_POD)
    fresh.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=110s")

    fetch = "import urllib.request as u; print(u.urlopen('http://web.default.svc.cluster.local').read())"
    by_search_path = fetch.replace(".svc.cluster.local", "")
    execute = ("exec", "web", "-c", "web", "--", "python", "-c", by_search_path)
    wait_for(  # a pod is Ready a moment before the node's rules lead to it
        "the pod's answer to itself by its Service's name",
        lambda: fresh.kubectl(*execute, check=False).stdout.strip() == "b'65532\\n'",
    )
    ran = subprocess.run(
        [*fresh.exec_prefix, sys.executable, "-c", fetch], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "b'65532\\n'"
    with fresh.forward("svc/web", port="http") as port:
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read() == b"65532\n"
    with fresh.forward("pod/web") as port:
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read() == b"65532\n"
    wait_for("the pod's log", lambda: "GET / HTTP" in fresh.kubectl("logs", "web", "-c", "web").stdout)
    config = json.loads(fresh.host_kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"].startswith("https://127.0.0.1:")
    assert fresh.api().node_ready("node0")
    assert fresh.api().node_ready("node1")

    with subprocess.Popen([*fresh.exec_prefix, "sleep", "600"]) as client:
        wait_for("the client to be recorded", lambda: client.pid in clients(fresh.state.clients))
        fresh.down()
        assert client.wait(60) == -signal.SIGKILL
    assert traces(mark) == []
    assert machine_state() == before


def test_an_ordinary_dockerfile_builds_on_the_base_that_stands_in(tmp_path: Path) -> None:
    """`FROM python:3.13-slim`, `pip install` into the image's own Python, and `python` finds it."""
    tmp_path.joinpath("requirements.txt").write_text("six\n")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        "FROM python:3.13-slim\n"
        "WORKDIR /app\n"
        "COPY requirements.txt ./\n"
        "RUN pip install --no-cache-dir -r requirements.txt\n"
        'RUN python -c "import six, sys; assert sys.version_info[:2] == (3, 13)" && python -m pip check\n'
        'CMD ["python", "-m", "http.server"]\n'
    )
    images.ensure_base()
    tag = "localhost/penstock-tests/ordinary:dev"
    images.build(dockerfile=dockerfile, tag=tag)
    assert tag in images.built()


def test_two_clusters_live_side_by_side(fresh: Cluster, other: Cluster) -> None:
    """Same addresses, nothing shared; the end of one is nothing to the other."""
    fresh.up()
    other.up()
    first, second = marks(fresh), marks(other)
    assert not first.namespaces & second.namespaces
    fresh.kubectl("create", "namespace", "only-here")
    assert "only-here" not in other.kubectl("get", "namespaces").stdout
    assert fresh.api().node_ready("node0")
    fresh.down()
    assert traces(first) == []
    assert other.status().phase == "ready"
    assert other.api().node_ready("node0")
    assert other.kubectl("get", "--raw", "/readyz").stdout == "ok"
    other.down()
    assert traces(second) == []


@pytest.mark.parametrize("moment", ["first file", "process", "components"])
def test_kill_9_of_up_leaves_a_cluster_that_down_removes(
    fresh: Cluster, moment: str, before: dict[str, str]
) -> None:
    """Wherever `up` was killed, `down` finds all that it began."""
    reached = {
        "first file": lambda: fresh.state.root.exists(),
        "process": lambda: fresh.status().record is not None,
        "components": lambda: len(fresh.status().components) > 3,
    }[moment]
    with _start_up(fresh) as starting:
        wait_for(moment, reached, every=0.005)
        starting.kill()
        starting.wait()
    try:
        mark = marks(fresh)
    except DevclusterError:  # killed before there was a process
        mark = Marks(state=fresh.state, namespaces=frozenset(), instance="none")
    fresh.down()
    assert traces(mark) == []
    assert machine_state() == before


def test_kill_9_of_up_does_not_stop_the_next_up(fresh: Cluster) -> None:
    """What the killed run started comes up by itself, or is started anew: `up` ends with a ready cluster."""
    with _start_up(fresh) as starting:
        wait_for("the cluster's process", lambda: fresh.status().record is not None, every=0.005)
        starting.kill()
        starting.wait()
    fresh.up()
    assert fresh.status().phase == "ready"
    assert fresh.api().node_ready("node0")


def test_kill_9_of_the_cluster_ends_all_of_it(fresh: Cluster, before: dict[str, str]) -> None:
    """The kernel ends what was in its namespaces; status says so, and both `up` and `down` cope."""
    fresh.up()
    mark, record = marks(fresh), fresh.require_alive()
    os.kill(record.pid, signal.SIGKILL)

    def processes() -> list[str]:
        return [trace for trace in traces(mark) if trace.startswith("process")]

    wait_for("the end of its processes", lambda: processes() == [])
    assert fresh.status().phase == "dead"
    with pytest.raises(DevclusterError, match="cluster penstock-t2 is not up"):
        fresh.kubectl("get", "nodes")
    fresh.up()
    again = marks(fresh)
    assert again.instance != mark.instance
    fresh.down()
    assert traces(mark) + traces(again) == []
    assert machine_state() == before


def _status_field(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}:")).split()[1:]


def test_a_component_that_ends_is_started_again(fresh: Cluster) -> None:
    """A controller manager that is killed comes back, and the status reports it."""
    fresh.up()
    inner = fresh.status().components["controller-manager"]["pid"]
    (init,) = children(fresh.require_alive().pid)
    numbers = {int(_status_field(pid, "NSpid")[-1]): pid for pid in children(init)}
    os.kill(numbers[inner], signal.SIGKILL)
    wait_for("the restart", lambda: fresh.status().components["controller-manager"]["restarts"] >= 1)
    wait_for("the running state", lambda: fresh.status().components["controller-manager"]["running"])
    assert "--- ended with status -9" in fresh.state.logs.joinpath("controller-manager.log").read_text()


def test_a_user_without_rights_is_told_so() -> None:
    """One sentence on stderr, exit code 2, for a user who is not root."""
    script = "import os, sys; from devcluster.cli import main; os.setuid(65534); sys.exit(main(['up']))"
    tried = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (tried.returncode, tried.stdout) == (2, "")
    assert tried.stderr.count("\n") == 1
    assert tried.stderr.startswith("devcluster: a cluster needs root")


def test_a_lost_node_is_silent_and_comes_back(fresh: Cluster) -> None:
    """A power cut ends no connection in sight of the others; the node can be added again, or forgotten."""
    fresh.up(node_count=2)
    address = network.node(1).address
    kubelet = f"import socket; socket.create_connection(('{address}', 10250), timeout=1)"

    def said() -> str:
        done = subprocess.run(
            [*fresh.exec_prefix, sys.executable, "-c", kubelet], capture_output=True, text=True, check=False
        )
        return done.stderr.strip().rpartition("\n")[2]

    assert said() == ""
    mark = marks(fresh)
    fresh.lose_node("node1")
    assert said() == "TimeoutError: timed out"
    with pytest.raises(DevclusterError, match="does not have a running node node1"):
        fresh.lose_node("node1")
    fresh.add_node("node1")
    assert fresh.api().node_ready("node1")
    assert said() == ""
    fresh.remove_node("node1")
    fresh.remove_node("node1")  # nothing happens to one that is gone
    assert fresh.nodes() == ["node0"]
    assert "node1" not in fresh.kubectl("get", "nodes").stdout
    fresh.down()
    assert traces(mark) == []
