"""Which method of a model server a request calls, and which methods' calls end with their connection.

A server says at its ready path, in `x-penstock-cancellable`, which calls it ends when their connection is
closed: `1` where it ends all, else of each method whether it does: `embed=1, predict=0, *=0`. `*` is a
request that names none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock_wire.headers import METHOD, Headers, get

UNNAMED: Final = "*"
"""A request that names no method."""
ALL: Final = b"1"


def name_in_path(path: str) -> str:
    """The end of a path (`/v1/embed`, `/v1/models/m:embed`), which may be a method's name."""
    return path.rpartition("/")[2].rpartition(":")[2]


def cancellable_field(methods: Mapping[str, bool]) -> bytes:
    """What a server says of its methods; empty where none of their calls ends with its connection.

    Args:
        methods: of each name whether they do; `*` for requests that name none, where such are served.
    """
    if all(methods.values()):
        return ALL
    if not any(methods.values()):
        return b""
    texts = [f"{name}={int(ends)}" for name, ends in methods.items()]
    # NB: a name beyond latin-1 cannot stand in a header, and so cannot be asked for.
    return b", ".join([text.encode("latin-1") for text in texts if _is_latin(text)])


def _is_latin(text: str) -> bool:
    return max(text) <= "\xff"


def read_cancellable(field: bytes | None) -> Mapping[str, bool]:
    """What `cancellable_field` wrote; what cannot be read ends nothing.

    Args:
        field: of the ready path's answer, None where there is none.
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
        methods: what the server said (`read_cancellable`).
        headers: of the request.
        path: of the request, without its query.
    """
    field = get(headers, METHOD)
    name = name_in_path(path) if field is None else field.decode("latin-1")
    ends = methods.get(name)
    return methods.get(UNNAMED, False) if ends is None else ends
