"""Lists in pages of bounded bytes, for each client of the apiserver.

The apiserver bounds a page by a number of objects alone, and one can have megabytes: a tenant could fill the
memory of every client that lists. So a page that is too long is left, and asked for again with fewer objects.
"""

from __future__ import annotations

import asyncio
from typing import cast

import aiohttp

PAGE_BYTES = 2 * 1024 * 1024
"""Bytes of a page: room for 100 objects of the usual size. What is parsed can take twenty times as much."""

_FEWER = 4
"""A page that is too long is asked for again with one in so many of its objects."""


class Answer(aiohttp.ClientResponse):
    """An answer of the apiserver."""

    async def take(self) -> bytes:
        """Return the whole body, and do not keep it: an answer is part of a cycle, so it stays for long."""
        try:
            return await self.read()
        finally:
            self._body = None

    async def fits(self, most: int) -> bool:
        """Receive the whole body, unless it has more bytes; then the rest is to be dropped by `close`."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                return False
        self._body = b"".join(pieces)
        return True


class Pages:
    """A middleware of aiohttp's client, whose answers are of class `Answer`: one page of a list at a time."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        """Objects of the next page, by the path of a list."""
        self._turn = asyncio.Lock()

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Carry out a request; if it is for a page, with as many objects as fit."""
        asked = int(request.url.query.get("limit", 0))
        if not asked:
            return await handler(request)
        url = request.url
        async with self._turn:
            size = min(asked, self._sizes.get(url.path, asked))
            while True:
                request.url = url.update_query(limit=size)
                answer = await handler(request)
                if size == 1 or answer.status != 200:
                    await answer.read()
                    break
                if await cast("Answer", answer).fits(PAGE_BYTES):
                    break
                answer.close()
                size = max(1, size // _FEWER)
            self._sizes[url.path] = min(asked, 2 * size)
            return answer
