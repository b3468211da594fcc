"""A deterministic fuzzer of HTTP/2 and gRPC on the same front, in one process and without sockets.

`python -m tests.fuzz.http2_server SECONDS [SEED]` runs it as long as wanted; a case that breaks an invariant
is printed with its seed. A case is a conversation of right frames, damaged in some places. What must hold:

- no exception leaves the protocol, and none is made of a service that raises none;
- each request reaches the service once, and is answered at most once;
- what is sent is whole frames, none behind a stream's end;
- how the bytes were cut changes neither what was taken nor what was sent;
- after the connection nothing of it is kept.
"""

from __future__ import annotations

import random
import struct
import sys
from typing import Any, cast

import hpack

from penstock_wire.http import Exchange, Request, Response
from penstock_wire.http.server.connection import H1Connection
from penstock_wire.http.server.head import PREFACE
from penstock_wire.http.server.server import H1Front, H1Listener
from penstock_wire.http2 import frames
from penstock_wire.http2.connection import H2Connection
from tests.fuzz.http_server import Loop, Pipe, cut, fuzz

LIMIT = 2000
_GRPC = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "5S")]
_INFER = b"\x0a\x01m\x2a\x0d\x0a\x01x\x12\x04FP32\x1a\x02\x01\x02\x3a\x08\0\0\x80\x3f\0\0\0\x40"
"""A `ModelInferRequest` of two numbers."""
PIECES = [
    b"\0" * 9,
    b"\xff" * 9,
    frames.header(0, frames.SETTINGS, 0, 0),
    frames.header(0, frames.SETTINGS, frames.ACK, 0),
    frames.settings([(frames.INITIAL_WINDOW_SIZE, 0)]),
    frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**31 - 1)]),
    frames.settings([(frames.MAX_FRAME_SIZE, 2**24 - 1), (1, 0), (2, 1), (99, 7)]),
    frames.header(8, frames.PING, 0, 0) + b"pingpong",
    frames.header(8, frames.GOAWAY, 0, 0) + bytes(8),
    frames.header(5, frames.PRIORITY, 0, 1) + bytes(5),
    frames.header(4, frames.PUSH_PROMISE, 4, 1) + bytes(4),
    frames.header(0, frames.DATA, 0, 1),
    frames.header(3, frames.DATA, frames.PADDED, 1) + b"\2ab",
    frames.header(0, frames.CONTINUATION, frames.END_HEADERS, 1),
    frames.window_update(0, 2**31 - 1),
    frames.window_update(1, 0),
    *[frames.reset(stream, code) for stream in (1, 3, 5, 2) for code in (0, 8)],
    frames.header(1, 0x77, 255, 1) + b"?",
    b"\0\0\0\0\0",
    b"\1\xff\xff\xff\xff",
    b"\x3f\xe1\xff\xff\x0f",
    b"PRI * HTTP/2.0\r\n\r\n",
]


def conversation(dice: random.Random) -> list[bytes]:
    """The frames of a client that does nothing wrong."""
    encoder = hpack.Encoder()
    made = [frames.settings([(frames.INITIAL_WINDOW_SIZE, dice.choice((10, 65_535, 10**6)))])]
    for stream in range(1, 2 * dice.randrange(1, 5), 2):
        call = dice.random() < 0.6
        fields = [
            (":method", "POST" if call else dice.choice(("GET", "POST", "HEAD"))),
            (":scheme", "http"),
            (":path", "/inference.GRPCInferenceService/ModelInfer" if call else f"/{stream}"),
            (":authority", dice.choice(("a", "127.0.0.1:80"))),
        ]
        if call and dice.random() < 0.3:
            other = ("ModelReady", "ServerLive", "ModelMetadata", "Nothing", "ModelStreamInfer")
            fields[2] = (":path", f"/inference.GRPCInferenceService/{dice.choice(other)}")
        elif call and dice.random() < 0.1:
            fields[2] = (":path", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        fields += [*_GRPC, ("x-key", str(stream))] if call else [("x-a", "b" * dice.randrange(40))]
        block = encoder.encode(fields)
        body = b"\0" + struct.pack(">I", len(_INFER)) + _INFER if call else bytes(dice.randrange(3) * 20)
        ends = frames.END_STREAM if not body else 0
        at = dice.randrange(1, len(block))
        if dice.random() < 0.3:
            made.append(frames.header(at, frames.HEADERS, ends, stream) + block[:at])
            rest = block[at:]
            made.append(frames.header(len(rest), frames.CONTINUATION, frames.END_HEADERS, stream) + rest)
        else:
            made.append(frames.header(len(block), frames.HEADERS, ends | frames.END_HEADERS, stream) + block)
        while body:
            size = dice.randrange(1, 50)
            piece, body = body[:size], body[size:]
            flags = 0 if body else frames.END_STREAM
            made.append(frames.header(len(piece), frames.DATA, flags, stream) + piece)
        if dice.random() < 0.3:
            made.append(frames.window_update(dice.choice((0, stream)), dice.randrange(1, 1000)))
    return made


def damaged(made: list[bytes], dice: random.Random) -> bytes:
    """The frames with some lost, doubled, out of their order or between others, then with other bytes."""
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        at = dice.randrange(len(made))
        kind = dice.randrange(4)
        if kind == 0:
            made.insert(at + 1, dice.choice(PIECES))
        elif kind == 1 and len(made) > 1:
            made.insert(dice.randrange(len(made)), made.pop(at))
        elif kind == 2:
            made.insert(at, made[at])
        elif len(made) > 1:
            del made[at]
    data = bytearray(b"".join(made))
    for _ in range(dice.choice((0, 0, 1, 2))):
        data[dice.randrange(len(data))] = dice.randrange(256)
    if dice.random() < 0.2:
        del data[dice.randrange(len(data)) :]
    return bytes(data)


class _Pipe(Pipe):
    """A transport whose protocol can be another."""

    protocol: Any

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Run:
    """One connection that is fed with pieces.

    Args:
        later: answers are given only after the next piece was received.
    """

    def __init__(self, pieces: list[bytes], *, later: bool) -> None:
        self.taken: list[tuple[str, str, Any, bytes]] = []
        self.left = 0
        self._open: list[Exchange] = []
        self._later = later
        loop, self.pipe = Loop(), _Pipe()
        front = H1Front(max_body_bytes=LIMIT, http2=H2Connection)
        listener = H1Listener(front, self._serve, None)
        self.pipe.protocol = H1Connection(front, listener, cast("Any", loop))
        self.pipe.protocol.connection_made(self.pipe)
        for piece in (PREFACE, *pieces):
            if self.pipe.closed or self.pipe.ended:
                break
            self.pipe.protocol.data_received(piece)
            self._answer()
            loop.turn()
        for _ in range(10):
            self._answer()
            loop.turn()
        self.pipe.protocol.connection_lost(None)
        loop.turn()
        assert not front.connections
        assert not front.memory.kept()

    def _serve(self, exchange: Exchange) -> None:
        request: Request = exchange.request
        self.taken.append((request.method, request.target, request.headers, request.body))
        self._open.append(exchange)

        def gone() -> None:
            self.left += 1
            self._open.remove(exchange)

        exchange.gone = gone
        if not self._later:
            self._answer()

    def _answer(self) -> None:
        while self._open:
            exchange = self._open.pop()
            for _ in range(2):  # the second one must do nothing
                exchange.answer(Response(200, ((b"x-a", b"b"),), b'{"outputs":[]}'))

    def sent(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that were sent; their order is checked on the way."""
        rest, made, over, begun = bytes(self.pipe.written), [], set(), set()
        while rest:
            size = int.from_bytes(rest[:3], "big")
            kind, flags, stream = rest[3], rest[4], int.from_bytes(rest[5:9], "big")
            assert len(rest) >= 9 + size, "a frame that is cut"
            payload, rest = rest[9 : 9 + size], rest[9 + size :]
            made.append((kind, flags, stream, payload))
            if kind in (frames.DATA, frames.HEADERS):
                assert stream & 1
                assert stream not in over, f"a frame behind the end of stream {stream}"
                assert kind == frames.HEADERS or stream in begun, "a body before its head"
                begun.add(stream)
                assert kind == frames.DATA or flags & frames.END_HEADERS
                if flags & frames.END_STREAM:
                    over.add(stream)
            elif kind == frames.RST_STREAM:
                over.add(stream)
            else:
                assert kind in (frames.SETTINGS, frames.PING, frames.GOAWAY, frames.WINDOW_UPDATE)
        return made


def check(data: bytes, dice: random.Random) -> Run:
    """Assert what the module's docstring says of one input."""
    whole = Run([data], later=False)
    sent = whole.sent()
    other = Run(cut(data, dice), later=False)
    assert other.taken == whole.taken, "cut otherwise, something else was taken"
    assert other.sent() == sent, f"cut otherwise: {other.sent()} for {sent}"
    Run(cut(data, dice), later=True).sent()
    return whole


def run_seed(seed: int) -> None:
    """Check one seed's input."""
    dice = random.Random(seed)
    data = damaged(conversation(dice), dice)
    try:
        check(data, dice)
    except BaseException:
        print(f"seed {seed}: {data!r}", file=sys.stderr)
        raise


if __name__ == "__main__":
    fuzz(run_seed)
