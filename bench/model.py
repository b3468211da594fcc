"""A model for benchmarks: it returns the items of a batch after a + b·W ms, one batch at a time.

It sleeps, as a device does that computes beside the core: the core is the sidecar's. With 0 0 it answers at
once. `instances` become `predictions`; of the Open Inference Protocol it takes one tensor of `INT64`. Usage:
`python -m bench.model PORT A_MS B_MS`. `GET /-/batches` answers how often it ran each batch size.
"""

from __future__ import annotations

import asyncio
import collections
import re
import sys
import time
from typing import Any

import msgspec
import uvloop

from bench.timer import Timer, precise

_LENGTH = re.compile(rb"\ncontent-length: *(\d+)", re.IGNORECASE)
# The plain case, which costs no parser: numbers alone, no other field.
_PLAIN = re.compile(rb'\{"instances": ?\[([-+.0-9eE, ]+)\]\}')
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_BINARY = re.compile(rb"inference-header-content-length: *(\d+)", re.IGNORECASE)
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_OCTETS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n"
    b"inference-header-content-length: %d\r\n\r\n%b%b"
)


class Device:
    """Runs batches in the order they came, one at a time.

    Args:
        a_ms: time of any batch.
        b_ms: time of each item in it.
    """

    def __init__(self, a_ms: float, b_ms: float) -> None:
        self.a, self.b = a_ms / 1000, b_ms / 1000
        self.sizes: collections.Counter[int] = collections.Counter()
        self.waiting: collections.deque[tuple[Connection, bytes, int]] = collections.deque()
        self.running: tuple[Connection, bytes, int] | None = None
        self.timer: Timer | None = None

    def take(self, connection: Connection, answer: bytes, count: int) -> None:
        """Run a batch of so many items, or queue it."""
        if not self.a and not self.b:
            self.sizes[count] += 1
            connection.send(answer)
        elif self.running:
            self.waiting.append((connection, answer, count))
        else:
            self.start((connection, answer, count))

    def start(self, batch: tuple[Connection, bytes, int]) -> None:
        """Begin a batch."""
        if self.timer is None:
            self.timer = Timer(asyncio.get_running_loop(), self.end)
        self.running = batch
        self.sizes[batch[2]] += 1
        self.timer.at(time.monotonic() + self.a + self.b * batch[2])

    def end(self) -> None:
        """Answer what ran, begin the next."""
        assert self.running
        connection, answer, _ = self.running
        self.running = None
        if self.waiting:
            self.start(self.waiting.popleft())
        connection.send(answer)

    def close(self) -> None:
        """Give the timer back."""
        if self.timer:
            self.timer.close()


class Connection(asyncio.Protocol):
    """One connection; answers come in the order of its requests."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport: Any = transport  # uvloop's transports are not a subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        """Cut requests out of the stream by their content-length."""
        self.buffer = self.buffer + data if self.buffer else data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            match = _LENGTH.search(self.buffer, 0, end)
            length = int(match[1]) if match else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            binary = _BINARY.search(self.buffer, 0, end)
            self.buffer = self.buffer[end + 4 + length :]
            self.request(body, int(binary[1]) if binary else 0)

    def request(self, body: bytes, text: int) -> None:
        """Take one request; one without a body asks for the batches.

        Args:
            body: its body.
            text: bytes of JSON before binary data, 0 without these.
        """
        if not body:
            self.send(_json(msgspec.json.encode(self.device.sizes)))
        elif text or body.startswith(b'{"inputs"'):
            document = msgspec.json.decode(body[:text] if text else body)
            rows, data = document["inputs"][0]["shape"][0], body[text:] if text else b""
            form = (
                {"parameters": {"binary_data_size": 8 * rows}}
                if text
                else {"data": document["inputs"][0]["data"]}
            )
            output = {"name": "y", "datatype": "INT64", "shape": [rows], **form}
            members = {"model_name": "bench", "id": document.get("id", ""), "outputs": [output]}
            head = msgspec.json.encode(members)
            answer = _OCTETS % (len(head) + len(data), len(head), head, data) if text else _json(head)
            self.device.take(self, answer, rows)
        elif plain := _PLAIN.fullmatch(body):
            answer = _json(b'{"predictions":[%b]}' % plain[1])
            self.device.take(self, answer, plain[1].count(b",") + 1)
        else:
            items = _ITEMS.decode(_DECODER.decode(body)["instances"])
            predictions = b",".join(bytes(item) for item in items)
            self.device.take(self, _json(b'{"predictions":[%b]}' % predictions), len(items))

    def send(self, answer: bytes) -> None:
        """Answer a request, if its client is still there."""
        if not self.transport.is_closing():
            self.transport.write(answer)


def _json(text: bytes) -> bytes:
    return _JSON % (len(text), text)


async def main(port: int, a_ms: float, b_ms: float) -> None:
    """Serve until ended."""
    device = Device(a_ms, b_ms)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(device), "127.0.0.1", port, backlog=1024
    )
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    precise()
    uvloop.run(main(int(sys.argv[1]), *map(float, sys.argv[2:4])))
