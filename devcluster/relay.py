"""Forward TCP connections from this machine's loopback into a cluster's network.

A socket belongs to the network namespace that it was made in. So one process bridges two: it listens on a
socket from the machine's namespace and connects from within the cluster's.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CHUNK_BYTES = 1 << 18


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine's loopback.

    Args:
        port: 0 for any free one.

    Raises:
        OSError: The port is taken.
    """
    return socket.create_server(("127.0.0.1", port), backlog=1024)


def enter_network(pid: int) -> None:
    """Move the calling thread into the network namespace of a process.

    Args:
        pid: The process.

    Raises:
        OSError: The process does not exist, or the caller lacks the right.
    """
    handle = os.open(Path(f"/proc/{pid}/ns/net"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that its peer sees a cut and not an end in order."""
    peer: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # it is closed already
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def relay(
    listener: socket.socket, host: str, port: int, *, until: asyncio.Future[None] | None = None
) -> None:
    """Serve the listener until cancelled.

    Args:
        listener: Where clients connect.
        host: Where their bytes go.
        port: Its port.
        until: Ends the serving when it is done; None for never.
    """
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        connections.add(task)
        try:
            await _join(reader, writer, host, port)
        finally:
            connections.discard(task)

    server = await asyncio.start_server(serve, sock=listener)
    async with server:
        await (until if until is not None else asyncio.get_running_loop().create_future())
    for task in connections:
        task.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Connect one client to the target until both have said all, or one is lost."""
    try:
        there_reader, there_writer = await asyncio.open_connection(host, port)
    except OSError:
        # A reset, as near as we come to a refusal: closed in order, it would look like an empty answer.
        _reset(writer)
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(reader, there_writer))
            both.create_task(_pump(there_reader, writer))
    except* OSError:
        for stream in (there_writer, writer):
            _reset(stream)
    finally:
        for stream in (there_writer, writer):
            stream.close()
        for stream in (there_writer, writer):
            with contextlib.suppress(OSError):
                await stream.wait_closed()


def watch_process(pid: int) -> asyncio.Future[None]:
    """Return a future of the running loop that is done when the process has ended.

    Raises:
        ProcessLookupError: It has ended already.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    handle = os.pidfd_open(pid)

    def done() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(handle, done)
    return ended


def main() -> int:
    """Relay from a listening socket that was inherited; the supervisor starts this for the API server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the listening socket")
    parser.add_argument("--to", required=True, help="host:port")
    arguments = parser.parse_args()
    host, _, port = arguments.to.rpartition(":")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(relay(socket.socket(fileno=arguments.fd), host, int(port)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
