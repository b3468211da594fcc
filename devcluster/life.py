"""Starts and ends one cluster. All of a cluster is in its state folder and one process's namespaces."""

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devcluster import cgroups, controlplane, machine, network, node, pki, relay
from devcluster.console import say, step
from devcluster.errors import DevclusterError
from devcluster.network import Node
from devcluster.paths import REPOSITORY, State, cache_dir
from devcluster.processes import Record, children, kill_and_wait, kill_clients, start_time

_UP_SECONDS = 240.0
_END_SECONDS = 20.0
# Our own children that outlive us on purpose; kept so that they can be reaped when we end them ourselves.
_DETACHED: list["subprocess.Popen[bytes]"] = []


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a cluster.

    Attributes:
        phase: `absent`, `starting`, `ready`, `failed`, or `dead` (its process ended, its files are there).
        error: Why it failed.
        components: Name → pid in the cluster, whether it runs, how often it was restarted.
        record: Its process; None when it is absent.
    """

    phase: str
    error: str = ""
    components: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    record: Record | None = None


def read_status(state: State) -> Status:
    """Return what the cluster is doing now."""
    record = Record.read(state.record)
    if record is None:
        return Status(phase="dead" if state.root.exists() else "absent")
    try:
        status = json.loads(state.status.read_text())
    except (OSError, ValueError):
        status = {"phase": "starting", "error": "", "components": {}}
    phase = status["phase"] if record.alive or status["phase"] == "failed" else "dead"
    return Status(phase=phase, error=status["error"], components=status["components"], record=record)


def launch(state: State, first: Node) -> None:
    """Make the cluster's files and start its process; `await_ready` waits until it is up.

    Args:
        state: The cluster; nothing of it is there.
        first: Its node.

    Raises:
        UnsupportedMachineError: The machine's cgroups cannot hold pods.
        DevclusterError: A folder lies where the cluster's processes do not see it.
    """
    _refuse_hidden_folders(state)
    for folder in (state.root, state.conf, state.logs, state.clients):
        folder.mkdir(parents=True, mode=0o755)
    machine.load_kernel_modules()
    trees = cgroups.hierarchies()
    with step("making certificates and configuration"):
        controlplane.write_pki(state, first)
        root = cgroups.create(trees, state.name, first.name)
        node.write_configuration(state, first, first=first, cgroup_root=root, cgroup_version=trees.version)
        state.conf.joinpath("Corefile").write_text(controlplane.corefile(state, first))
        state.resolv_conf.write_text(network.resolv_conf())
    with relay.listen(0) as listener:
        _write_kubeconfigs(state, first, int(listener.getsockname()[1]))
        start_supervisor(state, 0, listener=listener)


def _refuse_hidden_folders(state: State) -> None:
    for hidden in node.HIDDEN_FOLDERS:
        for needed in (state.root, cache_dir(), REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)):
            if needed.resolve().is_relative_to(hidden.resolve()):
                raise DevclusterError(
                    f"{needed} is below {hidden}, which a cluster's processes see differently; "
                    "set PENSTOCK_STATE and PENSTOCK_CACHE to folders elsewhere"
                )


def _write_kubeconfigs(state: State, first: Node, port: int) -> None:
    for path, server in (
        (state.kubeconfig, f"https://{first.address}:{network.API_PORT}"),
        (state.host_kubeconfig, f"https://127.0.0.1:{port}"),
    ):
        path.touch(mode=0o600)
        path.write_text(pki.kubeconfig(state.pki, "admin", server=server, cluster=f"penstock-{state.name}"))


def start_supervisor(
    state: State, number: int, *, listener: socket.socket | None = None, inside: Record | None = None
) -> Record:
    """Start a node's process in a session of its own, and record it before it does anything.

    A shell waits for a line and becomes `unshare`, with the same process id. When we are killed before the
    record is written, it reads the end of its input and ends.

    Args:
        state: The node's folder; the first node's is the cluster's.
        number: The node's number.
        listener: For the API's forwarder, on the first node.
        inside: The cluster, for a further node: its processes live below the cluster's process 1.

    Raises:
        DevclusterError: It ended at once.
    """
    fds = [listener.fileno()] if listener else []
    command = [
        *("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"),
        *(sys.executable, "-m", "devcluster.supervisor"),
        *(state.name, str(state.root), str(number), *map(str, fds)),
    ]
    enter = ["nsenter", f"--pid=/proc/{inside.pid}/ns/pid_for_children", "--"] if inside else []
    with state.logs.joinpath("supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            [*enter, "sh", "-c", 'read -r go && [ "$go" = go ] && exec "$@" </dev/null', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=fds,
            cwd="/",
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(Path.home()),
                "LANG": "C.UTF-8",
                "PYTHONPATH": str(REPOSITORY),
                "PENSTOCK_CACHE": str(cache_dir()),
            },
        )
    _DETACHED.append(process)
    port = int(listener.getsockname()[1]) if listener else 0
    record = _record_of(process.pid, port)
    if inside:
        record = _record_of(first_child(record), port)  # the shell: `nsenter` waits outside for it
    record.write(state.record)
    assert process.stdin is not None  # noqa: S101 - for the type checker
    process.stdin.write(b"go\n")
    process.stdin.close()
    return record


def _record_of(pid: int, api_port: int) -> Record:
    started = start_time(pid)
    if started is None:
        raise DevclusterError("the node's process ended at once")
    return Record(pid=pid, started=started, instance=uuid.uuid4().hex, api_port=api_port)


def first_child(record: Record) -> int:
    """Return the process that a recorded one started; a node's is process 1 of the node's namespaces.

    Raises:
        DevclusterError: The recorded process ended.
    """
    while start_time(record.pid) == record.started:
        if pids := children(record.pid):
            return pids[0]
        time.sleep(0.005)
    raise DevclusterError(f"process {record.pid} ended before it started another")


def await_ready(state: State) -> None:
    """Tell each step of a start as it is done, until the cluster is ready.

    Args:
        state: A cluster that was launched, by whomever.

    Raises:
        DevclusterError: It failed or is not ready in time; its logs stay.
    """
    begin = time.monotonic()
    reported = 0
    while True:
        status = read_status(state)
        try:
            done = json.loads(state.status.read_text())["done"]
        except (OSError, ValueError):
            done = []
        for what, seconds in done[reported:]:
            say(f"{what}: {seconds:.1f} s")
        reported = len(done)
        if status.phase == "ready":
            return
        if status.phase in ("failed", "dead", "absent"):
            supervisor = state.logs / "supervisor.log"
            output = supervisor.read_text(errors="replace").strip() if supervisor.exists() else ""
            raise DevclusterError(
                f"{state.title} did not start: {status.error or output or 'its process ended'}"
                f"\nlogs: {state.logs}"
            )
        if time.monotonic() - begin > _UP_SECONDS:
            raise DevclusterError(f"{state.title} is not ready after {_UP_SECONDS:.0f} s; logs: {state.logs}")
        time.sleep(0.1)


def clean(state: State) -> None:
    """End the cluster when it runs, and remove all that it left.

    Args:
        state: The cluster; it need not be there.

    Raises:
        DevclusterError: Something does not end or cannot be removed.
    """
    record = Record.read(state.record)
    if record is not None:
        kill_and_wait(record, timeout=_END_SECONDS)
        kill_clients(state.clients)
    _reap_detached()
    cgroups.remove(cgroups.hierarchies(), state.name, timeout=_END_SECONDS)
    if state.root.exists():
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        if inside := [line.split()[4] for line in mounts if f" {state.root}/" in line]:
            raise DevclusterError(f"not removed: there are mounts below {state.root}: {inside}")
        shutil.rmtree(state.root)


def _reap_detached() -> None:
    for process in list(_DETACHED):
        if process.poll() is not None:
            _DETACHED.remove(process)
