"""Process 1 of a node: sets up the namespaces it is in, starts every component, keeps them running.

The first node's is process 1 of the cluster: the processes of other nodes live below it, too. It reports its
state in the status file. It does not take commands: SIGKILL ends it, and with it the kernel ends all
processes in its namespace.
"""

import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from devcluster import controlplane, network, node
from devcluster.api import Api
from devcluster.errors import DevclusterError
from devcluster.paths import REPOSITORY, State
from devcluster.processes import write_atomically
from devcluster.programs import COMPONENTS, pause

START_SECONDS = 120.0
_RESTART_SECONDS = 1.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Component:
    """A program that is kept running.

    Attributes:
        name: As `devcluster logs` calls it.
        command: Program and arguments.
        fds: File descriptors that it inherits.
        process: The last start of it.
        restarts: How often it was started again.
        due: When it is to be started again, on the monotonic clock in seconds; None while it runs.
    """

    name: str
    command: list[str]
    fds: tuple[int, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None
    restarts: int = 0
    due: float | None = None


class Supervisor:
    """The components of one node.

    Args:
        state: The node's folder; the first node's is the cluster's.
        mine: The node that these namespaces are.
    """

    def __init__(self, state: State, mine: network.Node) -> None:
        self._state, self._node = state, mine
        self._components: dict[str, Component] = {}
        self._done: list[tuple[str, float]] = []
        self._phase, self._error = "starting", ""

    def _say(self) -> None:
        write_atomically(
            self._state.status,
            json.dumps(
                {
                    "phase": self._phase,
                    "error": self._error,
                    "done": self._done,
                    "components": {
                        component.name: {
                            "pid": component.process.pid if component.process else 0,
                            "running": component.due is None,
                            "restarts": component.restarts,
                        }
                        for component in self._components.values()
                    },
                }
            ),
        )

    def fail(self, message: str) -> None:
        """Tell why the cluster cannot start."""
        self._phase, self._error = "failed", message
        self._say()

    def _spawn(self, component: Component) -> None:
        folders = [COMPONENTS[name].folder for name in ("containerd", "runc", "cni")]
        with self._state.logs.joinpath(f"{component.name}.log").open("ab") as log:
            component.process = subprocess.Popen(
                component.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=component.fds,
                cwd="/",
                env={
                    "PATH": ":".join(map(str, [*folders, os.environ.get("PATH", os.defpath)])),
                    "HOME": "/root",
                    "LANG": "C.UTF-8",
                    "PYTHONPATH": str(REPOSITORY),
                },
            )
        component.due = None

    def _start(self, name: str, command: list[str], fds: tuple[int, ...] = ()) -> None:
        self._components[name] = Component(name=name, command=command, fds=fds)
        self._spawn(self._components[name])
        self._say()

    def _wait(self, what: str, condition: Callable[[], bool], *needed: str) -> None:
        """Wait until the condition holds while the needed components live."""
        begin = time.monotonic()
        while not condition():
            for name in needed:
                process = self._components[name].process
                if process and process.poll() is not None:
                    raise DevclusterError(
                        f"{name} ended with status {process.returncode} while it started:\n"
                        + self._state.logs.joinpath(f"{name}.log").read_text(errors="replace")[-1500:]
                    )
            if time.monotonic() - begin > START_SECONDS:
                raise DevclusterError(f"{what}: not within {START_SECONDS:.0f} s")
            time.sleep(0.05)
        self._finished(what, begin)

    def _finished(self, what: str, begin: float) -> None:
        self._done.append((what, round(time.monotonic() - begin, 2)))
        self._say()

    def start_cluster(self, api_socket: int) -> None:
        """Bring the cluster up on its first node, in the order in which its parts need each other.

        Args:
            api_socket: Listens on the machine's loopback, for the API's forwarder.

        Raises:
            DevclusterError: A part did not come up.
        """
        state, first = self._state, self._node
        begin = time.monotonic()
        self._say()
        node.mount_private_folders(state)
        network.wire(network.ip_commands(first))
        self._finished("namespaces, mounts and network", begin)
        self._start("etcd", controlplane.etcd())
        self._start("containerd", node.containerd(state))
        forward = [sys.executable, "-m", "devcluster.relay", "--fd", str(api_socket)]
        self._start("forwarder", [*forward, "--to", f"{first.address}:{network.API_PORT}"], (api_socket,))
        self._wait("etcd", lambda: _connects("127.0.0.1", controlplane.ETCD_PORT), "etcd")
        self._start("apiserver", controlplane.apiserver(state, first))
        self._await_containerd()
        api = Api(state.pki, first.address, network.API_PORT)
        self._wait("API server ready", api.ready, "apiserver", "etcd")
        self._start("controller-manager", controlplane.controller_manager(state))
        self._start("scheduler", controlplane.scheduler(state))
        self._start_kubelet()
        self._start("coredns", controlplane.coredns(state))
        pending = controlplane.bootstrap_objects(first)
        self._wait("cluster DNS registered", lambda: _create(api, pending), "apiserver")
        self._await_node(api)
        self._wait("cluster DNS answers", _dns_answers)
        self._ready()

    def start_worker(self) -> None:
        """Bring a further node up and into its cluster.

        Raises:
            DevclusterError: A part did not come up.
        """
        begin = time.monotonic()
        self._say()
        node.mount_private_folders(self._state)
        self._wait("cable", lambda: network.UPLINK in [name for _, name in socket.if_nameindex()])
        network.wire(network.worker_ip_commands(network.FIRST, self._node))
        self._finished("namespaces, mounts and network", begin)
        self._start("containerd", node.containerd(self._state))
        self._await_containerd()
        self._start_kubelet()
        self._await_node(Api(self._state.pki, network.FIRST.address, network.API_PORT))
        self._wait("cluster DNS answers", _dns_answers)
        self._ready()

    def _await_containerd(self) -> None:
        self._wait("containerd", lambda: Path(node.CONTAINERD_SOCKET).exists(), "containerd")
        self._import_pause()

    def _start_kubelet(self) -> None:
        self._start("kubelet", node.kubelet(self._state, self._node))
        self._start("kube-proxy", node.kube_proxy(self._state))

    def _await_node(self, api: Api) -> None:
        name = self._node.name
        self._wait(f"{name} Ready", lambda: api.node_ready(name), "kubelet", "containerd")

    def _ready(self) -> None:
        self._phase = "ready"
        self._say()

    def _import_pause(self) -> None:
        from devcluster.ocistore import program_archive  # read once, here: it is not needed again

        archive = program_archive(pause() / "pause", node.PAUSE_IMAGE)
        begin = time.monotonic()
        done = subprocess.run(
            [*node.ctr(), "images", "import", "-"],
            input=archive,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise DevclusterError(f"containerd refused the pause image: {done.stderr.decode()[-500:]}")
        self._finished("pause image", begin)

    def keep(self) -> None:
        """Reap what ends, start components again, for ever."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            self._reap()
            now = time.monotonic()
            for component in self._components.values():
                if component.due is not None and component.due <= now:
                    component.restarts += 1
                    self._spawn(component)
                    self._say()
            dues = [component.due for component in self._components.values() if component.due is not None]
            wait = max(0.0, min(dues) - now) if dues else 3600.0
            if select.select([reader], [], [], wait)[0]:
                os.read(reader, 4096)

    def _reap(self) -> None:
        mine = {
            component.process.pid: component for component in self._components.values() if component.process
        }
        for component in mine.values():  # one that ended while the others were started
            if component.due is None and component.process and component.process.returncode is not None:
                self._ended(component, component.process.returncode)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in mine:
                code = os.waitstatus_to_exitcode(status)
                mine[pid].process.returncode = code  # type: ignore[union-attr]
                self._ended(mine[pid], code)

    def _ended(self, component: Component, code: int) -> None:
        component.due = time.monotonic() + _RESTART_SECONDS
        with self._state.logs.joinpath(f"{component.name}.log").open("a") as log:
            log.write(f"--- ended with status {code}; started again in {_RESTART_SECONDS:.0f} s ---\n")
        self._say()


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _create(api: Api, pending: list[tuple[str, dict[str, object]]]) -> bool:
    """Post what is pending and forget what is there; whether nothing is left."""
    for path, obj in list(pending):
        try:
            code, _ = api.request("POST", path, obj)
        except OSError:
            return False
        if code not in (201, 409):  # 404 and 403: the namespace or the bootstrap roles are not made yet
            return False
        pending.remove((path, obj))
    return True


def _dns_answers() -> bool:
    """Ask the cluster's DNS, by its Service address, for the API server's name."""
    question = bytes.fromhex("0001 0100 0001 0000 0000 0000")
    for label in ("kubernetes", "default", "svc", *network.DOMAIN.split(".")):
        question += bytes([len(label)]) + label.encode()
    question += bytes.fromhex("00 0001 0001")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.25)
        try:
            client.sendto(question, (network.DNS_ADDRESS, 53))
            answer = client.recv(512)
        except OSError:
            return False
    return answer[3] & 0x0F == 0 and answer.endswith(socket.inet_aton(network.API_SERVICE_ADDRESS))


def main() -> int:
    """Run as process 1: `python -m devcluster.supervisor NAME FOLDER NODE [LISTENING-FD]`."""
    name, root, number, *api_socket = sys.argv[1:]
    supervisor = Supervisor(State(name=name, root=Path(root)), network.node(int(number)))
    try:
        if api_socket:
            supervisor.start_cluster(int(api_socket[0]))
        else:
            supervisor.start_worker()
    except DevclusterError as error:
        supervisor.fail(str(error))
        return 1
    except Exception:
        supervisor.fail(traceback.format_exc())
        return 1
    supervisor.keep()
    return 0


if __name__ == "__main__":
    sys.exit(main())
