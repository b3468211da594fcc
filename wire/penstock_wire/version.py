"""The version of Penstock that is installed: `--version` of all programs, and `penstock.__version__`."""

from __future__ import annotations

import argparse
from importlib import metadata
from typing import Any

DISTRIBUTION = "penstock-serving"
"""What `pip install` calls Penstock; the distribution `penstock` is somebody else's."""


def version() -> str:
    """Return the version, such as 0.1.0; `unknown` where Penstock runs without being installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


class ShowVersion(argparse.Action):
    """The option `--version`: prints the program's name and version, and ends it."""

    def __init__(self, option_strings: list[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print the version", **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the version, and end the program."""
        print(f"{parser.prog} {version()}")
        parser.exit()
