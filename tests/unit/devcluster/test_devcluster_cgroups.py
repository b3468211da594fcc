"""The cgroups of a cluster on v1, hybrid and v2 machines."""

from pathlib import Path

import pytest

from devcluster import cgroups
from devcluster.errors import DevclusterError, UnsupportedMachineError

_V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mountinfo", "version", "roots"),
    [
        pytest.param(_V1, 1, ["cpu", "memory", "unified"], id="hybrid counts as v1"),
        pytest.param(_V2, 2, ["."], id="v2"),
    ],
)
def test_trees_are_read_from_the_mounts(mountinfo: str, version: int, roots: list[str]) -> None:
    """All trees, v1 when any controller is on v1, whatever optional fields a line has."""
    trees = cgroups.parse(mountinfo)
    assert trees.version == version
    assert [str(root.relative_to("/sys/fs/cgroup")) for root in trees.roots] == roots


def test_a_machine_without_cgroups_is_told_so() -> None:
    """One sentence, for exit code 2."""
    with pytest.raises(UnsupportedMachineError, match="no cgroup tree is mounted"):
        cgroups.parse("22 27 0:21 / /proc rw,relatime - proc proc rw\n")


def test_v1_gives_a_node_the_cpus_of_the_machine(tmp_path: Path) -> None:
    """A new cpuset is empty, and an empty one takes no process: it is filled from its parent."""
    for controller in ("cpuset", "memory"):
        tmp_path.joinpath(controller).mkdir()
    for folder in ("cpuset", "cpuset/penstock-a", "cpuset/penstock-a/node0"):
        tmp_path.joinpath(folder).mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems", "cgroup.clone_children"):
            tmp_path.joinpath(folder, file).write_text("")
    tmp_path.joinpath("cpuset/cpuset.cpus").write_text("0-1")
    tmp_path.joinpath("cpuset/cpuset.mems").write_text("0")
    trees = cgroups.Hierarchies(version=1, roots=(tmp_path / "cpuset", tmp_path / "memory"))
    assert cgroups.create(trees, "a", "node0") == "/penstock-a/node0"
    node = tmp_path / "cpuset/penstock-a/node0"
    values = [node.joinpath(f).read_text() for f in ("cpuset.cpus", "cpuset.mems", "cgroup.clone_children")]
    assert values == ["0-1", "0", "1"]
    assert tmp_path.joinpath("memory/penstock-a/node0").is_dir()


@pytest.mark.parametrize(
    ("file", "processors", "weight"),
    [("cpu.shares", 2, 2048), ("cpu.weight", 2, 200), ("cpu.weight", 256, 10_000)],
)
def test_the_pods_of_a_cluster_weigh_as_much_as_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, processors: int, weight: int
) -> None:
    """At both levels above `kubepods`, up to what the kernel takes."""
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    files = [tmp_path / folder / file for folder in ("penstock-a", "penstock-a/node0")]
    for each in files:
        each.parent.mkdir()
        each.write_text("")
    cgroups.create(cgroups.Hierarchies(version=1, roots=(tmp_path,)), "a", "node0")
    assert [each.read_text() for each in files] == [str(weight)] * 2


def _v2_tree(root: Path, controllers: str) -> cgroups.Hierarchies:
    for folder in (root, root / "penstock-a", root / "penstock-a/node0"):
        folder.mkdir(exist_ok=True)
        folder.joinpath("cgroup.controllers").write_text(controllers)
        folder.joinpath("cgroup.subtree_control").write_text("")
    return cgroups.Hierarchies(version=2, roots=(root,))


def test_v2_hands_controllers_down_at_every_level(tmp_path: Path) -> None:
    """The controllers a kubelet uses, as far as the machine has them."""
    trees = _v2_tree(tmp_path, "cpuset cpu io memory hugetlb pids misc")
    assert cgroups.create(trees, "a", "node0") == "/penstock-a/node0"
    for folder in ("", "penstock-a", "penstock-a/node0"):
        written = tmp_path.joinpath(folder, "cgroup.subtree_control").read_text()
        assert written == "+cpuset +cpu +io +memory +pids"


def test_v2_without_the_controllers_is_told_so(tmp_path: Path) -> None:
    """A container that was not given them cannot run pods; the message names what lacks."""
    with pytest.raises(UnsupportedMachineError, match=r"lacks controllers that pods need: memory, pids"):
        cgroups.create(_v2_tree(tmp_path, "cpuset cpu"), "a", "node0")


def test_remove_takes_the_cluster_and_nobody_else(tmp_path: Path) -> None:
    """All levels of one cluster go; a cluster whose name begins alike stays."""
    for folder in ("penstock-a/node0/kubepods/pod1", "penstock-a/node0/other", "penstock-ab/node0"):
        tmp_path.joinpath(folder).mkdir(parents=True)
    trees = cgroups.Hierarchies(version=1, roots=(tmp_path,))
    assert cgroups.existing(trees, "a") == [tmp_path / "penstock-a"]
    cgroups.remove(trees, "a", timeout=1)
    assert cgroups.existing(trees, "a") == []
    assert tmp_path.joinpath("penstock-ab/node0").is_dir()


def test_a_busy_cgroup_is_named(tmp_path: Path) -> None:
    """What cannot be removed is an error that names it, not a trace left in silence."""
    busy = tmp_path / "penstock-a/node0"
    busy.mkdir(parents=True)
    busy.joinpath("task").write_text("1")  # a folder with a file stands for a cgroup with a process
    trees = cgroups.Hierarchies(version=1, roots=(tmp_path,))
    with pytest.raises(DevclusterError, match=r"cgroup .*penstock-a/node0 cannot be removed"):
        cgroups.remove(trees, "a", timeout=0)
