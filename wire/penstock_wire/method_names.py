"""Finds the method of a model server that a request calls, and whether its calls end with their connection.

At its ready path a server lists, in `x-penstock-cancellable`, the calls that it ends when their connection is
closed: `1` if it ends all, else a flag for each method: `embed=1, predict=0, *=0`. `*` is a request that
names none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from penstock_wire.headers import METHOD, Headers, get

UNNAMED: Final = "*"
"""Stands for a request that names no method."""
ALL: Final = b"1"


def name_in_path(path: str) -> str:
    """Return what can be a method's name in a path.

    Args:
        path: its end is the name (`/v1/embed`, `/v1/models/m:embed`), or the name is that of a model in the
            Open Inference Protocol (`/v2/models/embed/infer`).
    """
    if path.startswith("/v2/models/"):
        return unquote(path.split("/", 4)[3])
    return path.rpartition("/")[2].rpartition(":")[2]


def cancellable_field(methods: Mapping[str, bool]) -> bytes:
    """Render a server's field; empty if none of its calls end with their connection.

    Args:
        methods: a flag for each name; `*` for requests that name none, if the server accepts these.
    """
    if all(methods.values()):
        return ALL
    if not any(methods.values()):
        return b""
    texts = [f"{name}={int(ends)}" for name, ends in methods.items()]
    # NB: a name beyond latin-1 cannot be in a header, so no request can name it.
    return b", ".join([text.encode("latin-1") for text in texts if _is_latin(text)])


def _is_latin(text: str) -> bool:
    return max(text) <= "\xff"


def read_cancellable(field: bytes | None) -> Mapping[str, bool]:
    """Parse a field of `cancellable_field`; unreadable entries end nothing.

    Args:
        field: the value in the ready path's answer, None if there is none.
    """
    if field is None:
        return {}
    if field.strip() == ALL:
        return {UNNAMED: True}
    methods: dict[str, bool] = {}
    for entry in field.decode("latin-1").split(","):
        name, _, ends = entry.strip().partition("=")
        methods[name] = ends == "1"
    return methods


def is_cancellable(methods: Mapping[str, bool], headers: Headers, path: str) -> bool:
    """Whether the call of a request ends when its connection is closed.

    Args:
        methods: the server's flags (`read_cancellable`).
        headers: the request's fields.
        path: the request's path without its query.
    """
    field = get(headers, METHOD)
    name = name_in_path(path) if field is None else field.decode("latin-1")
    ends = methods.get(name)
    return methods.get(UNNAMED, False) if ends is None else ends
