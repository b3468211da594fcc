"""docs/agents.md runs as it stands there, in a namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from devcluster import programs
from tests.support.cluster.k8s import ROOT, Namespace
from tests.support.pages.page import Page, Shell


def test_the_page_for_coding_agents(namespace: Namespace, tmp_path: Path) -> None:
    """A class is exported, validated, applied, patched, and explained, by clients on this machine."""
    page = Page.of(ROOT / "docs/agents.md")
    for name, text in page.files().items():
        (tmp_path / name).write_text(text)
    kubectl = programs.program("kubernetes", "kubectl")
    kubeconfig = shutil.copy(namespace.cluster.host_kubeconfig, tmp_path / "kubeconfig")
    context = ("config", "set-context", "--current", f"--namespace={namespace.name}")
    subprocess.run([kubectl, f"--kubeconfig={kubeconfig}", *context], check=True)
    environment = {
        "PATH": os.pathsep.join(map(str, (kubectl.parent, Path(sys.executable).parent, os.environ["PATH"]))),
        "KUBECONFIG": str(kubeconfig),
        "KUBECACHEDIR": str(tmp_path / "cache"),  # it goes by addresses, which another cluster may have next
    }
    with Shell(tmp_path, {}, **environment) as shell:
        for command in page.commands():
            shell.run(command)
