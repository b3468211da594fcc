"""Looks from outside for what a cluster of devcluster/ could leave behind on this machine."""

from __future__ import annotations

import dataclasses
import os
import weakref
from pathlib import Path

from devcluster import cgroups, nodes
from devcluster.cluster import Cluster
from devcluster.paths import State
from devcluster.processes import INSTANCE_VARIABLE

# What the programs of a node use by default, and must not have touched on the machine itself.
NODE_FOLDERS = tuple(
    Path(folder)
    for folder in (
        *("/etc/cni", "/opt/cni", "/opt/containerd", "/run/containerd", "/run/netns", "/var/lib/cni"),
        *("/var/lib/containerd", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods"),
    )
)
KERNEL_SETTINGS = tuple(
    Path("/proc/sys") / name
    for name in ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "net/ipv4/ip_forward")
)


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Marks:
    """By what the parts of one life of a cluster are known.

    As long as it exists, no other namespace gets the numbers of these.
    """

    state: State
    namespaces: frozenset[str]
    instance: str


def marks(cluster: Cluster) -> Marks:
    """Read the marks of a running cluster."""
    record = cluster.require_alive()
    pids = [record.pid, *(node.pid for _, node in nodes.running(cluster.state))]
    paths = [path for pid in pids for path in _namespaces(pid)]
    # NB: the kernel shows a PID namespace once it has a process: one that was just made has none.
    shown = [path for path in paths if path.name != "pid_for_children" or path.exists()]
    # NB: a namespace that a file holds open keeps its number, also when its last process has ended.
    files = [os.open(path, os.O_RDONLY) for path in shown]
    ours = {str(path.readlink()) for path in _namespaces("self")}
    made = Marks(
        state=cluster.state,
        # NB: a process that has just begun may still have this machine's, as all else here has.
        namespaces=frozenset(str(Path(f"/proc/self/fd/{file}").readlink()) for file in files) - ours,
        instance=record.instance,
    )
    for file in files:
        weakref.finalize(made, os.close, file)
    return made


def _namespaces(process: int | str) -> list[Path]:
    return [Path(f"/proc/{process}/ns/{kind}") for kind in ("net", "mnt", "pid_for_children")]


def traces(of: Marks) -> list[str]:
    """Return all that is left of a cluster: processes, namespaces, mounts, cgroups, files."""
    left = [f"file {path}" for path in (of.state.root, of.state.lock) if path.exists()]
    left += [f"cgroup {path}" for path in cgroups.existing(cgroups.hierarchies(), of.state.name)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    left += [f"mount {line}" for line in mounts if str(of.state.root) in line]
    carried = f"{INSTANCE_VARIABLE}={of.instance}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {str(link.readlink()) for link in process.joinpath("ns").iterdir()}
            environment = process.joinpath("environ").read_bytes().split(b"\0")
            command = process.joinpath("comm").read_text().strip()
        except OSError:
            continue  # it ended while we looked
        if links & of.namespaces or carried in environment:
            left.append(f"process {process.name} {command}")
    return left


def machine_state() -> dict[str, str]:
    """Return what a cluster must leave as it found it: the node's usual folders and kernel settings."""
    there = {str(folder): str(folder.exists()) for folder in NODE_FOLDERS}
    return there | {str(path): path.read_text() for path in KERNEL_SETTINGS if path.exists()}
