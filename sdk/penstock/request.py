"""`penstock.Request`: the HTTP request, for a method that asks for it by its annotation."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.encoding import encode
from penstock_wire.headers import Headers


class Request:
    """An HTTP request; of a request with `instances`, a part of it that holds one item.

    Such a part has the method, path and query of the whole, the header fields that all requests of its batch
    share, and the item as its body.

    Args:
        method: the HTTP method.
        target: path and query.
        fields: the header fields.
        content: the body.
        item: the item, whose JSON is the body; `...` if there is none.

    Attributes:
        method: as given.
        path: the path, without the query.
        headers: the header fields by name in any case; values of one name are joined by commas.
    """

    __slots__ = ("_content", "_query", "headers", "item", "method", "path")

    def __init__(
        self, method: str, target: str, fields: Headers, content: bytes = b"", *, item: Any = ...
    ) -> None:
        self.method = method
        self.path, _, self._query = target.partition("?")
        self.headers = _Fields(fields)
        self.item = item
        self._content = content

    @property
    def query_params(self) -> dict[str, str]:
        """The query's values by name; of several values of one name the last."""
        return dict(urllib.parse.parse_qsl(self._query, keep_blank_values=True))

    @property
    def content(self) -> bytes:
        """The raw body."""
        return self._content if self.item is ... else encode(self.item)

    async def body(self) -> bytes:
        """The raw body, as of Starlette's request."""
        return self.content

    async def json(self) -> Any:
        """The body's value, as of Starlette's request; a method that is not `async` reads `content`.

        Raises:
            ValueError: the body is not JSON.
        """
        return json.loads(self.content)

    def __repr__(self) -> str:
        return f"<{self.method} {self.path}>"


class _Fields(Mapping[str, str]):
    """Header fields by name in any case."""

    __slots__ = ("_values",)

    def __init__(self, fields: Headers) -> None:
        self._values: dict[str, str] = {}
        for name, value in fields:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self._values[key] = f"{self._values[key]}, {text}" if key in self._values else text

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
