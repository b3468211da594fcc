"""The example of models without an image: what `train.py` writes is what the resources serve."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sklearn.datasets import load_iris

from penstock.formats import onnx, sklearn
from penstock_operator.api import KINDS

EXAMPLE = Path(__file__).parents[3] / "examples/no_image"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files."""
    folder = tmp_path_factory.mktemp("files")
    subprocess.run([sys.executable, "-B", EXAMPLE / "train.py", folder], check=True, timeout=120)
    return folder


@pytest.mark.parametrize(("name", "model"), [("sklearn", sklearn.Model), ("onnx", onnx.Model)])
def test_the_resources_serve_the_files(name: str, model: Any, files: Path) -> None:
    """By the format, and with the arguments, that they name."""
    backend, endpoint = yaml.safe_load_all((EXAMPLE / f"{name}.yaml").read_text())
    for document in (backend, endpoint):
        KINDS[document["kind"]].parse(document | {"metadata": document["metadata"] | {"namespace": "n"}})
    assert endpoint["spec"]["backend"] == backend["metadata"]["name"]
    given = backend["spec"]["model"]
    assert given["format"]["name"] == name
    file = files / given["artifact"]["uri"].rpartition("/")[2]
    served = model(path=str(file), **given["format"].get("initKwargs", {}))
    rows, species = load_iris(return_X_y=True)
    answers = served.predict(rows.tolist())
    right = sum(answer == wanted for answer, wanted in zip(answers, species.tolist(), strict=True))
    assert right / len(rows) > 0.95


def test_the_class_says_what_a_message_is_about() -> None:
    topics = runpy.run_path(str(EXAMPLE / "topics.py"))["Topics"]()
    assert topics.predict(["the parcel has not arrived", "reset the password"]) == ["delivery", "account"]
