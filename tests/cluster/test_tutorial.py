"""The half of docs/tutorial.md that needs a cluster runs as it stands there, on the cluster of the tests."""

from __future__ import annotations

from pathlib import Path

from devcluster.cluster import Cluster
from tests.support.cluster.k8s import ROOT
from tests.support.pages import tutorial
from tests.support.pages.page import Shell
from tests.support.processes.ports import free_port


def test_the_tutorial_on_a_cluster(penstock: Cluster, tmp_path: Path) -> None:
    """Each command gives the output of the page; the 64 callers share batches, in the end of 4."""
    for path in ROOT.iterdir():
        (tmp_path / path.name).symlink_to(path)
    tutorial.write_files(tmp_path)
    ports = {port: str(free_port()) for port in ("8000", "8001")}
    here = {**ports, "-m devcluster": f"-m devcluster --name {penstock.name}"}
    limits = iter((32, 4))
    try:
        with Shell(tmp_path, here) as shell:
            for page in (
                tutorial.PAGE.sections("Install", "Install"),
                tutorial.PAGE.sections("Start a cluster", "Clean up"),
            ):
                for command in page.commands():
                    output = shell.run(command)
                    if command.example:
                        sizes = tutorial.batch_sizes(output)
                        assert sum(sizes.values()) == 64
                        assert 1 < max(sizes) <= next(limits)
    finally:
        penstock.kubectl("delete", "namespace", "language", "--ignore-not-found", "--wait=false")
