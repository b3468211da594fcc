"""docs/wire.md and docs/batching.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from penstock_wire.errors import STATUS, Reason
from penstock_wire.settings import Batching

DOCS = Path(__file__).parents[3] / "docs"


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of the table whose header line begins so."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(header))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_every_reason_is_in_the_table_with_its_status():
    table = rows((DOCS / "wire.md").read_text(), "| reason |")
    assert {name.strip("`"): int(status) for name, status, _ in table} == {
        reason.value: STATUS[reason] for reason in Reason
    }


def test_every_knob_is_in_the_table_and_none_besides():
    table = rows((DOCS / "batching.md").read_text(), "| knob |")
    fields = {field.encode_name.removesuffix("Ms") for field in msgspec.structs.fields(Batching)}
    assert {row[0].strip("`") for row in table} == fields


def test_the_example_of_a_settings_document_holds_the_defaults():
    text = (DOCS / "wire.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    found = msgspec.json.decode(block)
    expected = msgspec.json.decode(msgspec.json.encode(Batching()))
    assert found["batching"] == expected
