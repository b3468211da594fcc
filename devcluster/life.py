"""How one cluster starts and ends. Everything it is lies in its state folder and one process's namespaces."""

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
from devcluster.processes import Record, kill_and_wait, kill_clients, start_time

_UP_SECONDS = 240.0
_END_SECONDS = 20.0
# Our own children that outlive us on purpose; kept so that they can be reaped when we end them ourselves.
_DETACHED: list["subprocess.Popen[bytes]"] = []


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a cluster is doing.

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
        told = json.loads(state.status.read_text())
    except (OSError, ValueError):
        told = {"phase": "starting", "error": "", "components": {}}
    phase = told["phase"] if record.alive or told["phase"] == "failed" else "dead"
    return Status(phase=phase, error=told["error"], components=told["components"], record=record)


def launch(state: State, first: Node) -> None:
    """Make the cluster's files and start its process; `await_ready` tells when it is up.

    Args:
        state: The cluster; nothing of it is there.
        first: Its node.

    Raises:
        UnsupportedMachineError: The machine's cgroups cannot hold pods.
        DevclusterError: A folder lies where the cluster's processes do not see it.
    """
    for hidden in node.HIDDEN_FOLDERS:
        for needed in (state.root, cache_dir(), REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)):
            if needed.resolve().is_relative_to(hidden.resolve()):
                raise DevclusterError(
                    f"{needed} is below {hidden}, which a cluster's processes see differently; "
                    "set PENSTOCK_STATE and PENSTOCK_CACHE to folders elsewhere"
                )
    for folder in (state.root, state.conf, state.logs, state.clients):
        folder.mkdir(parents=True, mode=0o755)
    machine.load_kernel_modules()
    trees = cgroups.hierarchies()
    with step("making certificates and configuration"):
        controlplane.write_pki(state, first)
        root = cgroups.create(trees, state.name, first.name)
        node.write_configuration(state, first, cgroup_root=root, cgroup_version=trees.version)
        state.conf.joinpath("Corefile").write_text(controlplane.corefile(state, first))
        state.resolv_conf.write_text(network.resolv_conf())
    with relay.listen(0) as listener:
        port = int(listener.getsockname()[1])
        _write_kubeconfigs(state, first, port)
        _start_supervisor(state, listener, port)


def _write_kubeconfigs(state: State, first: Node, port: int) -> None:
    for path, server in (
        (state.kubeconfig, f"https://{first.address}:{network.API_PORT}"),
        (state.host_kubeconfig, f"https://127.0.0.1:{port}"),
    ):
        path.touch(mode=0o600)
        path.write_text(pki.kubeconfig(state.pki, "admin", server=server, cluster=f"penstock-{state.name}"))


def _start_supervisor(state: State, listener: socket.socket, port: int) -> None:
    """Start the cluster's process in a session of its own, and record it before it does anything.

    The shell waits for a line and becomes `unshare`, with the same process id. When we are killed
    before the record is written, it reads the end of its input and ends.
    """
    command = [
        *("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"),
        *(sys.executable, "-m", "devcluster.supervisor"),
        *(state.name, str(state.root), str(listener.fileno())),
    ]
    with state.logs.joinpath("supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", 'read -r go && [ "$go" = go ] && exec "$@" </dev/null', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[listener.fileno()],
            cwd="/",
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(Path.home()),
                "LANG": "C.UTF-8",
                "PYTHONPATH": str(REPOSITORY),
                "PENSTOCK_CACHE": str(cache_dir()),
            },
        )
    started = start_time(process.pid)
    if started is None:
        raise DevclusterError("the cluster's process ended at once")
    record = Record(pid=process.pid, started=started, instance=uuid.uuid4().hex, api_port=port)
    record.write(state.record)
    assert process.stdin is not None  # noqa: S101 - for the type checker
    process.stdin.write(b"go\n")
    process.stdin.close()
    _DETACHED.append(process)


def await_ready(state: State) -> None:
    """Tell each step of a start as it is done, until the cluster is ready.

    Args:
        state: A cluster that was launched, by whomever.

    Raises:
        DevclusterError: It failed or is not ready in time; its logs stay.
    """
    begin = time.monotonic()
    told = 0
    while True:
        status = read_status(state)
        try:
            done = json.loads(state.status.read_text())["done"]
        except (OSError, ValueError):
            done = []
        for what, seconds in done[told:]:
            say(f"{what}: {seconds:.1f} s")
        told = len(done)
        if status.phase == "ready":
            return
        if status.phase in ("failed", "dead", "absent"):
            supervisor = state.logs / "supervisor.log"
            said = supervisor.read_text(errors="replace").strip() if supervisor.exists() else ""
            raise DevclusterError(
                f"cluster {state.name} did not start: {status.error or said or 'its process ended'}"
                f"\nlogs: {state.logs}"
            )
        if time.monotonic() - begin > _UP_SECONDS:
            raise DevclusterError(
                f"cluster {state.name} is not ready after {_UP_SECONDS:.0f} s; logs: {state.logs}"
            )
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
