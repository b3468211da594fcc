"""A raw client of HTTP/2: it writes frames as a test says, and takes those that come back."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Callable, Sequence

import hpack

from penstock_wire.http.server.head import PREFACE
from penstock_wire.http2 import frames
from tests.support.clocks.waiting import SECONDS
from tests.support.http.front_server import Clients

GET = ((":method", "GET"), (":scheme", "http"), (":path", "/a"), (":authority", "a"))
POST = ((":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a"))


@dataclasses.dataclass(frozen=True)
class Frame:
    """A frame that came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ended(self) -> bool:
        return self.kind in (frames.DATA, frames.HEADERS) and bool(self.flags & frames.END_STREAM)

    @property
    def code(self) -> int:
        """The error code of an RST_STREAM or GOAWAY."""
        code: int = struct.unpack(
            ">I", self.payload[:4] if self.kind == frames.RST_STREAM else self.payload[4:8]
        )[0]
        return code


@dataclasses.dataclass
class Answer:
    """What came on one stream until its end."""

    fields: dict[str, str]
    body: bytes
    trailers: dict[str, str]
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.fields[":status"])


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frames.header(len(payload), kind, flags, stream) + payload


class H2Client:
    """A connection; `begun` makes one whose settings were exchanged."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.last = -1
        self.seen: list[Frame] = []
        """Frames that came and that no test has taken."""

    @classmethod
    async def begun(cls, server: Clients, settings: Sequence[tuple[int, int]] = ()) -> H2Client:
        client = cls(*await server.connect())
        client.send(PREFACE + frames.settings(list(settings)))
        await client.until(lambda each: each.kind == frames.SETTINGS and each.flags == frames.ACK)
        return client

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    def head(self, fields: Sequence[tuple[str, str]], *, ended: bool = True, stream: int = 0) -> int:
        """Send a head; returns its stream."""
        if not stream:
            self.last += 2
            stream = self.last
        flags = frames.END_HEADERS | (frames.END_STREAM if ended else 0)
        self.send(frame(frames.HEADERS, flags, stream, self.encoder.encode(list(fields))))
        return stream

    def data(self, stream: int, data: bytes, *, ended: bool = True) -> None:
        most = frames.USUAL_FRAME_BYTES
        pieces = [data[at : at + most] for at in range(0, len(data), most)] or [b""]
        for index, piece in enumerate(pieces):
            last = ended and index == len(pieces) - 1
            self.send(frame(frames.DATA, frames.END_STREAM if last else 0, stream, piece))

    async def next(self) -> Frame:
        async with asyncio.timeout(SECONDS):
            header = await self.reader.readexactly(9)
            size = int.from_bytes(header[:3], "big")
            stream = int.from_bytes(header[5:], "big")
            return Frame(header[3], header[4], stream, await self.reader.readexactly(size))

    async def until(self, wanted: Callable[[Frame], bool]) -> Frame:
        """The first frame of that kind; those before it stay for others."""
        for index, each in enumerate(self.seen):
            if wanted(each):
                return self.seen.pop(index)
        while not wanted(each := await self.next()):
            self.seen.append(each)
        return each

    async def answer(self, stream: int) -> Answer:
        """What comes on a stream until its end."""
        made = Answer({}, b"", {})
        while True:
            each = await self.until(lambda each: each.stream == stream and each.kind != frames.WINDOW_UPDATE)
            if each.kind == frames.RST_STREAM:
                made.reset = each.code
                return made
            if each.kind == frames.DATA:
                made.body += each.payload
            else:
                fields = dict(self.decoder.decode(each.payload))
                if made.fields:
                    made.trailers = fields
                else:
                    made.fields = fields
            if each.ended:
                return made

    async def goodbye(self) -> Frame:
        """The GOAWAY, behind which the server closes."""
        frame = await self.until(lambda each: each.kind == frames.GOAWAY)
        async with asyncio.timeout(SECONDS):
            await self.reader.read()
        return frame
