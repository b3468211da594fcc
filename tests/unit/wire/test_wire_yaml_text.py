"""YAML that users write: keys that stand twice and aliases without bound are refused by every reader."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from penstock_operator.dry_run import read_file
from penstock_operator.errors import ConfigError
from penstock_sidecar.model import warmup
from penstock_wire import yaml_text
from penstock_wire.control import settings
from penstock_wire.errors import DocumentError


def bomb(levels: int, form: str) -> str:
    """Each level has nine times what the level before has."""
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {form.format(aliases)}")
    return "\n".join(lines)


BOMBS = [bomb(9, "[{}]"), bomb(9, "{{<<: [{}]}}"), bomb(400, "[{}]")]
REFUSED = [
    *((text, "expected aliases that add at most 100000 values") for text in BOMBS),
    ("a: &a [*a]", "line 1: expected a value that ends, found its own alias in it"),
    ("a: 1\nb: {c: 1,\n  c: 2}", "line 3: expected each key once, found 'c' again, which is on line 2"),
    ("1: a\n'1': b", "found '1' again"),
    ("- x: &x {a: 1}\n- {<<: *x, <<: *x}", "found '<<' again"),
    ("a: 2001-99-99", "month must be in 1..12"),
    ("a: [", "expected the node content"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=range(len(REFUSED)))
def test_every_reader_refuses_it(tmp_path: Path, text: str, words: str) -> None:
    """At once; `tests/process/sdk/test_sdk_client.py` has the reader of the client."""
    with pytest.raises(yaml.YAMLError, match=words):
        yaml_text.read(text)
    with pytest.raises(DocumentError, match=words):
        settings.decode(text.encode(), text=True)
    with pytest.raises(DocumentError, match=words):
        warmup.decode(text.encode())
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_file(str(tmp_path / "a.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: &a {b: 1}\nc: {<<: *a, b: 2}\nd: [*a, *a]",
        "a: 1\n---\na: 2",
        pytest.param("[" + ", ".join("0" for _ in range(120_000)) + "]", marks=pytest.mark.long),
    ],
    ids=["empty", "aliases", "two", "long"],
)
def test_what_is_well_is_read_as_pyyaml_reads_it(text: str) -> None:
    assert yaml_text.read_all(text) == list(yaml.safe_load_all(text))


def test_one_document_is_one() -> None:
    assert yaml_text.read("") is None
    with pytest.raises(yaml.YAMLError, match="expected one document, found 2"):
        yaml_text.read("a: 1\n---\na: 2")
