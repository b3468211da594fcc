"""The first backend of docs/operations/install.md is applied as it stands there, and answers as it says."""

from __future__ import annotations

import json
import re

import yaml

from tests.support.cluster.k8s import MODEL_IMAGE, ROOT, Namespace

PAGE = (ROOT / "docs/operations/install.md").read_text()
SECTION = PAGE.split("\n## Installing\n")[1].split("\n## ")[0]
IMAGE = "registry.example/penstock/python-model:0.1.0"


def test_the_first_backend_of_the_page_answers(namespace: Namespace) -> None:
    """Except for the name of the image, which depends on the registry."""
    (block,) = [
        text for text in re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL) if "ModelBackend" in text
    ]
    assert block.count(IMAGE) == 1
    namespace.apply(*yaml.safe_load_all(block.replace(IMAGE, MODEL_IMAGE)))
    namespace.wait_ready("modelbackend", "first")
    namespace.wait_ready("modelendpoint", "first")
    asked = re.search(r"-d '(.*?)'\n(.*?)\n", SECTION)
    assert asked is not None
    status, _, answer = namespace.curl(namespace.url("first"), body=asked[1])
    assert (status, json.loads(answer)) == (200, json.loads(asked[2]))
