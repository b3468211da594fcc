"""docs/wire.md names every flag of the sidecar, docs/reference/sidecar.md every metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock_sidecar import config
from penstock_sidecar.metrics import Metrics
from penstock_wire import headers
from tests.unit.sidecar.test_sidecar_metrics import Busy

DOCS = Path(__file__).parents[3] / "docs"


def test_every_flag_is_documented(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        config.parse(["--help"])
    flags = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    text = (DOCS / "wire.md").read_text()
    documented = set(re.findall(r"^- `(--[a-z-]+)`", text, re.MULTILINE))
    assert documented == flags


def test_every_metric_is_documented():
    metrics = Metrics()
    metrics.show(Busy())
    text = (DOCS / "reference/sidecar.md").read_text()
    names = [family.name.removeprefix("penstock_sidecar_") for family in metrics.collect()]
    assert len(names) == 34
    assert [name for name in names if f"`{name}" not in text and f", `{name}" not in text] == []


def test_the_fields_of_the_key_are_documented():
    sidecar = (DOCS / "reference/sidecar.md").read_text()
    assert all(f"`{name.decode()}`" in sidecar for name in headers.KEY_FIELDS)
