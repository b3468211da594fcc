"""A relay that reads nothing: what anything between a caller and its model adds on this machine.

Usage: `python -m bench.relay PORT MODEL_PORT`. Bytes go on as they come, both ways, on uvloop, each
connection over one of its own. What this adds at one connection, late ones too, is the machine's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class _Half(asyncio.Protocol):
    """One of two connections; what comes goes to the other, and both end together."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what came before there was a connection."""
        self.transport = cast("asyncio.Transport", transport)
        if self.early:
            self.transport.write(self.early)

    def data_received(self, data: bytes) -> None:
        """Send it on."""
        other = self.other
        if other is None or other.transport is None:
            if other is not None:
                other.early += data
            return
        other.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        """End the other one, too."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def relay(port: int, model_port: int) -> None:
    """Serve until the process ends."""
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[object]] = set()

    def accept() -> _Half:
        near, far = _Half(), _Half()
        near.other, far.other = far, near
        task: asyncio.Task[object] = loop.create_task(
            loop.create_connection(lambda: far, "127.0.0.1", model_port)
        )
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return near

    server = await loop.create_server(accept, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(relay(int(sys.argv[1]), int(sys.argv[2])))
