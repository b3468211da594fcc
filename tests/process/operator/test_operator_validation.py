"""`penstock validate` takes and refuses what the API server does, and core/v1's parts as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.operator.test_operator_validation import FILE, merged


@pytest.mark.parametrize(
    "command", [["-m", "penstock", "validate"], ["-m", "penstock_operator", "--dry-run", "--file"]]
)
def test_the_commands_say_each_fault_in_a_line(tmp_path: Path, command: list[str]) -> None:
    """No traceback for a misspelt `python`; 0 and none for what is well."""
    bad, good = tmp_path / "bad.yaml", tmp_path / "good.yaml"
    model = {"pyton": {"target": "m:C", "image": "i:1"}}
    bad.write_text(
        yaml.safe_dump(
            merged(FILE["bases"]["ModelBackend"], {"spec": {"model": model | {"container": None}}})
        )
    )
    good.write_text(yaml.safe_dump_all(FILE["bases"].values()))
    for file, code in ((bad, 1), (good, 0)):
        done = subprocess.run(
            [sys.executable, *command, str(file)], capture_output=True, text=True, timeout=60
        )
        text = done.stdout + done.stderr
        assert done.returncode == code, text
        assert ("spec.model.pyton: unknown field; did you mean python?" in text) == bool(code)
        assert "Traceback" not in text
