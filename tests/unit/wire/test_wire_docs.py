"""docs/wire.md and docs/how-to/batching.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from penstock_wire.control import router_settings, traffic_rules
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.errors import Reason

DOCS = Path(__file__).parents[3] / "docs"


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of the table whose header line begins so."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(header))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_every_reason_is_in_the_table_with_its_status():
    table = rows((DOCS / "wire.md").read_text(), "| reason |")
    assert {name.strip("`"): int(status) for name, status, _ in table} == {
        reason.value: reason.status for reason in Reason
    }


def test_every_knob_is_in_the_table_and_none_besides():
    table = rows((DOCS / "how-to/batching.md").read_text(), "| knob |")
    fields = {field.encode_name.removesuffix("Ms") for field in msgspec.structs.fields(Batching)}
    assert {row[0].strip("`") for row in table} == fields


def members(kind: type[msgspec.Struct], prefix: str = "") -> set[str]:
    """The paths of a document's members; objects by their members."""
    names: set[str] = set()
    for field in msgspec.structs.fields(kind):
        text = str(field.type)
        nested = [each for each in NESTED if each.__name__ in text]
        path = prefix + field.encode_name
        for each in nested:
            names |= members(each, path + ("[]." if "tuple" in text else "."))
        if not nested:
            names.add(path)
    return names


NESTED = (
    router_settings.ColdStart,
    router_settings.Compare,
    router_settings.Cors,
    router_settings.Mirror,
    router_settings.Timeouts,
    router_settings.WeightedBackend,
    traffic_rules.AffinityCookie,
    traffic_rules.Match,
    traffic_rules.SessionAffinity,
    traffic_rules.StaticAnswer,
)


def test_every_member_of_the_settings_is_in_its_table_and_none_besides():
    text = (DOCS / "wire.md").read_text()
    sidecar = {row[0].strip("`") for row in rows(text, "| member | default")}
    assert sidecar == {field.encode_name for field in msgspec.structs.fields(Settings)}
    table = rows(text, "| member of `endpoints[]`")
    assert {row[0].strip("`") for row in table} == members(router_settings.Endpoint)
    defaults = {row[0].strip("`"): row[1] for row in table}
    for name, kind in (("", router_settings.Endpoint), ("coldStart.", router_settings.ColdStart)):
        for field in msgspec.structs.fields(kind):
            if type(field.default) is int:
                assert defaults[name + field.encode_name] == str(field.default)


def test_the_example_of_a_settings_document_holds_the_defaults():
    text = (DOCS / "wire.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    decoded = msgspec.json.decode(block)
    expected = msgspec.json.decode(msgspec.json.encode(Batching()))
    assert decoded["batching"] == expected
