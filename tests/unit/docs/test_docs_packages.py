"""The first page of each package is a true map: it names every module, and no other; files stay short."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOTS = (
    "wire/penstock_wire",
    "sidecar/penstock_sidecar",
    "router/penstock_router",
    "operator/penstock_operator",
    "cli/penstock_cli",
    "sdk/penstock",
    "tests/support",
)
MAX_LINES = 800
PACKAGES = sorted(path.parent for root in ROOTS for path in (ROOT / root).rglob("__init__.py"))


def modules(package: Path) -> set[str]:
    """Modules and packages right below a package."""
    files = {path.stem for path in package.glob("*.py")}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    return files | folders - {"__pycache__"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_first_page_names_every_module_in_its_reading_order(package: Path) -> None:
    """Whoever opens a package learns where to begin, and where each thing is."""
    text = (package / "__init__.py").read_text()
    named = set(re.findall(r"`([a-z_0-9]+)(?:\.py)?`", text.split('"""')[1]))
    assert modules(package) - {"__init__"} - named == set()


def test_the_tour_names_only_files_that_exist() -> None:
    """`docs/architecture.md` is read with the tree beside it."""
    text = (ROOT / "docs/architecture.md").read_text()
    places = [*ROOTS, "", "tests", "docs"]
    for name in re.findall(r"`((?:[a-z_0-9.]+/)*[a-z_0-9]+\.(?:py|md))`", text):
        assert any((ROOT / place / name).exists() for place in places), name


def test_no_python_file_is_longer_than_can_be_read() -> None:
    """At 600 lines one looks whether a module is still one concept; no file that git tracks has over 800."""
    tracked = subprocess.check_output(["git", "ls-files", "-z", "*.py"], cwd=ROOT, text=True).split("\0")[:-1]
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in tracked}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_text_installs_a_distribution_that_is_not_ours() -> None:
    """The distribution `penstock` on PyPI is somebody else's: who copied such a line would run their code."""
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]
    texts = {name: (ROOT / name).read_text(errors="replace") for name in tracked if (ROOT / name).is_file()}
    foreign = re.compile(r"pip install[^\n]*[\s'\"]penstock(?=\[|['\"\s=<>~@]|$)", re.MULTILINE)
    assert {name: found[0] for name, text in texts.items() if (found := foreign.search(text))} == {}
    assert foreign.search("pip\x20install 'penstock[run]'"), "the expression finds the line that it is for"
