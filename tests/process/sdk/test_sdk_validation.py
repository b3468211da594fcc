"""Annotations: each item is checked and made by itself, and what cannot be is said when it is loaded."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_pydantic_is_imported_for_annotations_alone() -> None:
    code = "import sys, penstock.serve; from penstock.signature import read; read(lambda item: item, 'f'); "
    subprocess.run([sys.executable, "-c", code + "assert 'pydantic' not in sys.modules"], check=True)


def test_the_server_starts_with_what_its_lock_has() -> None:
    """An image of a model contains the packages of `requirements/sdk.lock`, and no other."""
    lines = (ROOT / "requirements/sdk.lock").read_text().splitlines()
    there = {line.split("==")[0] for line in lines if "==" in line} | {"penstock-serving", "setuptools"}
    others = [name for name, owners in packages_distributions().items() if not there.intersection(owners)]
    assert "yaml" in others
    code = f"import sys; sys.modules.update(dict.fromkeys({others})); import penstock.serve, penstock.server"
    subprocess.run([sys.executable, "-c", code], check=True)
