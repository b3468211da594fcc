"""The generated CRDs: fresh, small, structural, described to the last field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.api import KINDS, crds

FOLDER = Path(__file__).parents[3] / "crds"
CLIENT_SIDE_APPLY_LIMIT = 200_000
ALLOWED = {
    *("additionalProperties", "anyOf", "default", "description", "enum", "format", "items", "pattern"),
    *("maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minimum"),
    *("properties", "required", "type", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys"),
    *("x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"),
}
"""Words of a structural schema that we use; `$ref`, `title`, `nullable` and the like are not among them."""

ANY_JSON = (".spec.userConfig", ".spec.warmup.requests[].body")
"""Fields that take any JSON, a number or text included: structural without a type."""

FREE_TEXT = {
    *("annotations[]", "args[]", "body", "command[]", "headers[]", "include[]", "labels[]", "mountPath"),
    *("name", "nodeSelector[]", "prefix", "priorityClassName", "query", "runtimeClassName"),
    *("schedulerName", "serviceAccountName", "subPath", "value"),
}
"""Texts of a spec that may be anything of their length, or that Kubernetes checks in the pod."""


def schema(kind: str) -> dict[str, Any]:
    version = crds.definition(kind)["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a schema with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in node:
            yield from nodes(node[word], f"{path}[]")


def test_the_files_are_fresh() -> None:
    """crds/ is what `make crds` would write now."""
    assert crds.stale(FOLDER) == []


def test_a_stale_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` writes nothing, names each file that is changed, missing or too many, and fails."""
    assert crds.main(["--out", str(tmp_path)]) == 0
    assert crds.main(["--out", str(tmp_path), "--check"]) == 0
    (tmp_path / "modelbackends.yaml").write_text("changed: true\n")
    (tmp_path / "batchpolicies.yaml").unlink()
    (tmp_path / "others.yaml").write_text("of: whom\n")
    assert crds.main(["--out", str(tmp_path), "--check"]) == 1
    errors = capsys.readouterr().err
    assert [name in errors for name in ("modelbackends", "batchpolicies", "others", "trafficsplits")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert crds.main(["--out", str(tmp_path)]) == 0
    assert crds.stale(tmp_path) == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_size(kind: str) -> None:
    """Client-side apply keeps a copy in an annotation, which has a limit."""
    text = crds.rendered()[f"{KINDS[kind].plural}.yaml"]
    assert len(text.encode()) < CLIENT_SIDE_APPLY_LIMIT


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_is_described(kind: str) -> None:
    """`kubectl explain` has something to say of every field."""
    bare = [
        path
        for path, node in nodes(schema(kind))
        if "description" not in node and not path.startswith(".metadata") and not path.endswith("[]")
    ]
    assert bare == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_structural(kind: str) -> None:
    """Only words that a structural schema may have; a type everywhere but on int-or-string and any JSON."""
    for path, node in nodes(schema(kind)):
        assert node.keys() <= ALLOWED, path
        assert ("type" in node) != (node.get("x-kubernetes-int-or-string", False) or path in ANY_JSON), path
        assert path not in ANY_JSON or node["x-kubernetes-preserve-unknown-fields"], path


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_a_user_writes_is_bounded(kind: str) -> None:
    """Lists, maps and strings of a spec have a bound, so that rules on them have one too."""
    for path, node in nodes(schema(kind)["properties"]["spec"]):
        bounds = {"string": ("maxLength", "enum"), "array": ("maxItems",)}.get(node.get("type", ""), ())
        assert not bounds or any(bound in node for bound in bounds), path


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_text_is_refused_by_a_bare_regular_expression(kind: str) -> None:
    """Each text that has a form has a rule, whose message has an example; a pattern only beside one."""
    for path, node in nodes(schema(kind)["properties"]["spec"]):
        rules = node.get("x-kubernetes-validations", [])
        if "pattern" in node or any(".matches(r" in rule["rule"] for rule in rules):
            assert any("such as" in rule["message"] for rule in rules), path
        elif node.get("type") == "string" and "enum" not in node and not rules:
            assert path.rsplit(".", 1)[-1] in FREE_TEXT, path


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_constant_defaults_are_in_the_schema(kind: str) -> None:
    """A field with a constant default in the model has the same one in the schema; status but one of its own.

    A status that nobody has written yet has observed no generation: kstatus would take an object without any
    status for current.
    """
    fields = schema(kind)
    status = fields["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    assert [path for path, node in nodes(status) if "default" in node] == [""]
    spec = KINDS[kind].model_fields["spec"].annotation
    assert spec is not None
    for name, field in spec.model_fields.items():
        default = field.default
        if (
            not field.is_required()
            and default is not None
            and default != ()
            and isinstance(default, str | int)
        ):
            alias = field.alias or name
            assert fields["properties"]["spec"]["properties"][alias]["default"] == default


def test_names_scale_and_columns() -> None:
    """Short names, the category, the scale subresource, and a column for whether it is well."""
    short = {kind: crds.definition(kind)["spec"]["names"]["shortNames"] for kind in KINDS}
    assert short == {
        "BatchPolicy": ["bpol"],
        "ModelBackend": ["mbe"],
        "ModelEndpoint": ["mep"],
        "TrafficSplit": ["tsp"],
    }
    for kind in KINDS:
        spec = crds.definition(kind)["spec"]
        assert spec["names"]["categories"] == ["penstock"]
        version = spec["versions"][0]
        assert "status" in version["subresources"]
        assert ("scale" in version["subresources"]) == (kind == "ModelBackend")
        columns = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
        assert "Ready" in columns
        if kind == "TrafficSplit":
            assert columns["Step"] == ".status.stepOf", "people count from 1"


def test_lists_of_named_things_are_maps() -> None:
    """Server-side apply merges them by name, and the apiserver refuses a name twice."""
    keys = {
        f"{kind}{path}": node["x-kubernetes-list-map-keys"]
        for kind in KINDS
        for path, node in nodes(schema(kind))
        if "x-kubernetes-list-map-keys" in node
    }
    assert keys["TrafficSplit.spec.backends"] == ["name"]
    assert keys["ModelBackend.spec.model.container.env"] == ["name"]
    assert {keys[f"{kind}.status.conditions"][0] for kind in KINDS} == {"type"}
