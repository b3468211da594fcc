"""The half of docs/tutorial.md that needs no cluster runs as it stands there."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.clocks.waiting import SECONDS
from tests.support.pages import tutorial
from tests.support.pages.page import Command, Shell
from tests.support.processes.ports import free_port


def test_the_tutorial_on_a_laptop(tmp_path: Path) -> None:
    """Each command gives the output of the page, ports apart; callers share batches, also of streams."""
    tutorial.write_files(tmp_path)
    ports = {"8000": str(free_port())}
    page = tutorial.PAGE.sections("Serve it on your machine", "Compose two models, and stream the answer")
    with Shell(tmp_path, ports) as shell:
        for command in page.commands():
            output = shell.run(command)
            if "run.log" in command.line and command.example:
                check_runs(shell, command)
            elif command.example:
                sizes = tutorial.batch_sizes(output)
                assert sum(sizes.values()) == 64
                assert 1 < max(sizes) <= 32


def check_runs(shell: Shell, command: Command) -> None:
    """Wait until the log has all 33 streams: what a model prints is passed on beside its answers."""
    deadline = time.monotonic() + SECONDS
    while True:
        sizes = tutorial.batch_sizes(shell.run(command))
        if sum(size * count for size, count in sizes.items()) >= 33:
            break
        assert time.monotonic() < deadline, sizes
    assert 1 < max(sizes) <= 32
