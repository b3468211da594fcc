"""What is built is what the checked-in pins say."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from devcluster import programs
from devcluster.errors import DevclusterError
from devcluster.programs import COMPONENTS, Component
from tests.support.processes.ports import free_port

_KUBERNETES = COMPONENTS["kubernetes"]


@pytest.mark.parametrize("component", COMPONENTS.values(), ids=COMPONENTS.keys())
def test_pins_are_there_and_agree(component: Component) -> None:
    """Every component requires its module at a release, pins every sum, and builds one tool a binary."""
    mod, sums = component.pins
    assert re.fullmatch(r"v\d+\.\d+\.\d+", component.version)
    assert f"{component.module} {component.version} h1:" in sums.read_text()
    text = mod.read_text()
    blocks = re.findall(r"^tool \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    tools = [line.strip() for block in blocks for line in block.splitlines()]
    tools += re.findall(r"^tool ([^\s(]+)$", text, re.MULTILINE)
    names = {re.sub(r"/v\d+$", "", tool).rpartition("/")[2] for tool in tools}
    assert names == set(component.binaries.values())


def test_kubernetes_modules_are_of_one_release() -> None:
    """v1.X.Y and its staging modules at v0.X.Y: a mixture may build and be something else."""
    replaced = re.findall(r"^\t(\S+) => (\S+) (\S+)$", _KUBERNETES.pins[0].read_text(), re.MULTILINE)
    assert len(replaced) > 25
    wanted = _KUBERNETES.version.replace("v1.", "v0.", 1)
    assert [(old, new, version) for old, new, version in replaced if (new, version) != (old, wanted)] == []


def test_the_key_follows_pins_and_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pin or another way to build is another folder in the cache; nothing else is."""
    folder = tmp_path / "x"
    folder.mkdir()
    for pin in ("go.mod", "go.sum"):
        folder.joinpath(pin).write_text("require example.org/x v1.2.3\n")
    monkeypatch.setattr(programs, "PINS", tmp_path)
    plain = Component(name="x", module="example.org/x", binaries={"x": "x"}, about="")
    tagged = Component(name="x", module="example.org/x", binaries={"x": "x"}, about="", tags="seccomp")
    reworded = Component(name="x", module="example.org/x", binaries={"x": "x"}, about="an hour")
    before = plain.key
    assert plain.version == "v1.2.3"
    assert tagged.key != before
    assert reworded.key == before
    folder.joinpath("go.sum").write_text("other")
    assert plain.key != before


def test_without_a_network_the_build_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOPROXY", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(DevclusterError, match=r"(?s)building cni failed:.*connection refused.*set GOPROXY"):
        programs.build(COMPONENTS["cni"], tmp_path)


def test_programs_are_looked_for_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`$PENSTOCK_CACHE` is where they lie; one that is not there is missing."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert programs.missing() == [component for component in COMPONENTS.values() if not component.extra]
    etcd = programs.program("etcd", "etcd")
    assert etcd.is_relative_to(tmp_path)
    etcd.parent.mkdir(parents=True)
    assert COMPONENTS["etcd"] not in programs.missing()


@pytest.mark.parametrize("code", [0, 1])
def test_a_build_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A test that is the first to need a program would fail for a file that is not closed."""
    pins, into, go = tmp_path / "pins/x", tmp_path / "into", tmp_path / "go"
    pins.mkdir(parents=True)
    into.mkdir()
    pins.joinpath("go.mod").write_text("require example.org/x v1.2.3\n")
    pins.joinpath("go.sum").write_text("")
    go.write_text(f'#!/bin/sh\necho example.org/x\ntouch "$GOBIN/x"\nexit {code}\n')
    go.chmod(0o755)
    started: list[subprocess.Popen[str]] = []

    def untethered(
        command: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, output: int
    ) -> "subprocess.Popen[str]":
        process = subprocess.Popen(command, env=env, cwd=cwd, stdout=output, text=True)
        started.append(process)
        return process

    monkeypatch.setattr(programs, "PINS", pins.parent)
    monkeypatch.setattr(programs, "run_tethered", untethered)
    monkeypatch.setattr(programs.machine, "require_go", lambda: go)
    component = Component(name="x", module="example.org/x", binaries={"x": "x"}, about="a moment")
    if code:
        with pytest.raises(DevclusterError, match=r"example\.org/x"):
            programs.build(component, into)
    else:
        programs.build(component, into)
        assert into.joinpath("x").exists()
    assert [process.stdout is not None and process.stdout.closed for process in started] == [True]
