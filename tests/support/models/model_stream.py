"""A model's streamed answer that a test sends piece by piece."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from penstock_wire.headers import Headers


class ModelStream:
    """An `UpstreamAnswer` with status 200.

    `pieces` is what is read of it; b"" is its end, and an exception is raised.
    """

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.status = 200
        self.headers: Headers = headers
        self.length = None
        self.tunnel = None
        self.trailers = None
        self.stream = self
        self.pieces: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.aborted = False

    def say(self, *documents: Any) -> None:
        """Say lines of NDJSON."""
        for document in documents:
            self.pieces.put_nowait(json.dumps(document).encode() + b"\n")

    def end(self) -> None:
        """End it."""
        self.pieces.put_nowait(b"")

    async def read(self) -> bytes:
        """The next piece."""
        piece = await self.pieces.get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    def whole(self) -> bytes | None:
        """It is never there as a whole."""
        return None

    def abort(self) -> None:
        """Nobody reads on."""
        self.aborted = True
