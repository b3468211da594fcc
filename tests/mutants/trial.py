"""One mutant's trial: the packages copied, the edit made, the tests run, what they said."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.table import ROUTER, SIDECAR, WIRE, Mutant

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {SIDECAR: ROOT / "sidecar", WIRE: ROOT / "wire", ROUTER: ROOT / "router"}
NO_VERDICT = (
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "NameError",
    "UnboundLocalError",
    "AttributeError",
    "hypothesis.errors",
)
"""Failures which show that a mutant is not a program, and so do not judge it."""
TIMEOUT_SECONDS = 120
"""Of one test. NB: a test that hangs ends pytest, which is not a verdict either."""


class CannotApplyError(Exception):
    """The text of a mutant does not occur exactly once, or the result is not Python."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edited:
    """A mutated file: its path relative to the package's folder, and its text."""

    path: Path
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the tests.

    Args:
        mutant: of which.
        survived: node ids of which none failed, or failed in a way that says nothing.
        said: the first failure of each other one.
        seconds: what it took.
    """

    mutant: Mutant
    survived: tuple[str, ...]
    said: tuple[str, ...]
    seconds: float


def edit(mutant: Mutant) -> Edited:
    """Make the edit, on nothing but text.

    Raises:
        CannotApplyError: see there.
    """
    folder = FOLDERS[mutant.package]
    places = [
        (path, text)
        for path in sorted((folder / mutant.package).rglob("*.py"))
        if mutant.old in (text := path.read_text())
    ]
    count = sum(text.count(mutant.old) for _, text in places)
    if count != 1:
        raise CannotApplyError(
            f"{mutant.name}: expected once in {mutant.package}, found {count} times: {mutant.old!r}"
        )
    ((path, text),) = places
    mutated = text.replace(mutant.old, mutant.new)
    try:
        compile(mutated, str(path), "exec")
    except SyntaxError as error:
        raise CannotApplyError(f"{mutant.name}: expected Python, found {error}") from error
    return Edited(path.relative_to(folder), mutated)


def run(tests: Iterable[str], folder: Path, edited: Edited | None = None) -> dict[str, list[str]]:
    """Run tests on a copy of the packages in an empty folder.

    Returns:
        By node id as given, what failed under it, each as one line; empty where all passed.

    Raises:
        RuntimeError: pytest ran no tests, or the copy is not what was tested.
    """
    for package, source in FOLDERS.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / package, folder / package, ignore=ignored)
    if edited is not None:
        (folder / edited.path).write_text(edited.text)
    tests = tuple(tests)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider"]
    command += [
        "-p",
        "tests.mutants.plugin",
        f"--junitxml={report}",
        "-o",
        "junit_family=xunit1",
        f"--timeout={TIMEOUT_SECONDS}",
        *tests,
    ]
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PENSTOCK_MUTANT_FOLDER": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not report.exists():
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    failures: dict[str, list[str]] = {test: [] for test in tests}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own report
        name = f"{case.get('classname', '').replace('.', '/')}/{case.get('name')}"
        for outcome in ("failure", "error"):
            for element in case.iter(outcome):
                said = (element.get("message") or element.text or "").strip().splitlines() or [""]
                for test in tests:
                    if _is_under(name, test):
                        failures[test].append(f"{outcome}: {said[0]}")
    return failures


def _is_under(name: str, test: str) -> bool:
    """Whether a reported test is one of those that a node id stands for."""
    node = test.replace(".py", "").replace("::", "/")
    return name.startswith(node) and name[len(node) :][:1] in ("", "/", "[")


def judge(mutant: Mutant, folder: Path) -> Verdict:
    """Whether the tests catch a mutant (raises CannotApplyError, RuntimeError)."""
    begun = time.monotonic()
    failures = run(mutant.tests, folder, edit(mutant))
    survived, said = [], []
    for test, lines in failures.items():
        verdicts = [
            line
            for line in lines
            if line.startswith("failure: ") and not line.removeprefix("failure: ").startswith(NO_VERDICT)
        ]
        if verdicts and len(verdicts) == len(lines):
            said.append(verdicts[0].removeprefix("failure: "))
        else:
            survived.append(f"{test}: {lines[0]}" if lines else test)
    return Verdict(
        mutant=mutant, survived=tuple(survived), said=tuple(said), seconds=time.monotonic() - begun
    )
