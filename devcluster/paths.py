"""Paths: of the cache that all clusters and runs share, and of the state of one cluster.

The cache outlives clusters; a cluster's state ends with it. Inside a cluster the node's own folders have
their usual names (`/run/containerd`, `/var/lib/kubelet`): they are mounts of the cluster's namespace.
"""

import dataclasses
import os
import re
from pathlib import Path

from devcluster.errors import DevclusterError

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_NAME = "penstock"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


def _base(own: str, xdg: str, fallback: str) -> Path:
    if os.environ.get(own):
        return Path(os.environ[own]).expanduser().absolute()
    xdg_base = os.environ.get(xdg)
    return (Path(xdg_base) if xdg_base else Path.home() / fallback) / "penstock"


def cache_dir() -> Path:
    """Return what outlives clusters: `$PENSTOCK_CACHE`, else `penstock` in the XDG cache folder."""
    return _base("PENSTOCK_CACHE", "XDG_CACHE_HOME", ".cache")


def state_root() -> Path:
    """Return the folder of all states: `$PENSTOCK_STATE`, else `penstock` in the XDG state folder."""
    return _base("PENSTOCK_STATE", "XDG_STATE_HOME", ".local/state")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The files of one cluster, or of one further node of it.

    Attributes:
        name: The cluster's name: a DNS label of at most 32 characters.
        root: The folder that goes when the cluster goes.
    """

    name: str
    root: Path

    @classmethod
    def of(cls, name: str) -> "State":
        """Return the state of the cluster called `name`, which need not exist.

        Raises:
            DevclusterError: The name is not a DNS label of at most 32 characters.
        """
        if not _NAME.fullmatch(name):
            raise DevclusterError(
                f"a cluster's name is a DNS label of at most 32 characters (a-z, 0-9, -), not {name!r}"
            )
        return cls(name=name, root=state_root() / name)

    def of_node(self, name: str) -> "State":
        """Return where a further node of the cluster keeps its files: laid out as the cluster's own."""
        return State(name=self.name, root=self.root / "nodes" / name)

    @property
    def title(self) -> str:
        """Its name in messages."""
        further = self.root.parent.name == "nodes"
        return f"{self.root.name} of cluster {self.name}" if further else f"cluster {self.name}"

    @property
    def lock(self) -> Path:
        """The lock of commands that start or end the cluster; beside the folder, to outlive it."""
        return self.root.parent / f"{self.name}.lock"

    @property
    def record(self) -> Path:
        """The file that identifies the cluster's process (`processes.Record`)."""
        return self.root / "cluster.json"

    @property
    def status(self) -> Path:
        """The supervisor's last status of its components."""
        return self.root / "status.json"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def conf(self) -> Path:
        """Configuration files of the components."""
        return self.root / "conf"

    @property
    def clients(self) -> Path:
        """One file for each process that was put into the cluster's network from outside."""
        return self.root / "clients"

    @property
    def logs(self) -> Path:
        """One log for each component."""
        return self.root / "logs"

    @property
    def kubeconfig(self) -> Path:
        """For clients inside the cluster's network namespace."""
        return self.root / "kubeconfig"

    @property
    def host_kubeconfig(self) -> Path:
        """For clients on this machine, through the forwarder on loopback."""
        return self.root / "kubeconfig-host"

    @property
    def resolv_conf(self) -> Path:
        """The cluster's DNS, for commands that run inside its network."""
        return self.conf / "resolv.conf"

    @property
    def loaded(self) -> Path:
        """The list of the images that the cluster's containerd has."""
        return self.root / "loaded.json"
