"""The first step's download over a line that is too narrow for what it asks for at once."""

from __future__ import annotations

import asyncio
import random
import re
from datetime import timedelta
from pathlib import Path

import pytest

from penstock_sidecar.artifact import download, origins
from penstock_sidecar.artifact.origins import Remote, WebFile


class Narrow:
    """A web server whose line is too narrow for several pieces at once: the first ones get no answer."""

    def __init__(self, data: bytes, *, unanswered: int) -> None:
        self._data, self._unanswered = data, unanswered
        self._open = self.most = 0
        self.tasks: list[asyncio.Task[None]] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection, which has one request; `most` is how many of the answered came at once."""
        self.tasks.append(asyncio.create_task(self._answer(reader, writer)))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late = len(self.tasks) <= self._unanswered
        head = await reader.readuntil(b"\r\n\r\n")
        if late:
            await reader.read()
        else:
            self._open += 1
            self.most = max(self.most, self._open)
            await asyncio.wait(self.tasks[: self._unanswered])
            first, last = map(int, re.findall(rb"bytes=(\d+)-(\d+)", head)[0])
            piece = self._data[first : last + 1]
            fields = (
                f"content-range: bytes {first}-{last}/{len(self._data)}\r\ncontent-length: {len(piece)}\r\n"
            )
            head = f"HTTP/1.1 206 Partial Content\r\nconnection: close\r\n{fields}\r\n".encode()
            writer.write(head + piece)
            await writer.drain()
            self._open -= 1
        writer.close()
        await writer.wait_closed()


def test_fewer_pieces_are_asked_for_at_once_after_one_has_timed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six pieces that share a narrow line would all time out, however often they are asked for."""
    monkeypatch.setattr(origins, "REQUEST", timedelta(seconds=0.5))
    monkeypatch.setattr(download, "REQUEST", timedelta(seconds=0.5))
    monkeypatch.setattr(origins, "_RETRY", {"max_retries": 0})
    monkeypatch.setattr(download, "PIECE", 1000)
    data = random.Random(1).randbytes(20_000)
    narrow = Narrow(data, unanswered=6 + 3)

    async def bring() -> None:
        async with await asyncio.start_server(narrow.accept, "127.0.0.1", 0) as server:
            uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/m"
            remote = Remote(path="m", size=len(data), version="1", at=uri)
            await download.download(WebFile(uri), [remote], tmp_path, uri=uri, came=lambda _: None)
            await asyncio.gather(*narrow.tasks)

    asyncio.run(bring())
    assert (tmp_path / "m").read_bytes() == data
    assert (len(narrow.tasks), narrow.most) == (9 + 20, 1)
