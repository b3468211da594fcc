"""Loads a server with calls of `ModelInfer`, or with the same over REST, in a closed loop; prints JSON.

A caller sends its next number once the last came back; an answer without it is a fault. Calls share a
channel; a caller over REST has a connection. Heads are those of grpcio's channel: fields of the connection's
table (HPACK), but for the deadline. What a read has released is sent in one write.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import time
from typing import Any

import uvloop

from penstock_wire.http2 import frames, protobuf
from penstock_wire.http2.fields import FieldReader

WARM_SECONDS = 0.7
INFER = b"/inference.GRPCInferenceService/ModelInfer"
_TENSOR = protobuf.nested(1, b"x") + protobuf.nested(2, b"INT64") + protobuf.nested(3, b"\x01")
_MESSAGE = protobuf.nested(1, b"bench") + protobuf.nested(5, _TENSOR) + b"\x3a\x08"
"""A `ModelInferRequest` up to the eight bytes of its only number."""
_JSON = (
    b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","parameters":{"binary_data_size":8}}],'
    b'"parameters":{"binary_data_output":true}}'
)
_REST = (
    b"POST /v2/models/bench/infer HTTP/1.1\r\nHost: bench\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_JSON), len(_JSON) + 8, _JSON)
)
_NUMBER = struct.Struct("<q")


class Tally:
    """Counts answers.

    Args:
        most: requests that are sent, 0 without a limit.
    """

    def __init__(self, most: int) -> None:
        self.good = 0
        self.faults: list[str] = []
        self.done = asyncio.get_running_loop().create_future()
        self._most = most
        self._sent = 0

    def number(self) -> int:
        """The next number, 0 for none. As a varint it has three bytes: no other field looks like it."""
        if self.faults or (self._most and self._sent >= self._most):
            return 0
        self._sent += 1
        return 1_000_000 + self._sent

    def came(self, number: int, answer: bytes) -> None:
        """Count an answer, which has the number as raw bytes or as a field."""
        if _NUMBER.pack(number) in answer or protobuf.varint(number) in answer:
            self.good += 1
            if self.good == self._most:
                self.done.set_result(None)
        else:
            self.fault(f"expected {number} in an answer, found {answer[:200]!r}")

    def fault(self, what: str) -> None:
        """End the run."""
        self.faults.append(what)
        if not self.done.done():
            self.done.set_result(None)


class Channel(asyncio.Protocol):
    """Calls on one connection.

    Args:
        tally: counts them.
        callers: how many at once.
        path: of the method.
    """

    def __init__(self, tally: Tally, callers: int, path: bytes) -> None:
        self._tally = tally
        self._callers = callers
        self._fields = FieldReader(1 << 16)
        self._numbers: dict[int, int] = {}
        self._answers: dict[int, bytes] = {}
        self._stream = -1
        self._rest = b""
        self._first = b"\x86\x83" + b"".join(
            [
                name + bytes([len(value)]) + value
                for name, value in (
                    (b"\x41", b"bench"),
                    (b"\x44", path),
                    (b"\x40\x02te", b"trailers"),
                    (b"\x5f", b"application/grpc"),
                    (b"\x7a", b"grpc-python-asyncio/1.85.3 grpc-c/51.0.0 (linux; chttp2)"),
                    (b"\x40\x14grpc-accept-encoding", b"identity, deflate, gzip"),
                )
            ]
        )

    def connection_made(self, transport: Any) -> None:
        """Begin, with a call for each caller."""
        self._transport = transport
        begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames.settings([(frames.ENABLE_PUSH, 0)])
        room = frames.window_update(0, frames.LARGEST_WINDOW - frames.USUAL_WINDOW)
        self._transport.write(begin + room + b"".join([self._call() for _ in range(self._callers)]))

    def _call(self) -> bytes:
        number = self._tally.number()
        if not number:
            return b""
        self._stream += 2
        self._numbers[self._stream] = number
        self._answers[self._stream] = b""
        block, self._first = self._first or b"\x86\x83\xc3\xc2\xc1\xc0\xbf\xbe", b""
        block += b"\x00\x0cgrpc-timeout\x05%dm" % (9000 + number % 1000)
        head = frames.header(len(block), frames.HEADERS, frames.END_HEADERS, self._stream)
        body = b"\0" + (len(_MESSAGE) + 8).to_bytes(4, "big") + _MESSAGE + _NUMBER.pack(number)
        return head + block + frames.header(len(body), frames.DATA, frames.END_STREAM, self._stream) + body

    def data_received(self, data: bytes) -> None:
        """Take frames apart."""
        data = self._rest + data
        at, out = 0, []
        while len(data) - at >= 9 and len(data) - at >= 9 + (
            size := int.from_bytes(data[at : at + 3], "big")
        ):
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            payload = data[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == frames.DATA:
                self._answers[stream] += payload
            elif kind == frames.HEADERS:
                fields = self._fields.read(payload)
                if flags & frames.END_STREAM:
                    if (b"grpc-status", b"0") not in fields:
                        self._tally.fault(f"expected grpc-status 0, found {fields}")
                    self._tally.came(self._numbers.pop(stream), self._answers.pop(stream))
                    out.append(self._call())
            elif kind in (frames.SETTINGS, frames.PING) and not flags & frames.ACK:
                answer = payload if kind == frames.PING else b""
                out.append(frames.header(len(answer), kind, frames.ACK, 0) + answer)
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                self._tally.fault(f"expected an answer, found frame {kind}: {payload!r}")
        self._rest = data[at:]
        if out:
            self._transport.write(b"".join(out))

    def connection_lost(self, error: Exception | None) -> None:
        """A channel that ends before all was answered is a fault."""
        if self._numbers:
            self._tally.fault(f"the channel ended: {error}")


class Connection(asyncio.Protocol):
    """A caller over REST."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rest = b""
        self._number = 0

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._number = self._tally.number()
        if self._number:
            self._transport.write(_REST + _NUMBER.pack(self._number))

    def data_received(self, data: bytes) -> None:
        """Take an answer, and send the next request."""
        self._rest = data = self._rest + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = data[:end].lower()
        at = head.find(b"\r\ncontent-length:") + 17
        length = int(head[at : head.find(b"\r\n", at) % (len(head) + 1)])
        if len(data) >= end + 4 + length:
            self._rest = b""
            if not data.startswith(b"HTTP/1.1 200 "):
                self._tally.fault(f"expected 200, found {data[:300]!r}")
            self._tally.came(self._number, data[end + 4 :])
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        """A connection that ends before its answer is a fault."""
        if self._number:
            self._tally.fault(f"a connection ended: {error}")


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Load, and return what came of it."""
    loop = asyncio.get_running_loop()
    tally = Tally(arguments.count)
    for _ in range(arguments.rest):
        await loop.create_connection(lambda: Connection(tally), "127.0.0.1", arguments.port)
    if arguments.calls:
        path = arguments.path.encode()
        await loop.create_connection(
            lambda: Channel(tally, arguments.calls, path), "127.0.0.1", arguments.port
        )
    if arguments.count:
        await tally.done
        return {"good": tally.good, "faults": tally.faults}
    await asyncio.wait([tally.done], timeout=WARM_SECONDS)
    good, begun, busy = tally.good, time.monotonic(), time.process_time()
    print("warm", flush=True)
    await asyncio.wait([tally.done], timeout=arguments.seconds)
    took = time.monotonic() - begun
    busy = (time.process_time() - busy) / took
    return {"good": tally.good - good, "seconds": took, "busy": busy, "faults": tally.faults}


def main() -> int:
    """Load and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.grpc_load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--calls", type=int, default=0, help="callers on one channel")
    parser.add_argument("--rest", type=int, default=0, help="callers over REST")
    parser.add_argument("--path", default=INFER.decode(), help="of the method")
    parser.add_argument("--seconds", type=float, default=2.0, help="after a warm-up")
    parser.add_argument("--count", type=int, default=0, help="end after so many requests instead")
    result = uvloop.run(run(parser.parse_args()))
    print(json.dumps(result))
    return 1 if result["faults"] or not result["good"] else 0


if __name__ == "__main__":
    sys.exit(main())
