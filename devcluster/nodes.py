"""Further nodes of a running cluster: added, taken away, or lost, each by its recorded process.

A further node has namespaces of its own and a cable to the first node's bridge. Its processes live in the
cluster's process namespace, so they end with the cluster.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from devcluster import cgroups, controlplane, life, loading, network, node
from devcluster.console import step
from devcluster.errors import DevclusterError
from devcluster.network import FIRST, Node
from devcluster.paths import State
from devcluster.processes import Record, kill_and_wait

MOST = 9
_END_SECONDS = 20.0
_NAME = re.compile(r"node([1-9])")


def parse(name: str) -> tuple[int, Node]:
    """Return number and addresses of a further node.

    Raises:
        DevclusterError: The name is none of `node1` to `node9`.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise DevclusterError(f"a further node is called node1 to node{MOST}, not {name!r}")
    return int(match[1]), network.node(int(match[1]))


def names(state: State) -> list[str]:
    """Return the further nodes that were added and not removed, lost ones too."""
    return sorted(path.name for path in state.root.joinpath("nodes").glob("*"))


def running(state: State) -> list[tuple[State, Record]]:
    """Return folder and process of each further node that runs."""
    containers = []
    for name in names(state):
        mine = state.of_node(name)
        record = Record.read(mine.record)
        if record is not None and record.alive:
            containers.append((mine, record))
    return containers


def start(state: State, cluster: Record, name: str) -> tuple[State, Record]:
    """Start a further node and wait until it is Ready; pods that tolerate nothing wait for its images.

    Args:
        state: The cluster.
        cluster: Its process.
        name: `node1` to `node9`; nothing of it is there.

    Returns:
        The node's folder and process.

    Raises:
        DevclusterError: It did not come up; its logs stay until it is removed.
    """
    number, worker = parse(name)
    mine = state.of_node(name)
    for folder in (mine.root, mine.conf, mine.logs):
        folder.mkdir(parents=True, mode=0o755)
    mine.pki.symlink_to(state.pki)
    trees = cgroups.hierarchies()
    root = cgroups.create(trees, state.name, name)
    controlplane.write_kubeconfig(mine, "proxy", FIRST)
    node.write_configuration(mine, worker, first=FIRST, cgroup_root=root, cgroup_version=trees.version)
    record = life.start_supervisor(mine, number, inside=cluster)
    _plug(cluster, worker, life.first_child(record))
    life.await_ready(mine)
    return mine, record


def _plug(cluster: Record, worker: Node, pid: int) -> None:
    network.run_ip(network.plug_commands(worker, pid), prefix=_in_first(cluster))


def _unplug(cluster: Record, worker: Node) -> None:
    """Take the cable away; the kernel does so by itself, some time after the node's last process."""
    subprocess.run(
        [*_in_first(cluster), "ip", "link", "del", network.port(worker)], capture_output=True, check=False
    )


def _in_first(cluster: Record) -> list[str]:
    return ["nsenter", f"--net=/proc/{cluster.pid}/ns/net", "--"]


def lose(state: State, cluster: Record, name: str) -> None:
    """Lose an additional node as by a power cut: all its processes end, and its peers do not notice.

    Its network link goes first, so that the kernel cannot report the end of a connection to a peer.

    Args:
        state: The cluster.
        cluster: Its process.
        name: The node.

    Raises:
        DevclusterError: No such node runs.
    """
    _, worker = parse(name)
    record = Record.read(state.of_node(name).record)
    if record is None or not record.alive:
        raise DevclusterError(f"cluster {state.name} does not have a running node {name}")
    network.run_ip(f"link set {network.port(worker)} down", prefix=_in_first(cluster))
    kill_and_wait(record, timeout=_END_SECONDS)


def clean(state: State, cluster: Record, name: str) -> None:
    """End a further node where it runs, and remove what it left on this machine.

    Args:
        state: The cluster.
        cluster: Its process.
        name: The node; it need not be there.

    Raises:
        DevclusterError: Something does not end or cannot be removed.
    """
    _, worker = parse(name)
    mine = state.of_node(name)
    record = Record.read(mine.record)
    if record is not None:
        with step(f"ending {name}"):
            kill_and_wait(record, timeout=_END_SECONDS)
    _unplug(cluster, worker)
    cgroups.remove(cgroups.hierarchies(), state.name, node=name, timeout=_END_SECONDS)
    if mine.root.exists():
        shutil.rmtree(mine.root)


def kill_container(record: Record, pod: Mapping[str, Any], container: str) -> None:
    """End a container's first process by SIGKILL, from outside: no handler runs, no preStop is asked.

    Args:
        record: The process of the node that the pod is on.
        pod: The pod, as the API has it.
        container: The container's name.

    Raises:
        DevclusterError: No such container runs, or it was not killed.
    """
    status = pod["status"]
    ids = {
        container["name"]: container["containerID"].rpartition("/")[2]
        for container in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
        if "running" in container["state"]
    }
    name = pod["metadata"]["name"]
    if container not in ids:
        raise DevclusterError(
            f"pod {name} does not have a running container {container}; it has {sorted(ids)}"
        )
    done = subprocess.run(
        [*loading.ctr(record), "task", "kill", "--signal", "SIGKILL", ids[container]],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DevclusterError(f"{container} of {name} was not killed: {done.stderr.strip()}")
