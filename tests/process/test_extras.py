"""Each process runs with the packages of its own lock: its image has no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import importlib, importlib.metadata, json, pkgutil, re, sys

package, allowed = sys.argv[1], set(json.loads(sys.argv[2]))
of = importlib.metadata.packages_distributions()
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()

class OnlyTheLock:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        owners = of.get(name.partition(".")[0], ())
        if owners and not allowed & set(map(plain, owners)):
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(OnlyTheLock, sys.meta_path)
for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
    # Each of the formats needs a library of its own, which its user installs.
    if not found.name.endswith(".__main__") and not found.name.startswith("penstock.formats."):
        importlib.import_module(found.name)
"""


def locked(extra: str) -> list[str]:
    """The distributions of a lock, and our own."""
    # An image has one program alone; the sidecar's has the first step of an artifact, too.
    several = {"run": ("router", "sdk", "sidecar"), "sidecar-image": ("artifact", "sidecar")}
    locks = several.get(extra, (extra,))
    text = "".join((ROOT / "requirements" / f"{each}.lock").read_text() for each in locks)
    names = re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)
    return ["penstock", *(re.sub(r"[-_.]+", "-", name).lower() for name in names)]


def import_all(package: str, extra: str) -> subprocess.CompletedProcess[str]:
    """Import each module of a package where only a lock's distributions can be imported."""
    command = [sys.executable, "-c", IMPORT_ALL, package, json.dumps(locked(extra))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("penstock_sidecar", "sidecar-image"),
        ("penstock_sidecar.model", "sidecar"),
        ("penstock_router", "router"),
        ("penstock_operator", "operator"),
        ("penstock", "sdk"),
        ("penstock_cli", "cli"),
    ],
)
def test_a_process_needs_no_more_than_its_lock(package: str, extra: str) -> None:
    done = import_all(package, extra)
    assert done.returncode == 0, done.stderr


def test_what_a_lock_lacks_would_be_noticed() -> None:
    done = import_all("penstock_router", "sidecar")
    assert done.returncode == 1
    assert "No module named 'aiohttp'" in done.stderr


def test_what_stands_on_our_own_http_has_no_aiohttp() -> None:
    """28 MB of memory a pod instead of 41."""
    assert [extra for extra in ("sidecar", "sdk") if "aiohttp" in locked(extra)] == []


def test_a_router_without_a_cluster_starts_without_aiohttp() -> None:
    """It is a third of the CPU that a start takes; `penstock run` starts one each time."""
    text = "import sys, penstock_router.__main__; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


COMMANDS = [
    ("penstock_sidecar", "penstock-sidecar", "sidecar"),
    ("penstock_router", "penstock-router", "router"),
    ("penstock_operator", "penstock-operator", "operator"),
    ("penstock.serve", "penstock.serve", "sdk"),
    ("penstock", "penstock", "run"),
    ("penstock_cli", "kubectl-penstock", "cli"),
]
RUN = f"""
import runpy, sys
{IMPORT_ALL.split("for found in")[0].replace("package, allowed", "module, allowed")}
sys.argv[1:] = sys.argv[3:] or ["--help"]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def run_with(module: str, extra: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command (`--help`) where only an extra's packages can be imported; None: without any."""
    allowed = ["penstock", "msgspec"] if extra is None else locked(extra)
    command = [sys.executable, "-c", RUN, module, json.dumps(allowed), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("module", "command", "extra"), COMMANDS)
def test_a_command_whose_extra_is_missing_says_which(module: str, command: str, extra: str) -> None:
    done = run_with(module, None)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{command}: expected the packages of penstock-serving[{extra}], found ")
    assert run_with(module, extra).returncode == 0


def test_validate_says_its_extra_to_whoever_has_that_of_run() -> None:
    done = run_with("penstock", "run", "validate", "any.yaml")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("penstock validate: expected the packages of penstock-serving[validate], found ")


@pytest.mark.parametrize(("module", "command", "extra"), COMMANDS)
def test_the_docs_say_which_extra_brings_a_command(module: str, command: str, extra: str) -> None:
    text = (ROOT / "docs" / "wire.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"- `{extra}`: "))
    assert f"`python -m {module}`" in row
