"""The release example: its resources, the faults of its versions, and what its clients print."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import yaml
from sklearn.dummy import DummyClassifier

from penstock_operator.api import KINDS

EXAMPLES = Path(__file__).parents[3] / "examples"
EXAMPLE = EXAMPLES / "release"
IMAGE = [0] * 64


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[Any, Any]]:
    """The example's own modules `versions` and `load`, beside those of the digits image."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "dont_write_bytecode", True)
    patch.syspath_prepend(str(EXAMPLES / "digits"))
    patch.syspath_prepend(str(EXAMPLE))
    import load
    import versions

    yield versions, load
    for name in ("versions", "load", "model", "digits_data"):
        sys.modules.pop(name, None)
    patch.undo()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A classifier that always says 7."""
    classifier = DummyClassifier(strategy="constant", constant=7).fit(np.zeros((1, 64)), [7])
    joblib.dump(classifier, tmp_path / "seven.joblib")
    return str(tmp_path / "seven.joblib")


def documents(name: str) -> dict[str, Any]:
    """The resources of a file by kind, each valid."""
    weights = {}
    for document in yaml.safe_load_all((EXAMPLE / name).read_text()):
        if document["kind"] in KINDS:
            KINDS[document["kind"]].parse(
                document | {"metadata": document["metadata"] | {"namespace": "n", "uid": "u"}}
            )
        weights[document["kind"]] = document
    return weights


def test_a_version_differs_from_another_by_its_faults_alone(modules: tuple[Any, Any], path: str) -> None:
    """So that whatever the release finds is what was put there."""
    bad, good = documents("bad.yaml"), documents("good.yaml")
    assert bad["ModelBackend"]["spec"]["model"]["python"]["initKwargs"].pop("fails") == 0.05
    specs = [files["ModelBackend"]["spec"] for files in (documents("start.yaml"), bad, good)]
    assert specs[0] == specs[1] == specs[2]
    for files, candidate in ((bad, "digits-2"), (good, "digits-3")):
        strategy = files["TrafficSplit"]["spec"]["strategy"]
        assert strategy.pop("candidate") == files["ModelBackend"]["metadata"]["name"] == candidate
    assert bad["TrafficSplit"]["spec"]["strategy"] == good["TrafficSplit"]["spec"]["strategy"]

    versions, _ = modules
    assert versions.Digits(path).predict([IMAGE] * 9) == [7] * 9
    failed = sum(answer != 7 for answer in versions.Digits(path, fails=0.05).predict([IMAGE] * 4000))
    assert 100 < failed < 320  # 200 are to be expected, some 14 more or less


def test_what_is_mounted_is_what_the_resources_run() -> None:
    kustomization = yaml.safe_load((EXAMPLE / "kustomization.yaml").read_text())
    (generated,) = kustomization["configMapGenerator"]
    for name in ("start.yaml", "bad.yaml", "good.yaml"):
        template = documents(name)["ModelBackend"]["spec"]["podTemplate"]
        assert template["volumes"][0]["configMap"] == {"name": generated["name"]}
    assert all((EXAMPLE / file).is_file() for file in [*generated["files"], *kustomization["resources"]])


def test_the_clients_line_says_who_answered_and_what_failed(modules: tuple[Any, Any]) -> None:
    _, load = modules
    answered = collections.Counter({"digits-1": 90, "digits-2": 10})
    said = load.line(answered, collections.Counter({"500 by digits-2": 1}), [0.01] * 100)
    assert said.endswith("  20/s: digits-1 90.0%, digits-2 10.0%; p99 10 ms; failed: 1x 500 by digits-2")
    assert load.line(collections.Counter(), collections.Counter(), []).endswith(
        "nobody; p99 0 ms; failed: none"
    )
