"""What a release stored in the API server, the releases after it read: no field goes, no bound narrows."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.api import KINDS
from penstock_operator.api.schema import Schema, structural
from penstock_operator.validation import faults

ROOT = Path(__file__).parents[3]
STORED = {path.stem: path for path in sorted(Path(__file__).with_name("stored").glob("*.jsonl"))}


def lost(stored: Any, read: Any, at: str) -> list[str]:
    """The members of a stored value that are not in what was read, by their paths."""
    if isinstance(stored, dict) and isinstance(read, dict):
        return [path for name in stored for path in lost(stored[name], read.get(name), f"{at}.{name}")]
    if isinstance(stored, list) and isinstance(read, list) and len(stored) == len(read):
        pairs = enumerate(zip(stored, read, strict=True))
        return [path for number, pair in pairs for path in lost(*pair, f"{at}[{number}]")]
    return [] if stored == read else [at]


def declared(schema: Schema, at: str) -> set[str]:
    """The paths of all fields of a schema; `[]` stands for an item, and for any name."""
    children = {f"{at}.{name}": child for name, child in schema.get("properties", {}).items()}
    children |= {f"{at}[]": schema[word] for word in ("items", "additionalProperties") if word in schema}
    return {at}.union(*(declared(child, path) for path, child in children.items()))


def used(stored: Any, schema: Schema, at: str) -> set[str]:
    """The paths of the fields that a stored value uses, as `declared` names them."""
    children: list[tuple[Any, Schema, str]] = []
    if isinstance(stored, dict):
        named, more = schema.get("properties", {}), schema.get("additionalProperties")
        children = [(value, named[name], f"{at}.{name}") for name, value in stored.items() if name in named]
        children += [(value, more, f"{at}[]") for name, value in stored.items() if more and name not in named]
    elif isinstance(stored, list) and "items" in schema:
        children = [(item, schema["items"], f"{at}[]") for item in stored]
    return {at}.union(*(used(*child) for child in children))


def test_the_objects_of_the_version_to_be_released_use_every_field() -> None:
    """Whoever adds a field adds it to one of them; once its version is released, a file stays as it is."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    documents = [json.loads(line) for line in STORED[f"v{version}"].read_text().splitlines()]
    for kind, model in KINDS.items():
        for part, schema in structural(model)["properties"].items():
            if part in ("spec", "status"):
                stored = [each[part] for each in documents if each["kind"] == kind and part in each]
                assert (
                    declared(schema, part) - set().union(*(used(each, schema, part) for each in stored))
                    == set()
                )


@pytest.mark.parametrize("release", STORED)
def test_what_a_release_stored_is_read_whole(release: str) -> None:
    """Spec and status, by the code of today."""
    documents = [json.loads(line) for line in STORED[release].read_text().splitlines()]
    assert {document["kind"] for document in documents} == set(KINDS)
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        assert faults(copy.deepcopy(document)) == [], (kind, name)
        read = KINDS[kind].parse(document).document()
        assert lost(document["spec"], read["spec"], "spec") == [], (kind, name)
        assert lost(document.get("status", {}), read.get("status"), "status") == [], (kind, name)
