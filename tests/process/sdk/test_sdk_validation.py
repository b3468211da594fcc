"""Annotations: each item is checked and made by itself, and what cannot be is said when it is loaded."""

from __future__ import annotations

import subprocess
import sys


def test_pydantic_is_imported_for_annotations_alone() -> None:
    code = "import sys, penstock.serve; from penstock.signature import read; read(lambda item: item, 'f'); "
    subprocess.run([sys.executable, "-c", code + "assert 'pydantic' not in sys.modules"], check=True)
