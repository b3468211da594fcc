"""`penstock deploy`: code on a cluster without an image, and what happens to an edit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from devcluster.network import FIRST
from tests.support.cluster.cluster_waits import heard, wait_for
from tests.support.cluster.k8s import ROOT, Load, Namespace, assert_nothing_lost
from tests.support.processes.tiny_wheel import write_wheel

CODE = """
import os, pathlib
import tinydep
from words.values import COLLECTOR, LABEL

os.environ["COLLECTOR"] = COLLECTOR
from ledger_model import Ledger

class Words(Ledger):
    def __init__(self) -> None:
        assert tinydep.VALUE == 5
        super().__init__(label=LABEL + pathlib.Path("words/none.txt").read_text())
"""


class Deploy:
    """`penstock deploy` as its user runs it: in the folder of the code, with kubectl in PATH.

    Args:
        namespace: where to.
        folder: of the code.
        arguments: of the command.
    """

    def __init__(self, namespace: Namespace, folder: Path, *arguments: str) -> None:
        programs = folder.parent / "bin"
        programs.mkdir(exist_ok=True)
        kubectl = f'exec {sys.executable} -m devcluster --name {namespace.cluster.name} kubectl "$@"'
        (programs / "kubectl").write_text(f"#!/bin/sh\n{kubectl}\n")
        (programs / "kubectl").chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        imported_from = os.pathsep.join(map(str, [ROOT, *folder.parent.glob("wheels/*.whl")]))
        self._log = folder.parent / "deploy.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "deploy", *arguments, "--namespace", namespace.name],
                cwd=folder,
                env=os.environ | {"PATH": path, "PYTHONPATH": imported_from},
                stdout=log,
                stderr=log,
                # A shell's background jobs ignore it, and so would this one, where these tests run in one.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def wait_printed(self, words: str) -> None:
        """Wait until the command has printed these words."""

        def look() -> bool:
            heard("penstock deploy", self.printed)
            return words in self.printed

        wait_for(f"`penstock deploy` to print {words!r}", look)

    @property
    def printed(self) -> str:
        """What the command has printed."""
        return self._log.read_text()

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return self._process.wait(timeout=300)

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=60)


def test_code_is_served_without_an_image_and_an_edit_loses_nothing(
    namespace: Namespace, load: Load, tmp_path: Path
) -> None:
    """An edit takes its place under load; what cannot be imported is not sent, other code does not run.

    Its requirement comes along as a wheel, since the cluster reaches no index.
    """
    folder = tmp_path / "project"
    package = folder / "words"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "tests/support/ledger/ledger_model.py", folder)
    (package / "__init__.py").touch()
    (package / "none.txt").touch()  # data of the package, which the model finds where it is here
    (package / "model.py").write_text(CODE)
    values = package / "values.py"
    collector = f"{FIRST.address}:{load.port}"
    values.write_text(f"COLLECTOR, LABEL = {collector!r}, 'first'\n")
    (folder / "requirements.txt").write_text("tinydep>=1\n")
    write_wheel(tmp_path / "wheels")
    arguments = ["words.model:Words", "--requirements", "requirements.txt", "--wheelhouse", "../wheels"]

    watching = Deploy(namespace, folder, *arguments, "--watch")
    watching.wait_printed(f"kubectl --namespace={namespace.name} port-forward service/words")
    print(f"[deploy] {watching.printed.splitlines()[-3]}")
    url = namespace.url("words")
    before = namespace.get("modelbackend", "words")["spec"]["model"]["python"]["code"]

    stray = {"name": "words-code-stray", "labels": {"penstock.dev/code": "words"}}
    namespace.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": stray})
    namespace.patch("modelbackend", "words", {"spec": {"batching": {"maxBatchSize": 7}}})

    load.start(url, rate=200)
    values.write_text(f"COLLECTOR, LABEL = {collector!r}, 'second'\n")

    def answer() -> str:
        return namespace.curl(url, body='{"instances": [{"id": "x"}]}')[2]

    saved = time.monotonic()
    wait_for("an answer of the edit", lambda: '"second"' in answer(), every=0.1)
    print(f"[deploy] a saved edit is served after {time.monotonic() - saved:.1f} s")
    watching.wait_printed("changed: words/values.py")
    assert_nothing_lost(load.stop())
    # What the user has set stays.
    assert namespace.get("modelbackend", "words")["spec"]["batching"]["maxBatchSize"] == 7
    # Code that no ReplicaSet names goes, what a rollback needs stays.
    wait_for("the end of unused code", lambda: namespace.get("configmap", "words-code-stray") is None)
    assert namespace.get("configmap", before["configMapRef"]["name"]) is not None

    # A colleague deploys the same name, and who watches is told; then an edit that cannot be imported.
    folders = [folder, tmp_path / "other" / "project"]
    shutil.copytree(folder, folders[1])
    shutil.copytree(tmp_path / "wheels", folders[1].parent / "wheels")
    (folders[1] / "words/values.py").write_text(f"COLLECTOR, LABEL = {collector!r}, 'other'\n")
    assert Deploy(namespace, folders[1], *arguments).wait() == 0
    watching.wait_printed("another deploy came after this\nother code serves; save a change to try again")
    values.write_text("COLLECTOR = \n")
    watching.wait_printed("the version before serves on")
    assert watching.interrupt() == 0
    assert Deploy(namespace, folder, *arguments).wait() == 1  # as in a pipeline

    # Of two that deploy one name at once, one serves, and its code stays; the other one is told.
    for each, label in zip(folders, ("third", "fourth"), strict=True):
        (each / "words/values.py").write_text(f"COLLECTOR, LABEL = {collector!r}, {label!r}\n")
    before = namespace.get("modelbackend", "words")["spec"]["model"]["python"]["code"]
    both = [Deploy(namespace, each, *arguments) for each in folders]
    codes = [each.wait() for each in both]
    assert 0 in codes
    for each, exit_code in zip(both, codes, strict=True):
        assert exit_code == 0 or ": another deploy came after this" in each.printed
    serving = namespace.get("modelbackend", "words")["spec"]["model"]["python"]["code"]["configMapRef"][
        "name"
    ]
    assert namespace.get("configmap", serving) is not None
    assert '"fourth"' in answer() or '"third"' in answer()

    # Whoever may write ConfigMaps alone cannot put code into the model's pods.
    code = namespace.get("modelbackend", "words")["spec"]["model"]["python"]["code"]
    assert code["configMapRef"] != before["configMapRef"]
    changed = {"spec": {"model": {"python": {"code": {"configMapRef": before["configMapRef"]}}}}}
    namespace.patch("modelbackend", "words", changed)

    def message() -> str:
        return str(namespace.condition("modelbackend", "words", "Ready").get("message"))

    wait_for("the refusal of other code", lambda: "its ConfigMap was changed" in message())
    assert '"predictions"' in answer()
    owners = namespace.get("configmap", code["configMapRef"]["name"])["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["words"]
