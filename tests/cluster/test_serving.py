"""The main path: apply → Ready → the model's own answers, through the endpoint's Service."""

from __future__ import annotations

import json
import os
from typing import Any

import yaml

from tests.support.cluster.k8s import ROOT, Namespace


def test_every_digit_is_answered_as_the_model_answers_in_process(namespace: Namespace) -> None:
    """Each held-out digit gets, id by id, what the same model answers without Penstock around it."""
    documents = list(yaml.safe_load_all((ROOT / "examples/digits/resources.yaml").read_text()))
    for document in documents:
        document["metadata"].pop("namespace", None)
    namespace.apply(*documents)
    backends = [document["metadata"]["name"] for document in documents if document["kind"] == "ModelBackend"]
    for name in backends:
        namespace.wait_ready("modelbackend", name, seconds=240)
    namespace.wait_ready("modelendpoint", "digits")

    code = (ROOT / "examples/digits/in_process.py").read_text()
    expected: dict[str, list[Any]] = {}
    items: list[Any] = []
    for name in backends:
        pod = namespace.pods(name)[0]["metadata"]["name"]
        kwargs = next(document for document in documents if document["metadata"]["name"] == name)["spec"][
            "model"
        ]["python"]
        output = namespace.kubectl(
            *(
                "exec",
                "-i",
                pod,
                "-c",
                "model",
                "--",
                "python",
                "-",
                json.dumps(kwargs.get("initKwargs", {})),
            ),
            input=code,
        )
        held_out = json.loads(output)
        items, expected[name] = held_out["items"], held_out["predictions"]

    answers = namespace.ask(namespace.url("digits"), items)
    assert len(answers) == len(items) > 300
    for index, (status, backend, body) in enumerate(answers):
        assert status == 200, body
        assert body["predictions"] == [expected[backend][index]], f"digit {index} from {backend}"
    assert {backend for _, backend, _ in answers} == set(backends)

    # What answered them was compiled, unless the images were built without.
    wanted = "python" if os.environ.get("PENSTOCK_COMPILE") == "no" else "compiled"
    router_pods = namespace.list("pods", "app.kubernetes.io/name=penstock-router")
    for pods, container in ((namespace.pods(backends[0]), "penstock-sidecar"), (router_pods, "router")):
        for pod in pods:
            lines = namespace.log(pod["metadata"]["name"], container)
            assert [line["build"] for line in lines if line["message"] == "ready"] == [wanted]
