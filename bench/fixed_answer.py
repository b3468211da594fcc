"""A server that reads each request whole and answers so many bytes of JSON.

`python -m bench.fixed_answer BYTES` prints the port on 127.0.0.1 that it listens on. Bodies have a length in
their head.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
BUFFER = 1 << 20
"""Bytes of a request that are read ahead."""
SEND_BUFFER = 64 << 10
"""Of the socket: a long answer that the peer stops to read must not cost the core that others share."""


def answer(size: int) -> bytes:
    """An answer whose body has so many bytes, 2 at least.

    Args:
        size: of the body.
    """
    body = b'"%b"' % (b"x" * max(size - 2, 0))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


async def serve(size: int) -> None:
    """Answer until the process is ended.

    Args:
        size: of each answer's body, in bytes.
    """
    whole = answer(size)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        try:
            while True:
                length = _LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(whole)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the peer has what it wants
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, limit=BUFFER, backlog=1024)
    print(f"listening {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
