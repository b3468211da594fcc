"""`penstock validate` takes and refuses what the API server does, and core/v1's parts as well."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_operator.validation import faults, run

ROOT = Path(__file__).parents[3]
FILE = yaml.safe_load((ROOT / "tests/cluster/crd_cases.yaml").read_text())

OBJECTIVE = "spec.batching.latencyObjective"
CLAIM = "spec.podTemplate.volumes[0].persistentVolumeClaim"


def merged(base: Any, over: Any) -> Any:
    """RFC 7386, as the cluster test merges."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return copy.deepcopy(over)
    kept = {name: merged(base.get(name), value) for name, value in over.items() if value is not None}
    return {name: copy.deepcopy(value) for name, value in base.items() if name not in over} | kept


@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["id"])
def test_the_verdict_is_the_api_servers(case: dict[str, Any]) -> None:
    """Of each case that the cluster tests put to a real one; with the place, and a rule's own words."""
    found = faults(merged(FILE["bases"][case["kind"]], case.get("with", {})))
    assert bool(found) == ("says" in case), found
    for text in case.get("says", ()):
        if text.startswith(("expected", "metadata")):
            assert text.replace('"', "") in "; ".join(found).replace('"', "")


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (
            {"podTemplate": {"volumes": [{"name": "w", "persistentVolumeClaim": {"claimname": "c"}}]}},
            [
                f"{CLAIM}.claimname: unknown field; did you mean claimName?",
                f"{CLAIM}.claimName: expected a value, found none",
            ],
        ),
        (
            {"podTemplate": {"tolerations": [{"key": "gpu", "tolerationSeconds": "5"}]}},
            ["spec.podTemplate.tolerations[0].tolerationSeconds: expected type integer, found '5'"],
        ),
        (
            {"podTemplate": {"volumes": [{"name": "t", "emptyDir": {"sizeLimit": 5}}]}},
            [],
        ),
        (
            {"model": {"container": {"livenessProbe": {"httpget": {"port": 8080}}}}},
            ["spec.model.container.livenessProbe.httpget: unknown field; did you mean httpGet?"],
        ),
        (
            {
                "model": {
                    "container": None,
                    "python": {"target": "m:C", "image": "i:1", "startupProbe": {"httpGet": {"prt": 1}}},
                }
            },
            [
                "spec.model.python.startupProbe.httpGet.prt: unknown field; did you mean port?",
                "spec.model.python.startupProbe.httpGet.port: expected a value, found none",
            ],
        ),
        (
            {"batching": {"latencyObjective": 500}},
            [
                f'{OBJECTIVE}: expected a text with a unit, such as "500ms" or "500s", found 500',
            ],
        ),
        ({"model": {"pyton": {}}}, ["spec.model.pyton: unknown field; did you mean python?"]),
    ],
)
def test_words(spec: dict[str, Any], wanted: list[str]) -> None:
    """What kubelet could not use is told here, and not in a pod that never starts."""
    base = FILE["bases"]["ModelBackend"]
    assert faults(merged(base, {"spec": spec})) == wanted


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ({"apiVersion": "penstock.dev/v1alpha1", "kind": "ModelBackends"}, 2),
        ({"apiVersion": "penstock.dev/v1", "kind": "ModelBackend"}, 2),
        ({"kind": "ModelBackend"}, 2),
        ({"apiVersion": "v1", "kind": "ConfigMap"}, 0),
        ({}, 0),
    ],
)
def test_a_misspelt_kind_or_version_is_not_passed_over(
    tmp_path: Path, head: dict[str, str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is of another group is."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(head | {"metadata": {"name": "a"}}))
    assert run([str(tmp_path / "a.yaml")]) == code
    found = f"found {head.get('kind')} of {head.get('apiVersion')}"
    assert (found in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(
    ("name", "words"),
    [("3", "metadata.name of text, found 3, a value of type int"), ("null", "text, found none")],
)
def test_a_name_that_is_not_text(
    tmp_path: Path, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "apiVersion: penstock.dev/v1alpha1\nkind: ModelBackend\nmetadata: "
    (tmp_path / "a.yaml").write_text(f"{head}{{name: {name}}}\n")
    assert run([str(tmp_path / "a.yaml")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "spec: null\nspec: {}\n",
            2,
            "5: expected each key once, found 'spec' again, which is on line 4",
        ),
        ("spec: {batching: {a: 1, a: 2}}\n", 2, "line 4: expected each key once, found 'a' again"),
        ("a: &a 1\nb: 2001-99-99\n", 2, "month must be in 1..12"),
        ("spec: null\n", 1, "1 resource of Penstock, 1 fault\n"),
        ("spec: {model: 1, x: 2}\n", 1, "1 resource of Penstock, 2 faults\n"),
    ],
)
def test_what_a_file_says_twice_or_yaml_cannot_make(
    tmp_path: Path, text: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "apiVersion: penstock.dev/v1alpha1\nkind: ModelBackend\nmetadata: {name: b}\n"
    (tmp_path / "a.yaml").write_text(head + text)
    assert run([str(tmp_path / "a.yaml")]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("null", "ModelBackend/b: spec: expected a value, found none"),
        ("[" * 3000 + "]" * 3000, "maximum recursion depth exceeded"),
    ],
    ids=["null", "deep"],
)
def test_a_spec_of_null_or_great_depth_is_told_in_a_line(
    tmp_path: Path, spec: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "apiVersion: penstock.dev/v1alpha1\nkind: ModelBackend\nmetadata: {name: b}\n"
    (tmp_path / "a.yaml").write_text(f"{head}spec: {spec}\n")
    assert run([str(tmp_path / "a.yaml")]) > 0
    assert words in "".join(capsys.readouterr())
