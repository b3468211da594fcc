"""Each package's `__init__` is a map of it: it names every module, in the order in which to read them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = [
    init.parent
    for root in ("operator/penstock_operator", "sdk/penstock")
    for init in sorted((ROOT / root).rglob("__init__.py"))
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(ROOT)))
def test_a_packages_map_names_each_of_its_modules(package: Path) -> None:
    there = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert there - {"__init__"} <= set(re.findall(r"`(\w+)`", text))
