"""The life of one cluster, and the way into it: what the command line and the tests call."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from devcluster import life, loading, machine, network, node, nodes, programs
from devcluster.api import Api
from devcluster.cache import locked
from devcluster.console import say, step
from devcluster.errors import DevclusterError
from devcluster.life import Status
from devcluster.paths import DEFAULT_NAME, REPOSITORY, State
from devcluster.processes import INSTANCE_VARIABLE, Record, recorded


class Cluster:
    """A Kubernetes on this machine, in namespaces of its own: one node, and more where they are added.

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

    def up(self, *, node_count: int = 1) -> None:
        """Start the cluster and wait until it is ready; nothing happens when it is.

        Builds the programs that the cache lacks, and installs the Debian packages that are missing.

        Args:
            node_count: How many it shall have at least, 1 to 10.

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
            else:
                if status.phase != "starting":
                    life.clean(self.state)
                    life.launch(self.state, self.node)
                life.await_ready(self.state)
        for number in range(1, node_count):
            self.add_node(network.node(number).name)

    def down(self) -> None:
        """End the cluster and remove every trace of it except the caches. Without a cluster, do nothing.

        Raises:
            DevclusterError: Something does not end or cannot be removed.
        """
        machine.require_runnable()
        with locked(self.state.lock, waiting=f"waiting for another run that changes cluster {self.name}"):
            life.clean(self.state)
            self.state.lock.unlink()
        with contextlib.suppress(OSError):
            self.state.root.parent.rmdir()

    def status(self) -> Status:
        """Return what the cluster is doing now."""
        return life.read_status(self.state)

    # -- further nodes ---------------------------------------------------------------------------------

    def nodes(self) -> list[str]:
        """Return the names of the cluster's nodes, lost ones too."""
        return [self.node.name, *nodes.names(self.state)]

    def add_node(self, name: str) -> None:
        """Add a node and wait until it takes pods; nothing happens when it runs. A lost one starts anew.

        It has every image that `load` gave to the cluster by name, and gets those that come.

        Args:
            name: `node1` to `node9`.

        Raises:
            DevclusterError: It did not come up, or the cluster does not run.
        """
        nodes.parse(name)
        with locked(self.state.lock, waiting=f"waiting for another run that changes cluster {self.name}"):
            record = self.require_alive()
            mine = self.state.of_node(name)
            if life.read_status(mine).phase == "ready":
                return
            self._remove_node(record, name)
            with step(f"adding {name}"):
                loading.load_again(self.state, *nodes.start(self.state, record, name))
            self.kubectl("taint", "node", name, f"{node.LOADING_TAINT}-")

    def remove_node(self, name: str) -> None:
        """Remove an additional node, also a lost one. Without such a node, do nothing.

        Its pods end at once. To move them first: `kubectl drain NODE --ignore-daemonsets`.

        Args:
            name: The node.

        Raises:
            DevclusterError: The cluster does not run, or something does not end.
        """
        nodes.parse(name)
        with locked(self.state.lock, waiting=f"waiting for another run that changes cluster {self.name}"):
            self._remove_node(self.require_alive(), name)

    def _remove_node(self, record: Record, name: str) -> None:
        if not self.state.of_node(name).root.exists():
            return
        nodes.clean(self.state, record, name)
        self.kubectl("delete", "node", name, "--ignore-not-found")

    def lose_node(self, name: str) -> None:
        """Lose an additional node as by a power cut: its connections stay open, but nothing answers on them.

        Kubernetes notes it after some 50 s. `remove_node` forgets it, `add_node` starts it anew.

        Args:
            name: The node.

        Raises:
            DevclusterError: No such node runs.
        """
        with locked(self.state.lock, waiting=f"waiting for another run that changes cluster {self.name}"):
            nodes.lose(self.state, self.require_alive(), name)

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """End a container's first process by SIGKILL, from outside, as the kernel does when memory is short.

        Args:
            namespace: The pod's.
            pod: Its name.
            container: The container's name; an init container that stays (a native sidecar) counts.

        Raises:
            DevclusterError: No such container runs, or it was not killed.
        """
        document = json.loads(self.kubectl("-n", namespace, "get", "pod", pod, "-o", "json").stdout)
        place = document["spec"]["nodeName"]
        state = self.state if place == self.node.name else self.state.of_node(place)
        record = Record.read(state.record)
        if record is None:
            raise DevclusterError(f"cluster {self.name} does not have {place}")
        nodes.kill_container(record, document, container)

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
        return Api(self.state.pki, "127.0.0.1", self.require_alive().api_port, timeout=60.0)

    def _network_prefix(self) -> list[str]:
        record = self.require_alive()
        return [
            *recorded(self.state.clients),
            *("env", f"{INSTANCE_VARIABLE}={record.instance}"),
            # What kubectl and helm remember of an API is kept by its address, which all clusters share.
            f"KUBECACHEDIR={self.state.root}/kube-cache",
            *("nsenter", f"--net=/proc/{record.pid}/ns/net", "--"),
        ]

    @property
    def exec_prefix(self) -> list[str]:
        """The words before a command that run it in the cluster's network, with the cluster's DNS.

        The command replaces the prefix: same process id, same working directory, files, standard streams,
        signals. It ends with the cluster when it has not ended before.
        """
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return [
            *self._network_prefix(),
            "unshare",
            "--mount",
            "--",
            "sh",
            "-c",
            script,
            str(self.state.resolv_conf),
        ]

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the whole command line of a kubectl call, to be run from this machine."""
        tool = str(programs.program("kubernetes", "kubectl"))
        # NB: not a flag: kubectl takes none before the name of a plugin, such as penstock. It looks for
        # plugins on the PATH, which need not have the virtual environment.
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
        environment = ["env", f"KUBECONFIG={self.kubeconfig}", f"PATH={path}"]
        return [*self._network_prefix(), *environment, tool, *arguments]

    def helm_command(self, *arguments: str) -> list[str]:
        """Return the whole command line of a helm call, to be run from this machine."""
        tool = str(programs.program("helm", "helm"))
        return [*self._network_prefix(), tool, f"--kubeconfig={self.kubeconfig}", *arguments]

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,
        check: bool = True,
        timeout: float = 120.0,
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
        return _run(
            self.kubectl_command(*arguments),
            "kubectl",
            arguments,
            input,
            clients=self.state.clients,
            check=check,
            timeout=timeout,
        )

    def helm(
        self,
        *arguments: str,
        input: str | None = None,
        check: bool = True,
        timeout: float = 300.0,
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
        return _run(
            self.helm_command(*arguments),
            "helm",
            arguments,
            input,
            clients=self.state.clients,
            check=check,
            timeout=timeout,
        )

    def load(self, *what: str | Path) -> None:
        """Give images to the containerd of each node; those that it has are skipped.

        Args:
            what: Archives (docker or OCI), by path, or names of images that `devcluster images` built.

        Raises:
            DevclusterError: The image or archive does not exist, or containerd refused it.
        """
        loading.load(self.state, self.require_alive(), *what)
        for mine, record in nodes.running(self.state):
            loading.load(mine, record, *what)

    # -- forwarding ------------------------------------------------------------------------------------

    def target(self, what: str, namespace: str, port: str | None = None) -> tuple[str, int]:
        """Return address and port of a Service or a pod inside the cluster.

        Args:
            what: `svc/NAME` or `pod/NAME`.
            namespace: Where it is.
            port: A number or the name of a Service's port; None for the only or first one.

        Raises:
            DevclusterError: The object or port does not exist, or it does not have an address.
        """
        kind, _, name = what.partition("/")
        plural = {"svc": "services", "service": "services", "pod": "pods"}.get(kind)
        if plural is None or not name:
            raise DevclusterError(f"what to forward to is svc/NAME or pod/NAME, not {what!r}")
        code, obj = self.api().request("GET", f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        if code != 200:
            raise DevclusterError(obj.get("message", str(obj)) if isinstance(obj, dict) else str(obj))
        return target_of(obj, port)

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
            DevclusterError: The object does not exist, or the forwarder did not start.
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


def _run(
    command: list[str],
    tool: str,
    arguments: Sequence[str],
    given: str | None,
    *,
    clients: Path,
    check: bool,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(given, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise DevclusterError(
                f"{tool} {' '.join(arguments)}: no answer within {timeout:.0f} s"
            ) from error
        finally:
            clients.joinpath(str(process.pid)).unlink(missing_ok=True)  # it has ended: no client any more
    if check and process.returncode:
        raise DevclusterError(
            f"{tool} {' '.join(arguments)} exited {process.returncode}:\n{errors.strip()}\n{output.strip()}"
        )
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def target_of(obj: Mapping[str, Any], port: str | None) -> tuple[str, int]:
    """Return where a Service or pod listens.

    Args:
        obj: The object as the API has it.
        port: A number or the name of a Service's port; None for the first one.

    Raises:
        DevclusterError: It does not have an address, or not that port.
    """
    name = f"{obj['kind']} {obj['metadata']['name']}"
    spec, status = obj["spec"], obj.get("status", {})
    if obj["kind"] == "Service":
        address = spec.get("clusterIP", "")
        ports = [(entry.get("name", ""), int(entry["port"])) for entry in spec.get("ports", [])]
    else:
        address = status.get("podIP", "")
        listed = [entry for container in spec["containers"] for entry in container.get("ports", [])]
        ports = [(entry.get("name", ""), int(entry["containerPort"])) for entry in listed]
    if address in ("", "None"):
        raise DevclusterError(f"{name} does not have an address of its own")
    if port is None:
        if not ports:
            raise DevclusterError(f"{name} lists no port; name one with --port")
        return address, ports[0][1]
    for known, number in ports:
        if port in (known, str(number)):
            return address, number
    if port.isdecimal() and obj["kind"] == "Pod":  # a pod may listen where it does not say so
        return address, int(port)
    raise DevclusterError(
        f"{name} does not have port {port}; it has {', '.join(f'{n} {p}'.strip() for n, p in ports)}"
    )
