"""`penstock deploy`: code on a cluster without an image, and what happens to an edit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.network import FIRST
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import ROOT, Load, Namespace, assert_nothing_lost

pytestmark = pytest.mark.together

CODE = """
import os
from words.values import COLLECTOR, LABEL

os.environ["COLLECTOR"] = COLLECTOR
from ledger_model import Ledger

class Words(Ledger):
    def __init__(self) -> None:
        super().__init__(label=LABEL)
"""


def deploy(namespace: Namespace, folder: Path, *arguments: str, code: int = 0) -> str:
    """Run the command in a folder as its user would, with kubectl in PATH; return what it printed."""
    kubectl = folder.parent / "bin" / "kubectl"
    if not kubectl.exists():
        kubectl.parent.mkdir()
        kubectl.write_text(
            f'#!/bin/sh\nexec {sys.executable} -m devcluster --name {namespace.cluster.name} kubectl "$@"\n'
        )
        kubectl.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "deploy", *arguments, "--namespace", namespace.name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_code_is_served_without_an_image_and_an_edit_loses_nothing(
    namespace: Namespace, load: Load, tmp_path: Path
) -> None:
    """An edit takes its place under load; what cannot be imported is not sent, other code does not run."""
    folder = tmp_path / "project"
    package = folder / "words"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "tests/support/ledger/ledger_model.py", folder)
    (package / "__init__.py").touch()
    (package / "model.py").write_text(CODE)
    values = package / "values.py"
    collector = f"{FIRST.address}:{load.port}"
    values.write_text(f"COLLECTOR, LABEL = {collector!r}, 'first'\n")

    printed = deploy(namespace, folder, "words.model:Words")
    assert "words serves after" in printed
    print(printed)
    url = namespace.url("words")
    before = namespace.get("modelbackend", "words")["spec"]["model"]["python"]["code"]

    load.start(url, rate=50)
    values.write_text(f"COLLECTOR, LABEL = {collector!r}, 'second'\n")
    print(deploy(namespace, folder, "words.model:Words"))
    assert_nothing_lost(load.stop())
    assert '"second"' in namespace.curl(url, body='{"instances": [{"id": "x"}]}')[2]

    values.write_text("COLLECTOR = \n")
    assert "SyntaxError" in deploy(namespace, folder, "words.model:Words", code=1)

    # Whoever may write ConfigMaps alone cannot put code into the model's pods.
    code = namespace.get("modelbackend", "words")["spec"]["model"]["python"]["code"]
    assert code["configMapRef"] != before["configMapRef"]
    changed = {"spec": {"model": {"python": {"code": {"configMapRef": before["configMapRef"]}}}}}
    namespace.patch("modelbackend", "words", changed)

    def message() -> str:
        return str(namespace.condition("modelbackend", "words", "Ready").get("message"))

    wait_for("the refusal of other code", lambda: "its ConfigMap was changed" in message())
    assert '"second"' in namespace.curl(url, body='{"instances": [{"id": "y"}]}')[2]
    owners = namespace.get("configmap", code["configMapRef"]["name"])["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["words"]
