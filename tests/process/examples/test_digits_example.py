"""The digits example: two classifiers of different quality, files that the model server loads."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import penstock
from examples.digits import demo
from penstock_operator.api import KINDS
from penstock_wire import contract
from penstock_wire.unpack import unpack

EXAMPLE = Path(__file__).parents[3] / "examples/digits"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained files, made as the image's build makes them."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run(
        [sys.executable, "-B", EXAMPLE / "train.py", folder], check=True, capture_output=True, timeout=120
    )
    return folder


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[Any, Any]]:
    """The example's own modules `model` and `digits_data`."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "dont_write_bytecode", True)
    patch.syspath_prepend(str(EXAMPLE))
    import digits_data
    import model

    yield model, digits_data
    for name in ("model", "digits_data"):
        sys.modules.pop(name, None)
    patch.undo()


def test_the_demo_says_which_clusters_could_be_used_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that make clusters, and a kubeconfig in its usual place; nothing where there is none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo.others() == []
    (tmp_path / "kind").touch(mode=0o755)
    assert demo.others()[0] == "kind: docs/how-to/local-clusters.md has the commands"
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").touch()
    assert f"make demo KUBECONFIG={tmp_path}/.kube/config PENSTOCK_IMAGES=" in demo.others()[-1]


def test_on_a_cluster_of_somebody_else_the_models_are_code(
    modules: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods train them, so that a release's images are enough."""
    monkeypatch.setenv("KUBECONFIG", "k")
    monkeypatch.setenv("PENSTOCK_IMAGES", "r/p")
    monkeypatch.delenv("PENSTOCK_TAG", raising=False)
    target = demo.Target()
    python: dict[str, Any] = {"image": "digits", "initKwargs": {"path": "/app/models/logistic.joblib"}}
    (configmap,) = target.model(python)
    assert python["image"] == target.image == f"r/p/sklearn-model:{penstock.__version__}"
    archive = base64.b64decode(configmap["binaryData"][contract.CODE_KEY])
    unpack(archive, tmp_path, digest=python["code"]["digest"])
    module, _, trained = python["target"].partition(":")
    script = (
        f"import json, sys, {module}\n"
        f"model = {module}.{trained}(**{python['initKwargs']})\n"
        "print(json.dumps(model.predict(json.load(sys.stdin))))"
    )
    images, labels = modules[1].held_out()
    answers = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        input=json.dumps(images),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    right = sum(a == b for a, b in zip(json.loads(answers.stdout), labels, strict=True))
    assert 0.75 < right / len(labels) < 0.87


def test_the_parts_are_disjoint_and_always_the_same(modules: tuple[Any, Any]) -> None:
    """No model is judged by an image that it was trained on."""
    _, data = modules
    first, second = data.parts(), data.parts()
    assert all(np.array_equal(left, other) for left, other in zip(first, second, strict=True))
    seen = {image.tobytes() for image in first[0]}
    assert not any(image.tobytes() in seen for image in first[1])
    assert (len(first[1]), len(data.held_out()[0]), len(data.held_out()[1])) == (450, 450, 450)


def test_the_held_out_part_reads_from_its_file_as_it_was_cut(
    modules: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image has it as a file: a client in the cluster does not load scikit-learn for it."""
    _, data = modules
    cut = data.held_out()
    done = subprocess.run(
        [sys.executable, "-B", EXAMPLE / "digits_data.py"], check=True, capture_output=True, timeout=120
    )
    file = tmp_path / "held_out.json"
    file.write_bytes(done.stdout)
    monkeypatch.setattr(data, "FILE", file)
    assert data.held_out() == cut


def test_both_classifiers_load_and_differ_in_quality(models: Path, modules: tuple[Any, Any]) -> None:
    """The split of the demo shows something: one is clearly better."""
    model, data = modules
    images, labels = data.held_out()
    accuracy = {}
    for name in ("forest", "logistic"):
        answers = model.Digits(str(models / f"{name}.joblib")).predict(images)
        accuracy[name] = sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels)
    assert accuracy["forest"] > 0.97
    assert 0.75 < accuracy["logistic"] < 0.87


def test_a_batch_answers_as_each_image_alone(models: Path, modules: tuple[Any, Any]) -> None:
    model, data = modules
    digits = model.Digits(str(models / "logistic.joblib"))
    images, _ = data.held_out()
    assert digits.predict(images[:50]) == [digits.predict([image])[0] for image in images[:50]]


def test_what_is_no_image_is_refused_alone(models: Path, modules: tuple[Any, Any]) -> None:
    """Its neighbours in the batch get their digit."""
    model, data = modules
    digits = model.Digits(str(models / "logistic.joblib"))
    image = data.held_out()[0][0]
    rows = np.asarray(image).reshape(8, 8).tolist()
    bad = [[1, 2], "x", None, {}, [float("nan")] * 64, [[1], [2, 3]]]
    answers = digits.predict([image, *bad, rows])
    assert answers[0] == answers[-1] == digits.predict([image])[0]
    assert all(isinstance(answer, penstock.Response) and answer.status == 422 for answer in answers[1:-1])


def test_the_resources_are_valid_and_name_what_the_image_holds(models: Path) -> None:
    documents = list(yaml.safe_load_all((EXAMPLE / "resources.yaml").read_text()))
    for document in documents:
        KINDS[document["kind"]].parse(document | {"metadata": document["metadata"] | {"namespace": "n"}})
    paths = {
        Path(document["spec"]["model"]["python"]["initKwargs"]["path"])
        for document in documents
        if document["kind"] == "ModelBackend"
    }
    assert paths == {Path("/app/models") / file.name for file in models.iterdir()}


def test_in_process_gives_the_images_and_the_models_answers(models: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-", json.dumps({"path": str(models / "logistic.joblib")})],
        input=(EXAMPLE / "in_process.py").read_text(),
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    document = json.loads(done.stdout)
    assert len(document["items"]) == len(document["predictions"]) == 450
