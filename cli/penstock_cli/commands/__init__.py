"""One module a command: of a release `rollout`, `promote`, `pause`, `abort`.

The others are `status`, `top`, `why`, `ui` and `adopt`.

Each has its help as the first sentence of its docstring, `add_arguments` for what it takes beside the
common arguments, and `run`, which returns the exit code; a `CommandError` that it raises is printed.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from penstock_cli.cluster import Cluster
from penstock_cli.text import Screen


class Command(Protocol):
    """The interface of each module of this package."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what the command takes."""

    def run(self, cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
        """Do it; returns the exit code."""
