"""The manifests of README and docs/: the API server takes each; three recipes and the examples run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import images
from penstock.export import find_application, resources
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import MODEL_IMAGE, Namespace
from tests.support.pages import tutorial
from tests.support.pages.example_cases import AROUND_A_BATCH, CASES, COMPOSITION, EXAMPLES
from tests.support.pages.page import DOCS, ROOT, Page

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NOT_HERE = frozenset({"keda.sh/v1alpha1", "gateway.networking.k8s.io/v1"})
"""APIs of other projects, which this cluster has not: tests/scalers runs the first one's recipe."""
LANGUAGE, WEIGHTS = "localhost/language:1", "localhost/digits-weights:7"
ONES_OWN = "localhost/penstock-examples/small:1"
MODEL = """
import json

class Digits:
    def __init__(self, path):
        with open(path) as file:
            self.factor = json.load(file)["factor"]

    def predict(self, number):
        return self.factor * number
"""


def test_the_apiserver_takes_every_manifest(namespace: Namespace) -> None:
    """A server-side dry run, which asks the schemas, the CEL rules and admission."""
    refused = {}
    for path in PAGES:
        documents = [each for each in Page.of(path).documents() if each["apiVersion"] not in NOT_HERE]
        if documents:
            text = yaml.safe_dump_all(documents)
            try:
                namespace.kubectl("apply", "--dry-run=server", "-f", "-", input=text)
            except AssertionError as error:
                refused[str(path.relative_to(ROOT))] = str(error)
    assert refused == {}


def build(namespace: Namespace, folder: Path, tag: str) -> None:
    """Build an image on top of python-model from a folder's Dockerfile, and load it."""
    base = {"BASE": images.image_name("python-model")}
    images.build(dockerfile=folder / "Dockerfile", tag=tag, build_args=base)
    namespace.cluster.load(tag)


def test_the_sidecar_runs_in_a_deployment_of_ones_own(namespace: Namespace, tmp_path: Path) -> None:
    """Both pods become ready under restricted Pod Security, and the Service answers through the sidecars."""
    tutorial.write_files(tmp_path)
    build(namespace, tmp_path / "language", LANGUAGE)
    text = Page.of(DOCS / "how-to/own-deployment.md").recipe("own-deployment")
    for theirs, here in (
        ("registry.example/language:1", LANGUAGE),
        ("registry.example/penstock/sidecar:0.1.0", images.image_name("sidecar")),
    ):
        assert text.count(theirs) == 1
        text = text.replace(theirs, here)
    namespace.apply(*yaml.safe_load_all(text))
    wait_for(
        "both pods to be ready",
        lambda: (namespace.get("deployment", "language") or {})["status"].get("readyReplicas") == 2,
    )
    status, fields, answer = namespace.curl(
        namespace.url("language"), body='{"instances": ["le chat est la"]}'
    )
    assert (status, json.loads(answer)) == (200, {"predictions": ["fr"]})
    assert "batch" in fields["server-timing"]


def with_code(backend: dict[str, Any]) -> dict[str, Any]:
    """A guide's ModelBackend with our image, and a model whose code comes from the ConfigMap `code`."""
    python = backend["spec"]["model"]["python"]
    python |= {"image": MODEL_IMAGE, "env": [{"name": "PYTHONPATH", "value": "/code"}]}
    python["volumeMounts"].append({"name": "code", "mountPath": "/code"})
    backend["spec"]["podTemplate"]["volumes"].append({"name": "code", "configMap": {"name": "code"}})
    return backend


def test_weights_come_from_an_init_container_and_from_an_image_volume(
    namespace: Namespace, tmp_path: Path
) -> None:
    """Both backends load the file that the image holds; `kubectl rollout restart` fetches it anew."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/weights.json").write_text('{"factor": 3}')
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY weights /weights\n")
    build(namespace, tmp_path, WEIGHTS)
    page = Page.of(DOCS / "how-to/weights.md")
    recipes = [page.recipe(name) for name in ("init-container", "image-volume")]
    backends = [
        with_code(yaml.safe_load(text.replace("registry.example/digits-weights:7", WEIGHTS)))
        for text in recipes
    ]
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "code"},
        "data": {"model.py": MODEL},
    }
    namespace.apply(code, *backends)
    for backend in backends:
        name = backend["metadata"]["name"]
        namespace.wait_ready("modelbackend", name)
        _, _, answer = namespace.curl(namespace.url(f"{name}-backend"), body='{"instances": [14]}')
        assert json.loads(answer) == {"predictions": [42]}
    before = {pod["metadata"]["name"] for pod in namespace.pods("digits-fetched")}
    for verb in ("restart", "status"):
        namespace.kubectl("rollout", verb, "deployment/digits-fetched-backend")
    namespace.wait_ready("modelbackend", "digits-fetched")
    wait_for(
        "the pods from before to go",
        lambda: not before & {pod["metadata"]["name"] for pod in namespace.pods("digits-fetched")},
    )


def _small(resource: dict[str, Any]) -> dict[str, Any]:
    """A resource whose sidecar asks for little: two cores have to do for all the examples."""
    if resource["kind"] == "ModelBackend":
        few = {"requests": {"cpu": "10m", "memory": "64Mi"}}
        return resource | {"spec": {**resource["spec"], "sidecar": {"resources": few}}}
    return resource


def test_the_examples_answer_as_on_a_laptop(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of composition by what `penstock export` prints; a stream of many; a batch in the process."""
    modules = [*COMPOSITION.glob("*.py"), EXAMPLES / "streaming/writer.py"]
    for path in modules:
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "greetings.py").write_text((EXAMPLES / "batching/greeter.py").read_text())
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY *.py /code/\nENV PYTHONPATH=/code\n")
    build(namespace, tmp_path, ONES_OWN)
    monkeypatch.syspath_prepend(COMPOSITION)
    roots = {}
    for name in sorted({name for name, _, _ in CASES}):
        application = find_application(f"{name}:app")
        roots[name] = application.root.name
        namespace.apply(*map(_small, resources(application, image=ONES_OWN)))
    alone: dict[str, Any] = {
        "writer": {"model": {"python": {"image": ONES_OWN, "target": "writer:Writer"}}},
        "greetings": {
            "model": {"python": {"image": ONES_OWN, "target": "greetings:Greeter"}},
            "batching": AROUND_A_BATCH,
            "userConfig": {"max_batch_size": 16},
        },
    }
    for name, spec in alone.items():
        for kind, fields in ("ModelBackend", spec), ("ModelEndpoint", {"backend": name}):
            each = {"apiVersion": "penstock.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
            namespace.apply(_small({**each, "spec": fields}))
    for each in namespace.list("modelbackends"):
        namespace.wait_ready("modelbackend", each["metadata"]["name"])

    def asked(name: str, item: Any, *headers: str) -> str:
        body = json.dumps({"instances": [item]})
        status, _, answer = namespace.curl(namespace.url(name, "/"), body=body, headers=headers)
        assert status == 200, answer
        return answer

    for name, item, answer in CASES:
        assert json.loads(asked(roots[name], item)) == {"predictions": [answer]}
    pieces = asked(roots["stream"], 4, "accept: text/event-stream")
    assert pieces == "".join(f"data: {piece}\n\n" for piece in CASES[-1][2])
    assert asked("writer", "a penstock", "accept: application/x-ndjson").startswith('"is"\n"the"\n')
    [greeted] = json.loads(asked("greetings", {"name": "Dora"}))["predictions"]
    assert greeted["greeting"] == "Hello Dora!"
