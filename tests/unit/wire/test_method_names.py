"""What a model server says of which calls end with their connection, and what a sidecar makes of it."""

from __future__ import annotations

import pytest

from penstock_wire.headers import METHOD
from penstock_wire.method_names import cancellable_field, is_cancellable, read_cancellable

SOME = b"embed=1, predict=0, *=0"


@pytest.mark.parametrize(
    ("methods", "field"),
    [
        ({"embed": True, "predict": False, "*": False}, SOME),
        ({"embed": True, "*": True}, b"1"),
        ({"embed": False, "*": False}, b""),
        ({"embed": True, "łączy": False}, b"embed=1"),
    ],
)
def test_a_server_says_it_of_each_method_unless_all_are_alike(methods: dict[str, bool], field: bytes) -> None:
    assert cancellable_field(methods) == field


@pytest.mark.parametrize(
    ("field", "path", "header", "expected"),
    [
        (SOME, "/v1/embed", None, True),
        (SOME, "/v1/models/m:embed", None, True),
        (SOME, "/", b"embed", True),
        (SOME, "/v1/embed", b"predict", False),  # the header decides
        (SOME, "/", None, False),
        (SOME, "/v1/other", None, False),
        (b"embed=0, *=1", "/v1/other", None, True),
        (b"embed=0, *=1", "/v1/embed", None, False),
        (b" 1 ", "/v1/embed", b"x", True),
        (b"embed=1", "/v1/other", None, False),
        (b"", "/", None, False),
        (b"true; =,,*,\xff=2", "/", None, False),
        (None, "/", None, False),
    ],
)
def test_a_call_ends_where_its_method_is_one_of_those(
    field: bytes | None, path: str, header: bytes | None, expected: bool
) -> None:
    headers = () if header is None else ((METHOD, header),)
    assert is_cancellable(read_cancellable(field), headers, path) is expected
