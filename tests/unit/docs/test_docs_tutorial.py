"""The half of docs/tutorial.md that needs no cluster runs as it stands there."""

from __future__ import annotations

from pathlib import Path

from tests.support import tutorial
from tests.support.page import Shell
from tests.support.ports import free_port


def test_the_tutorial_on_a_laptop(tmp_path: Path) -> None:
    """Each command gives the output of the page, ports apart; the 64 callers share batches."""
    tutorial.write_files(tmp_path)
    ports = {"8000": str(free_port())}
    page = tutorial.PAGE.sections("Serve it on your machine", "See batches form")
    with Shell(tmp_path, ports) as shell:
        for command in page.commands():
            output = shell.run(command)
            if command.example:
                sizes = tutorial.batch_sizes(output)
                assert sum(sizes.values()) == 64
                assert 1 < max(sizes) <= 32
