"""A model for benchmarks: `instances` in, `predictions` out, a + b·W ms a batch, one batch at a time.

It sleeps, as a device does that computes beside the core: the core is the sidecar's. Usage:
`python -m bench.model PORT A_MS B_MS`.
"""

from __future__ import annotations

import asyncio
import re
import sys

import msgspec
import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


class Model(asyncio.Protocol):
    """One connection; requests of all connections take turns."""

    turn: asyncio.Lock
    a_ms = 1.0
    b_ms = 0.01

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport
        self.buffer = b""
        self.tasks: set[asyncio.Task[None]] = set()

    def data_received(self, data: bytes) -> None:
        """Cut requests out of the stream by their content-length."""
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            found = _LENGTH.search(head)
            length = int(found[1]) if found else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            task = asyncio.ensure_future(self.answer(body))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self, body: bytes) -> None:
        """Answer one request after its time."""
        if body:
            items = _ITEMS.decode(_DECODER.decode(body)["instances"])
            async with Model.turn:
                await asyncio.sleep((Model.a_ms + Model.b_ms * len(items)) / 1000)
            text = b'{"predictions":[' + b",".join(bytes(item) for item in items) + b"]}"
        else:
            text = b"{}"
        self.transport.write(  # type: ignore[attr-defined]  # a BaseTransport by the Protocol's signature
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(text), text)
        )


async def main(port: int) -> None:
    """Serve until ended."""
    Model.turn = asyncio.Lock()
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    Model.a_ms, Model.b_ms = float(sys.argv[2]), float(sys.argv[3])
    uvloop.run(main(int(sys.argv[1])))
