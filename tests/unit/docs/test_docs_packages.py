"""The first page of each package is a true map: it names every module, and no other."""

from __future__ import annotations

import re
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
