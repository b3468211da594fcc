"""The cgroups of a cluster: made before its kubelet starts, removed after its last process ended.

On cgroup v1 every controller is a tree of its own; on v2 there is one. A cluster has one folder in each
tree, and each of its nodes one folder below that.
"""

import dataclasses
import os
import time
from pathlib import Path

from devcluster.errors import DevclusterError, UnsupportedMachineError

CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")
_NEEDED = {"cpu", "memory", "pids"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """The machine's cgroup trees.

    Attributes:
        version: 1, also for hybrids (v1 controllers beside an empty v2 tree), or 2.
        roots: Where each tree is mounted.
    """

    version: int
    roots: tuple[Path, ...]


def parse(mountinfo: str) -> Hierarchies:
    """Read the cgroup trees out of a `/proc/self/mountinfo`.

    Raises:
        UnsupportedMachineError: There are none.
    """
    roots: dict[Path, str] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()[0] if after else ""
        if kind in ("cgroup", "cgroup2"):
            roots[Path(before.split()[4])] = kind
    if not roots:
        raise UnsupportedMachineError("no cgroup tree is mounted on this machine; pods need one")
    return Hierarchies(version=1 if "cgroup" in roots.values() else 2, roots=tuple(sorted(roots)))


def hierarchies() -> Hierarchies:
    """Return this machine's cgroup trees."""
    return parse(Path("/proc/self/mountinfo").read_text())


def name(cluster: str) -> str:
    """Return the cluster's folder in every tree."""
    return f"penstock-{cluster}"


def _delegate(parent: Path) -> None:
    """On v2, let the children of `parent` have the controllers that a kubelet uses."""
    available = parent.joinpath("cgroup.controllers").read_text().split()
    if absent := _NEEDED - set(available):
        raise UnsupportedMachineError(
            f"the cgroup v2 tree at {parent} lacks controllers that pods need: {', '.join(sorted(absent))}"
        )
    wanted = [controller for controller in CONTROLLERS if controller in available]
    try:
        parent.joinpath("cgroup.subtree_control").write_text(
            " ".join(f"+{controller}" for controller in wanted)
        )
    except OSError as error:
        raise UnsupportedMachineError(
            f"the cgroup v2 tree at {parent} does not hand its controllers down ({error.strerror}); in a "
            "container, move its processes to a child cgroup first"
        ) from error


def _weigh(folder: Path) -> None:
    """Give a folder the weight of as many processes as there are processors, as a kubelet does `kubepods`.

    Otherwise all pods of a cluster together have no more of a busy machine than any other session.
    """
    processors = os.cpu_count() or 1
    for file, one, most in (("cpu.shares", 1024, 1 << 18), ("cpu.weight", 100, 10_000)):
        if folder.joinpath(file).exists():
            folder.joinpath(file).write_text(str(min(one * processors, most)))


def create(trees: Hierarchies, cluster: str, node: str) -> str:
    """Make the cgroups that a node's pods go below.

    Args:
        trees: The machine's.
        cluster: The cluster's name.
        node: The node's name.

    Returns:
        The kubelet's `cgroupRoot`, a path from each tree's root.

    Raises:
        UnsupportedMachineError: A v2 tree lacks controllers or keeps them to itself.
    """
    for root in trees.roots:
        parent = root
        if trees.version == 2:
            _delegate(root)
        for part in (name(cluster), node):
            child = parent / part
            child.mkdir(exist_ok=True)
            _weigh(child)
            if trees.version == 2:
                _delegate(child)
            elif child.joinpath("cpuset.cpus").exists():  # empty at first, and then no process may enter
                for file in ("cpuset.cpus", "cpuset.mems"):
                    child.joinpath(file).write_text(parent.joinpath(file).read_text())
                child.joinpath("cgroup.clone_children").write_text("1")
            parent = child
    return f"/{name(cluster)}/{node}"


def existing(trees: Hierarchies, cluster: str) -> list[Path]:
    """Return the cluster's folders that are there."""
    return [folder for root in trees.roots if (folder := root / name(cluster)).is_dir()]


def remove(trees: Hierarchies, cluster: str, *, node: str = "", timeout: float) -> None:
    """Remove the cluster's cgroups, children first.

    Args:
        trees: The machine's.
        cluster: The cluster's name; its processes have ended.
        node: Only this node's; its processes have ended.
        timeout: A cgroup stays busy for a moment after its last process; how long to wait, in seconds.

    Raises:
        DevclusterError: One is still busy after that time.
    """
    deadline = time.monotonic() + timeout
    for top in existing(trees, cluster):
        for folder, _, _ in os.walk(top / node, topdown=False):
            while True:
                try:
                    Path(folder).rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise DevclusterError(
                            f"cgroup {folder} cannot be removed: {error.strerror}"
                        ) from error
                    time.sleep(0.01)
                else:
                    break
