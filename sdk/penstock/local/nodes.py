"""What the process that imported the target says of it: an application's nodes, or a class's settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.composition import NO_INIT_KWARGS, Application, own_settings
from penstock.errors import LoadError

MARK = "application "
"""The prefix of the line with the nodes."""
SETTINGS = "settings "
"""The prefix of the line with the settings of a class, for its sidecar."""


class NodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One backend and its endpoint.

    Args:
        name: name of both.
        target: `module:Class` or `module:function`.
        init_kwargs: keyword arguments of the class.
        settings: its sidecar's settings document; None = the user's file.
    """

    name: str
    target: str
    init_kwargs: dict[str, Any] = {}
    settings: dict[str, Any] | None = None


def application_line(application: Application, init_kwargs: Mapping[str, Any]) -> str:
    """Make the line with an application's nodes; clients call the last one.

    Args:
        application: the application.
        init_kwargs: init kwargs of the command line; an application does not take any.

    Raises:
        LoadError: there are init kwargs.
        CompositionError: its nodes cannot run in separate processes.
    """
    if init_kwargs:
        raise LoadError(NO_INIT_KWARGS)
    nodes = [
        NodeDocument(
            name=node.name,
            target=node.target,
            init_kwargs=node.init_kwargs,
            settings={name: node.spec[name] for name in ("batching", "userConfig") if name in node.spec},
        )
        for node in application.nodes
    ]
    return MARK + json.dumps(msgspec.to_builtins(nodes))


def settings_line(kind: Callable[..., Any], size: int) -> str:
    """Make the line with a class's settings; with a `maxBatchSize` other than its own, if that is not 0."""
    return SETTINGS + json.dumps(own_settings(kind, size or None))


def read(line: str) -> list[NodeDocument]:
    """Read the nodes from a line of `application_line`."""
    return msgspec.json.decode(line.removeprefix(MARK).encode(), type=list[NodeDocument])
