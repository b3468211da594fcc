"""The options of `penstock run`."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.arguments import json_object

DEFAULT_PORT = 8000
MAX_BATCH = 4096
"""The largest maxBatchSize of a BatchPolicy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parsed options of one run of the command.

    Args:
        target: `module:Class`, `module:function` or `module:application`.
        init_kwargs: keyword arguments of the class.
        port: port for clients; 0 = any free one.
        batch: the most items of a batch; None = the sidecar's default, or the value in `settings`.
        settings: a sidecar's settings file.
        reload: restart the target when a source file changes.
    """

    target: str
    init_kwargs: Mapping[str, Any]
    port: int
    batch: int | None
    settings: Path | None
    reload: bool

    @property
    def name(self) -> str:
        """The name of the backend and its endpoint: the target's name in a form that Kubernetes accepts."""
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", self.target.rpartition(":")[2])
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("target", type=_target, help="what to serve: module:Class, :function or :application")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="port for clients, 0 = a free one (%(default)s)"
    )
    batching = parser.add_mutually_exclusive_group()
    batching.add_argument("--batch", type=_batch, default=None, help="items of a batch at most (32)")
    batching.add_argument(
        "--settings", type=_file, default=None, help="a sidecar's settings file, followed as it changes"
    )
    parser.add_argument(
        "--init-kwargs", type=json_object, default={}, help="keyword arguments of the class, JSON"
    )
    parser.add_argument("--reload", action="store_true", help="restart when a Python file changes")


def _target(text: str) -> str:
    module, colon, attribute = text.partition(":")
    if not (module and colon and attribute) or module.endswith(".py"):
        hint = f"; for the file {module} that is {module[:-3].replace('/', '.')}:Class"
        raise argparse.ArgumentTypeError(
            f"expected a target such as module:Class, found {text!r}{hint if module.endswith('.py') else ''}"
        )
    return text


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {text!r}")
    return int(text)


def _batch(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_BATCH:
        raise argparse.ArgumentTypeError(f"expected a number of items from 1 to {MAX_BATCH}, found {text!r}")
    return int(text)


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"expected a file, found none at {text!r}")
    return Path(text).absolute()
