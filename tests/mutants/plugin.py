"""A pytest plugin of the trials: only the copy is tested, and hypothesis draws the same cases each time."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest

from tests.mutants.table import ROUTER, SIDECAR, WIRE


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test anything but the copy."""
    folder = Path(os.environ["PENSTOCK_MUTANT_FOLDER"]).resolve()
    for package in (SIDECAR, WIRE, ROUTER):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None or folder not in Path(spec.origin).resolve().parents:
            raise pytest.UsageError(f"expected {package} in {folder}, found {spec and spec.origin}")
    # No example is kept or made smaller: those that fail here are none of the code's.
    hypothesis.settings.register_profile(
        "mutants",
        database=None,
        derandomize=True,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    hypothesis.settings.load_profile("mutants")
