"""`make bench-router BENCH=--big`: what bodies of 1 GB cost the router in memory, up and down.

Once before a server that speaks HTTP/1.1 and once before a sidecar before that. The figure is the highest
resident memory of the process by the kernel's own count (VmHWM), less what it had before. Usage of the
server: `python -m bench.big_bodies PORT`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from pathlib import Path

from bench import processes, proxies
from bench.frame import Bench
from bench.processes import Server

BYTES = 1_000_000_000
PIECE = 256 * 1024
MOST_MIB = 16
"""What the router may take beside its own (issue 16)."""
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SMALL = 10_000


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer POST with how long its body was, a short one with the body itself; GET with `BYTES` bytes."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            left = size = int(length[1]) if length else 0
            if b"expect: 100-continue" in head.lower():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = b""
            while left:
                piece = await reader.read(min(left, PIECE))
                if not piece:
                    return
                left -= len(piece)
                body = piece if size < _SMALL else b""
            if head.startswith(b"GET /big "):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % BYTES)
                for _ in range(BYTES // PIECE):
                    writer.write(bytes(PIECE))
                    await writer.drain()
                writer.write(bytes(BYTES % PIECE))
            else:
                answer = body or b"%d" % size
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
            await writer.drain()
            if b"connection: close" in head.lower():
                return
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def up(port: int) -> int:
    """Send a body of `BYTES` bytes; returns how many its server has read."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        head = b"POST /sink HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        connection.sendall(head % BYTES)
        piece = bytes(PIECE)
        for _ in range(BYTES // PIECE):
            connection.sendall(piece)
        connection.sendall(bytes(BYTES % PIECE))
        answer = b""
        while data := connection.recv(PIECE):
            answer += data
    return int(answer.partition(b"\r\n\r\n")[2] or 0)


def down(port: int) -> int:
    """Ask for a body; returns how many bytes of it came."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /big HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(PIECE)
        size = len(data.partition(b"\r\n\r\n")[2])
        while data := connection.recv(PIECE):
            size += len(data)
    return size


def memory(pid: int, name: str) -> int:
    """A figure of a process's status, in bytes: VmRSS, or VmHWM, the highest since it began."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


def main(bench: Bench) -> int:
    """Measure; returns the exit code: 1 where a body came short, or the memory was more than it may be."""
    port = processes.free_port()
    command = [sys.executable, "-m", "bench.big_bodies", str(port)]
    good = True
    with processes.running(command, core=bench.load_core) as (process, log):
        origin = Server(port=port, pid=process.pid)
        processes.await_answer(origin, process, log, seconds=20)
        sidecar = processes.sidecar(origin, core=bench.server_core, batching={}, protocol="none")
        with sidecar as behind:
            for name, server in (("HTTP/1.1", origin), ("a sidecar", behind)):
                for way, carry in (("up", up), ("down", down)):
                    with proxies.router({"big": server}, core=bench.server_core) as router:
                        before = memory(router.pid, "VmRSS")
                        carried = carry(router.endpoints["big"].port)
                        more = (memory(router.pid, "VmHWM") - before) / 2**20
                    good &= carried == BYTES and more <= MOST_MIB
                    bench.say(f"1 GB {way}, before {name}: {carried} bytes, RSS + {more:.1f} MiB at most")
    return 0 if good else 1


async def _listen(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_listen(int(sys.argv[1])))
