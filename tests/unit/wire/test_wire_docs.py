"""docs/wire.md and docs/how-to/batching.md say what the code says."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

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


def test_every_reason_is_in_the_list_with_its_status():
    listed = re.findall(
        r"^- `([a-z_]+)` \((\d+)\): ",
        (DOCS / "wire.md").read_text().partition("\n## Errors\n")[2],
        re.MULTILINE,
    )
    assert {name: int(status) for name, status in listed} == {
        reason.value: reason.status for reason in Reason
    }


def test_every_knob_is_in_the_table_and_none_besides():
    table = rows((DOCS / "how-to/batching.md").read_text(), "| knob |")
    fields = {field.encode_name.removesuffix("Ms") for field in msgspec.structs.fields(Batching)}
    assert {row[0].strip("`") for row in table} == fields


def members(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """A document's members with their defaults and bounds; of objects, their own members."""
    for field in msgspec.structs.fields(kind):
        text = str(field.type)
        path = prefix + field.encode_name
        nested = next((each for each in NESTED if each.__name__ in text), None)
        if nested is not None:
            yield from members(nested, path + ("[]." if "tuple" in text else "."))
        else:
            details = ", ".join(_details(field, text))
            yield f"`{path}` ({details})" if details else f"`{path}`"


def _details(field: Any, text: str) -> Iterator[str]:
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        yield "required"
    elif field.default not in (None, (), "", msgspec.NODEFAULT):
        yield f"default {msgspec.json.encode(field.default).decode()}"
    least, most = (re.search(rf"\b{bound}=(\d+)", text) for bound in ("ge", "le"))
    if least and most:
        yield f"{least[1]} to {most[1]}"
    elif least:
        yield f"from {least[1]}"


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


def test_every_member_of_the_settings_is_documented_and_none_besides(request: pytest.FixtureRequest):
    path = DOCS / "wire.md"
    text = path.read_text()
    sidecar = {row[0].strip("`") for row in rows(text, "| member | default")}
    assert sidecar == {field.encode_name for field in msgspec.structs.fields(Settings)}
    before, begin, rest = text.partition("--update-golden` -->\n")
    shown, end, after = rest.partition("<!-- /members -->")
    listed = ", ".join(members(router_settings.Endpoint)) + "."
    wanted = "\n".join(textwrap.wrap(listed, 120, break_long_words=False, break_on_hyphens=False)) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(before + begin + wanted + end + after)
        shown = wanted
    assert shown == wanted


def test_the_example_of_a_settings_document_holds_the_defaults():
    text = (DOCS / "wire.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    decoded = msgspec.json.decode(block)
    expected = msgspec.json.decode(msgspec.json.encode(Batching()))
    assert decoded["batching"] == expected
