"""A model that speaks for itself: /events streams, with a wait for /go in it; /socket is a WebSocket."""

import asyncio
import base64
import hashlib

go = asyncio.Event()
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: requests one after another."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *fields = head.decode().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)
            }
            await reader.readexactly(int(headers.get("content-length") or 0))
            path = first.split()[1]
            if path == "/socket":
                await echo(reader, writer, headers["sec-websocket-key"])
                return
            if path == "/events":
                await events(writer)
                continue
            if path == "/go":
                go.set()
            body = path.strip("/").encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def events(writer: asyncio.StreamWriter) -> None:
    """Two events, the second on request."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"9\r\ndata: 1\n\n\r\n")
    await writer.drain()
    await go.wait()
    go.clear()
    writer.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
    """A WebSocket that sends back short messages (RFC 6455)."""
    accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-accept: %b\r\n\r\n" % accept
    )
    while True:
        first, length = await reader.readexactly(2)
        mask = await reader.readexactly(4)
        masked = await reader.readexactly(length & 0x7F)
        data = bytes(byte ^ mask[index % 4] for index, byte in enumerate(masked))
        writer.write(bytes([first, len(data)]) + data)
        await writer.drain()
        if first & 0x0F == 8:
            return


async def main() -> None:
    """Listen for ever."""
    server = await asyncio.start_server(serve, "0.0.0.0", 8080)
    await server.serve_forever()


asyncio.run(main())
