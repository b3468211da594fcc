"""A machine that cannot run a cluster is refused with the reason, in one sentence."""

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from devcluster import cli, machine
from devcluster.errors import DevclusterError, UnsupportedMachineError


def _finds_nothing(_: str) -> None:
    return None


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not Linux."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedMachineError, match="a cluster needs Linux"):
        machine.require_runnable()


def test_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not root."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedMachineError, match="a cluster needs root"):
        machine.require_runnable()


def test_no_namespaces(monkeypatch: pytest.MonkeyPatch, as_root: None) -> None:
    """The kernel's own words are in the sentence."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    def refuse(*_: Any, **__: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(UnsupportedMachineError, match=r"which this machine refuses: .*not permitted$"):
        machine.require_runnable()


def test_no_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are to be built, without a toolchain."""
    monkeypatch.setattr(shutil, "which", _finds_nothing)
    monkeypatch.setattr(machine, "_GO_DEFAULT", machine.Path("/nonexistent/go"))
    with pytest.raises(UnsupportedMachineError, match=r"Go 1.26 or newer, and this machine does not have"):
        machine.require_go()


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.27rc1 linux/amd64", (1, 27)),
        ("go version devel +abc", None),
        ("", None),
    ],
)
def test_go_versions_are_read(answer: str, version: tuple[int, int] | None) -> None:
    """Releases and candidates; anything else is not taken for new enough."""
    assert machine.parse_go_version(answer) == version


def test_an_old_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the version found."""
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/go")

    def old(*_: Any, **__: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 0, "go version go1.19.8 linux/amd64\n", "")

    monkeypatch.setattr(subprocess, "run", old)
    with pytest.raises(UnsupportedMachineError, match=r"need Go 1.26 or newer; .*go1\.19\.8"):
        machine.require_go()


def test_missing_packages_without_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named, each once."""
    monkeypatch.setattr(shutil, "which", _finds_nothing)
    with pytest.raises(UnsupportedMachineError, match=r"^missing: iproute2 util-linux \(Debian's names\)"):
        machine.ensure_packages({"unshare": "util-linux", "nsenter": "util-linux"}, {"ip": "iproute2"})


def test_present_packages_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run when nothing is missing."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be installed")

    monkeypatch.setattr(subprocess, "run", never)
    machine.ensure_packages({"ip": "iproute2", "/etc/passwd": "base-passwd"})


@pytest.mark.parametrize(("error", "code"), [(UnsupportedMachineError, 2), (DevclusterError, 1)])
def test_errors_end_in_one_sentence_and_their_code(
    error: type[DevclusterError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No traceback; the exit code distinguishes an unsuitable machine from a failed command."""

    def fail() -> None:
        raise error("that is why")

    monkeypatch.setattr(machine, "require_runnable", fail)
    assert cli.main(["--name", "unit", "down"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "devcluster: that is why\n")
