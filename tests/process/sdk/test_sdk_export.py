"""`penstock export`: the resources of an application, which the operator takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.export import main
from penstock_operator.api.modelbackend import ModelBackend
from penstock_operator.api.modelendpoint import ModelEndpoint
from tests.support.processes.sidecar_process import run

EXAMPLES = Path(__file__).parents[3] / "examples" / "composition"
MODULE = """
import penstock


@penstock.backend(spec={"model": {"python": {"env": [{"name": "A", "value": "b"}]}}, "replicas": 2})
class Model:
    def __init__(self, made=None): ...
    def __call__(self, x): return x

class Outer:
    pass

class DigitsForest:
    def __init__(self, path): ...

    @penstock.batched
    def predict(self, images): return images

def double(x): return x

app = Model.bind()
odd = Model.bind(object())
wrong = Model.bind
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "exported.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "exported", raising=False)
    return tmp_path


def exported(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(arguments) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


async def test_each_node_is_a_backend_and_an_endpoint() -> None:
    """As a process, in the directory of the module."""
    ended = await run(
        "penstock", "export", "ensemble:app", "--image=r/{name}:1", env={"PYTHONPATH": str(EXAMPLES)}
    )
    assert ended.code == 0, ended.err
    documents = list(yaml.safe_load_all(ended.out))
    names = ["voter", "voter-2", "voter-3", "ensemble"]
    assert [(each["kind"], each["metadata"]["name"]) for each in documents] == [
        (kind, name) for name in names for kind in ("ModelBackend", "ModelEndpoint")
    ]
    assert documents[2]["spec"] == {
        "model": {
            "python": {"image": "r/voter-2:1", "target": "ensemble:Voter", "initKwargs": {"threshold": 0.4}}
        },
        "batching": {"maxBatchSize": 16},
    }
    root = documents[-2]["spec"]
    assert root["model"]["python"]["initKwargs"] == {"voters": [{"handle": name} for name in names[:3]]}
    assert root["batching"] == {"maxBatchSize": 1, "maxConcurrentBatches": 64}
    assert documents[-1]["spec"] == {"backend": "ensemble"}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_the_operator_takes_what_is_exported(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    kinds = {"ModelBackend": ModelBackend, "ModelEndpoint": ModelEndpoint}
    for document in exported(capsys, f"{name}:app", "--image=r/i:1", "--namespace=models"):
        resource = kinds[document["kind"]].model_validate(
            {**document, "metadata": {**document["metadata"], "uid": "u", "generation": 1}}
        )
        assert resource.namespace == "models"
    sys.modules.pop(name)


def test_a_class_or_a_function_alone_is_a_backend_and_an_endpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = '--init-kwargs={"path": "/app/forest", "next": {"handle": "next"}}'
    assert main(["exported:DigitsForest", "--image=i", path]) == 1
    assert "expected arguments (path): got" in capsys.readouterr().err
    backend, endpoint = exported(
        capsys, "exported:DigitsForest", "--image=i", '--init-kwargs={"path": {"handle": "next"}}'
    )
    assert backend["metadata"] == endpoint["metadata"] == {"name": "digits-forest"}
    python = {"image": "i", "target": "exported:DigitsForest", "initKwargs": {"path": {"handle": "next"}}}
    assert backend["spec"] == {"model": {"python": python}}
    assert exported(capsys, "exported:double", "--image=i")[0]["spec"]["model"] == {
        "python": {"image": "i", "target": "exported:double"}
    }
    # As bound: with what `@penstock.backend` says.
    assert exported(capsys, "exported:Model", "--image=i") == exported(capsys, "exported:app", "--image=i")
    assert main(["exported:app", "--image=i", path]) == 1
    assert "expected no init kwargs for an application" in capsys.readouterr().err


def test_a_spec_goes_before_what_is_filled_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backend, _ = exported(capsys, "exported:app", "--image=i")
    assert backend["spec"]["replicas"] == 2
    assert backend["spec"]["model"]["python"] == {
        "image": "i",
        "target": "exported:Model",
        "env": [{"name": "A", "value": "b"}],
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exported", "expected a target such as module:Class, found 'exported'"),
        ("nowhere:app", "expected a module nowhere on the Python path, found none"),
        ("exported:nope", "expected nope in module exported, found no nope"),
        ("exported:wrong", "to be a class, a function or what .bind returned, found a partial"),
        ("exported:Outer", "expected"),
        ("exported:odd", "model: expected an argument made with a JSON form"),
    ],
)
def test_what_cannot_be_exported_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert main([name, "--image=i"]) == 1
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'; what the code imports has to be"),
        ("raise ValueError(7)", "ValueError: 7\n"),
        ("raise SystemExit(3)", "SystemExit: 3\n"),
        ("def broken(:", "SyntaxError: invalid syntax (raising.py, line 1)\n"),
    ],
)
def test_a_module_that_raises_is_shown_from_its_own_lines_on(
    folder: Path, capsys: pytest.CaptureFixture[str], code: str, words: str
) -> None:
    """Without the frames of the command and of the import, and with the error as the last line."""
    (folder / "raising.py").write_text(code)
    assert main(["raising:app", "--image=i"]) == 1
    said = capsys.readouterr().err
    assert 'raising.py", line 1' in said
    assert f"raising:app: module raising cannot be imported: {words}" in said.splitlines(keepends=True)[-1]
    assert said.count('File "') == 1


@pytest.mark.parametrize("image", ["", " ", "a b"])
def test_an_image_without_a_name(folder: Path, capsys: pytest.CaptureFixture[str], image: str) -> None:
    with pytest.raises(SystemExit):
        main(["exported:app", "--image", image])
    assert f"--image: expected the name of an image, found {image!r}" in capsys.readouterr().err
