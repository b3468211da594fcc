"""The life of one cluster, and the way into it: what the command line and the tests call."""

import contextlib
import dataclasses
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from devcluster import cgroups, controlplane, images, machine, network, node, ocistore, pki, programs, relay
from devcluster.api import Api
from devcluster.cache import locked
from devcluster.console import say, step
from devcluster.errors import DevclusterError
from devcluster.paths import DEFAULT_NAME, REPOSITORY, State, cache_dir
from devcluster.processes import (
    INSTANCE_VARIABLE,
    Record,
    kill_and_wait,
    kill_clients,
    start_time,
    write_atomically,
)

_UP_SECONDS = 240.0
_END_SECONDS = 20.0


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


class Cluster:
    """A Kubernetes of one node on this machine, in namespaces of its own.

    Args:
        name: A DNS label; clusters of different names live side by side.

    Raises:
        DevclusterError: The name is not one.
    """

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        self.name = name
        self.state = State.of(name)
        self.node = network.node(0)

    # -- life ------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Start the cluster and wait until it is ready; nothing happens when it is.

        Builds the programs that the cache lacks, and installs the Debian packages that are missing.

        Raises:
            UnsupportedMachineError: This machine cannot run a cluster.
            DevclusterError: The cluster did not come up; its logs stay until `down` or the next `up`.
        """
        machine.require_runnable()
        machine.ensure_packages(machine.CLUSTER_NEEDS)
        programs.ensure_all()
        with locked(self.state.lock, waiting=f"waiting for another run that changes cluster {self.name}"):
            status = self.status()
            if status.phase == "ready":
                say(f"cluster {self.name} is up already")
                return
            if status.phase != "starting":
                self._clean(status.record)
                self._launch()
            self._await_ready()

    def down(self) -> None:
        """End the cluster and remove every trace of it but the caches; nothing happens when there is none.

        Raises:
            DevclusterError: Something does not end or cannot be removed.
        """
        machine.require_runnable()
        with locked(self.state.lock, waiting=f"waiting for another run that changes cluster {self.name}"):
            self._clean(Record.read(self.state.record))
            self.state.lock.unlink()
        with contextlib.suppress(OSError):
            self.state.root.parent.rmdir()

    def status(self) -> Status:
        """Return what the cluster is doing now."""
        record = Record.read(self.state.record)
        if record is None:
            return Status(phase="dead" if self.state.root.exists() else "absent")
        try:
            told = json.loads(self.state.status.read_text())
        except (OSError, ValueError):
            told = {"phase": "starting", "error": "", "components": {}}
        phase = told["phase"] if record.alive or told["phase"] == "failed" else "dead"
        return Status(phase=phase, error=told["error"], components=told["components"], record=record)

    def _launch(self) -> None:
        state = self.state
        for folder in (state.root, state.conf, state.logs):
            folder.mkdir(parents=True, mode=0o755)
        for hidden in node.HIDDEN_FOLDERS:
            for needed in (state.root, cache_dir(), REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)):
                if needed.resolve().is_relative_to(hidden.resolve()):
                    raise DevclusterError(
                        f"{needed} is below {hidden}, which a cluster's processes see differently; "
                        "set PENSTOCK_STATE and PENSTOCK_CACHE to folders elsewhere"
                    )
        machine.load_kernel_modules()
        trees = cgroups.hierarchies()
        with step("making certificates and configuration"):
            controlplane.write_pki(state, self.node)
            root = cgroups.create(trees, self.name, self.node.name)
            node.write_configuration(state, self.node, cgroup_root=root, cgroup_version=trees.version)
            state.conf.joinpath("Corefile").write_text(controlplane.corefile(state, self.node))
            state.resolv_conf.write_text(network.resolv_conf())
        with relay.listen(0) as listener:
            port = int(listener.getsockname()[1])
            self._write_kubeconfigs(port)
            self._start_supervisor(listener, port)

    def _write_kubeconfigs(self, port: int) -> None:
        for path, server in (
            (self.state.kubeconfig, f"https://{self.node.address}:{network.API_PORT}"),
            (self.state.host_kubeconfig, f"https://127.0.0.1:{port}"),
        ):
            path.touch(mode=0o600)
            path.write_text(
                pki.kubeconfig(self.state.pki, "admin", server=server, cluster=f"penstock-{self.name}")
            )

    def _start_supervisor(self, listener: socket.socket, port: int) -> None:
        """Start the cluster's process in a session of its own, and record it before it does anything.

        The shell waits for a line and becomes `unshare`, with the same process id. When we are killed
        before the record is written, it reads the end of its input and ends.
        """
        command = [
            *("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"),
            *(sys.executable, "-m", "devcluster.supervisor"),
            *(self.name, str(self.state.root), str(listener.fileno())),
        ]
        with self.state.logs.joinpath("supervisor.log").open("wb") as log:
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
        record.write(self.state.record)
        assert process.stdin is not None  # noqa: S101 - for the type checker
        process.stdin.write(b"go\n")
        process.stdin.close()
        _DETACHED.append(process)

    def _await_ready(self) -> None:
        begin = time.monotonic()
        told = 0
        while True:
            status = self.status()
            try:
                done = json.loads(self.state.status.read_text())["done"]
            except (OSError, ValueError):
                done = []
            for what, seconds in done[told:]:
                say(f"{what}: {seconds:.1f} s")
            told = len(done)
            if status.phase == "ready":
                return
            if status.phase in ("failed", "dead", "absent"):
                supervisor = self.state.logs / "supervisor.log"
                said = supervisor.read_text(errors="replace").strip() if supervisor.exists() else ""
                raise DevclusterError(
                    f"cluster {self.name} did not start: {status.error or said or 'its process ended'}"
                    f"\nlogs: {self.state.logs}"
                )
            if time.monotonic() - begin > _UP_SECONDS:
                raise DevclusterError(
                    f"cluster {self.name} is not ready after {_UP_SECONDS:.0f} s; logs: {self.state.logs}"
                )
            time.sleep(0.1)

    def _clean(self, record: Record | None) -> None:
        """Remove all that a life of this cluster left, running or not."""
        if record is not None:
            kill_and_wait(record, timeout=_END_SECONDS)
            kill_clients(record.instance)
        _reap_detached()
        cgroups.remove(cgroups.hierarchies(), self.name, timeout=_END_SECONDS)
        if self.state.root.exists():
            mounts = Path("/proc/self/mountinfo").read_text().splitlines()
            if inside := [line.split()[4] for line in mounts if f" {self.state.root}/" in line]:
                raise DevclusterError(f"not removed: there are mounts below {self.state.root}: {inside}")
            shutil.rmtree(self.state.root)

    # -- the way in ------------------------------------------------------------------------------------

    def require_alive(self) -> Record:
        """Return the record of the running cluster.

        Raises:
            DevclusterError: It does not run.
        """
        status = self.status()
        if status.record is None or not status.record.alive:
            raise DevclusterError(
                f"cluster {self.name} is not up; start it with `python -m devcluster --name {self.name} up`"
            )
        return status.record

    @property
    def kubeconfig(self) -> Path:
        """For clients inside the cluster's network: the administrator."""
        return self.state.kubeconfig

    @property
    def host_kubeconfig(self) -> Path:
        """For clients on this machine, through the forwarder on loopback: the administrator."""
        return self.state.host_kubeconfig

    def api(self) -> Api:
        """Return the API, reached through the forwarder on loopback."""
        return Api(self.state.pki, "127.0.0.1", self.require_alive().api_port, timeout=10.0)

    def _network_prefix(self) -> list[str]:
        record = self.require_alive()
        return ["env", f"{INSTANCE_VARIABLE}={record.instance}", "nsenter", f"--net=/proc/{record.pid}/ns/net", "--"]

    @property
    def exec_prefix(self) -> list[str]:
        """What to put before a command to run it in the cluster's network with the cluster's DNS.

        The command replaces the prefix: same process id, same working directory, files, standard streams,
        signals. It ends with the cluster when it has not ended before.
        """
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return [*self._network_prefix(), "unshare", "--mount", "--", "sh", "-c", script, str(self.state.resolv_conf)]

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the whole command line of a kubectl call, to be run from this machine."""
        tool = str(programs.program("kubernetes", "kubectl"))
        return [*self._network_prefix(), tool, f"--kubeconfig={self.kubeconfig}", *arguments]

    def helm_command(self, *arguments: str) -> list[str]:
        """Return the whole command line of a helm call, to be run from this machine."""
        tool = str(programs.program("helm", "helm"))
        return [*self._network_prefix(), tool, f"--kubeconfig={self.kubeconfig}", *arguments]

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 120.0  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return what it said.

        Args:
            arguments: After `kubectl`.
            input: Its standard input.
            check: Whether a non-zero exit is an error.
            timeout: In seconds.

        Raises:
            DevclusterError: It failed and `check` is set; the message has what it said.
        """
        return _run(self.kubectl_command(*arguments), "kubectl", arguments, input, check=check, timeout=timeout)

    def helm(
        self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 300.0  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        """Run helm and return what it said.

        Args:
            arguments: After `helm`.
            input: Its standard input.
            check: Whether a non-zero exit is an error.
            timeout: In seconds.

        Raises:
            DevclusterError: It failed and `check` is set; the message has what it said.
        """
        return _run(self.helm_command(*arguments), "helm", arguments, input, check=check, timeout=timeout)

    # -- images ----------------------------------------------------------------------------------------

    def _ctr_command(self, *arguments: str) -> list[str]:
        record = self.require_alive()
        socket_path = f"/proc/{record.pid}/root{node.CONTAINERD_SOCKET}"  # as its mount namespace has it
        return [str(programs.program("containerd", "ctr")), "--address", socket_path, "-n", "k8s.io", *arguments]

    def _import(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._ctr_command("images", "import", "-"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def load(self, *what: str | Path) -> None:
        """Give images to the cluster's containerd; those that it has are skipped.

        Args:
            what: Archives (docker or OCI), by path, or names of images that `devcluster images` built.

        Raises:
            DevclusterError: There is no such image or archive, or containerd refused it.
        """
        archives = [Path(one) for one in what if isinstance(one, Path) or Path(one).is_file()]
        names = [str(one) for one in what if Path(one) not in archives]
        for archive in archives:
            with step(f"loading {archive}"), archive.open("rb") as file, self._importing() as into:
                shutil.copyfileobj(file, into, 1 << 20)
        if names:
            self._load_built(names)

    @contextlib.contextmanager
    def _importing(self) -> Iterator[IO[bytes]]:
        process = self._import()
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stderr is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(BrokenPipeError):  # what it says is shown below
            try:
                yield process.stdin
            finally:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        said = process.stderr.read().decode(errors="replace")
        process.stderr.close()
        if process.wait():
            raise DevclusterError(f"containerd refused the image: {said.strip()[-1000:]}")

    def _load_built(self, names: Sequence[str]) -> None:
        built = images.built()
        for name in names:
            if name not in built:
                raise DevclusterError(
                    f"there is no image {name}: neither a file nor built (`python -m devcluster images` "
                    f"builds; there are: {', '.join(sorted(built)) or 'none'})"
                )
        with locked(self.state.root / "loading.lock", waiting="waiting for another run that loads images"):
            try:
                loaded = json.loads(self.state.loaded.read_text())
            except (OSError, ValueError):
                loaded = {}
            fresh = [name for name in names if loaded.get(name) != built[name]]
            if not fresh:
                return
            with step(f"loading {', '.join(fresh)}"), images.store_lock():
                present = subprocess.run(
                    self._ctr_command("content", "ls", "--quiet"), capture_output=True, text=True, check=True
                ).stdout.split()
                with self._importing() as into:
                    ocistore.write_archive(
                        images.layout(), {name: images.reference(name) for name in fresh}, present, into
                    )
            loaded.update({name: built[name] for name in fresh})
            write_atomically(self.state.loaded, json.dumps(loaded))

    # -- forwarding ------------------------------------------------------------------------------------

    def target(self, what: str, namespace: str, port: str | None = None) -> tuple[str, int]:
        """Return address and port of a Service or a pod inside the cluster.

        Args:
            what: `svc/NAME` or `pod/NAME`.
            namespace: Where it is.
            port: A number or the name of a Service's port; None for the only or first one.

        Raises:
            DevclusterError: There is no such thing or port, or it has no address.
        """
        kind, _, name = what.partition("/")
        plural = {"svc": "services", "service": "services", "pod": "pods"}.get(kind)
        if plural is None or not name:
            raise DevclusterError(f"what to forward to is svc/NAME or pod/NAME, not {what!r}")
        code, found = self.api().request("GET", f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        if code != 200:
            raise DevclusterError(found.get("message", str(found)) if isinstance(found, dict) else str(found))
        return target_of(found, port)

    @contextlib.contextmanager
    def forward(self, what: str, *, namespace: str = "default", port: str | None = None) -> Iterator[int]:
        """Make a port on this machine's loopback that leads to a Service or pod, as long as the body runs.

        Args:
            what: `svc/NAME` or `pod/NAME`.
            namespace: Where it is.
            port: A number or the name of a Service's port; None for the first one.

        Yields:
            The port on 127.0.0.1.

        Raises:
            DevclusterError: There is no such thing, or the forwarder did not start.
        """
        command = [sys.executable, "-m", "devcluster", "--name", self.name, "forward", what, "-n", namespace]
        process = subprocess.Popen(
            [*command, *(["--port", port] if port else [])],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert process.stdout is not None  # noqa: S101 - for the type checker
        try:
            line = process.stdout.readline() if select.select([process.stdout], [], [], 30.0)[0] else ""
            if not line.strip():
                raise DevclusterError(f"the forwarder to {what} did not start")
            yield int(line.strip().rpartition(":")[2])
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


# Our own children that outlive us on purpose; kept so that they can be reaped when we end them ourselves.
_DETACHED: list["subprocess.Popen[bytes]"] = []


def _reap_detached() -> None:
    for process in list(_DETACHED):
        if process.poll() is not None:
            _DETACHED.remove(process)


def _run(
    command: list[str], tool: str, arguments: Sequence[str], given: str | None, *, check: bool, timeout: float
) -> subprocess.CompletedProcess[str]:
    stdin = {"input": given} if given is not None else {"stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command, capture_output=True, text=True, check=False, timeout=timeout, **stdin
        )
    except subprocess.TimeoutExpired as error:
        raise DevclusterError(f"{tool} {' '.join(arguments)}: no answer within {timeout:.0f} s") from error
    if check and done.returncode:
        raise DevclusterError(
            f"{tool} {' '.join(arguments)} exited {done.returncode}:\n{done.stderr.strip()}\n{done.stdout.strip()}"
        )
    result: subprocess.CompletedProcess[str] = done
    return result


def target_of(found: Mapping[str, Any], port: str | None) -> tuple[str, int]:
    """Return where a Service or pod listens.

    Args:
        found: The object as the API has it.
        port: A number or the name of a Service's port; None for the first one.

    Raises:
        DevclusterError: It has no address or no such port.
    """
    name = f"{found['kind']} {found['metadata']['name']}"
    spec, status = found["spec"], found.get("status", {})
    if found["kind"] == "Service":
        address = spec.get("clusterIP", "")
        ports = [(entry.get("name", ""), int(entry["port"])) for entry in spec.get("ports", [])]
    else:
        address = status.get("podIP", "")
        listed = [entry for container in spec["containers"] for entry in container.get("ports", [])]
        ports = [(entry.get("name", ""), int(entry["containerPort"])) for entry in listed]
    if address in ("", "None"):
        raise DevclusterError(f"{name} has no address of its own")
    if port is None:
        if not ports:
            raise DevclusterError(f"{name} lists no port; name one with --port")
        return address, ports[0][1]
    for known, number in ports:
        if port in (known, str(number)):
            return address, number
    if port.isdecimal() and found["kind"] == "Pod":  # a pod may listen where it does not say so
        return address, int(port)
    raise DevclusterError(f"{name} has no port {port}; it has {', '.join(f'{n} {p}'.strip() for n, p in ports)}")
