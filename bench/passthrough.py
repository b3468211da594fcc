"""Bodies of 1 MB through `protocol: none`: how many bytes a second of the sidecar's CPU carries.

A client and a model on blocking sockets, in one process on one core; the sidecar on another. Each byte is
received once and sent once by the sidecar, and is counted once.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from bench import processes
from bench.processes import cpu_seconds

BODY = 1 << 20
CLIENTS = 2
WARM_SECONDS = 0.3


class _Peer:
    """One end of a connection: heads, then bodies of known length into one buffer."""

    def __init__(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link = link
        self._space = memoryview(bytearray(BODY + 65536))

    def receive(self) -> tuple[bytes, int] | None:
        """The next head and how long its body was, None at the end."""
        received = 0
        while True:
            count = self.link.recv_into(self._space[received:])
            if not count:
                return None
            received += count
            head, end, _ = bytes(self._space[: min(received, 4096)]).partition(b"\r\n\r\n")
            if end:
                break
        length = 0
        for line in head.lower().split(b"\r\n")[1:]:
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        missing = len(head) + 4 + length - received
        while missing:
            count = self.link.recv_into(self._space[: min(missing, BODY)])
            if not count:
                raise ConnectionError("the connection ended in the middle of a body")
            missing -= count
        return head, length


def _model(server: socket.socket) -> None:
    """Answers GET with 1 MB, a POST with 2 bytes."""
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % BODY + bytes(BODY)
    small = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

    def serve(link: socket.socket) -> None:
        peer = _Peer(link)
        try:
            while (message := peer.receive()) is not None:
                link.sendall(large if message[0].startswith(b"GET /large") else small)
        except OSError:
            pass  # the sidecar has ended
        finally:
            link.close()

    while True:
        try:
            link, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(link,), daemon=True).start()


def _load(port: int, request: bytes, expected: int, until: float, counts: list[int]) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        peer = _Peer(link)
        while time.monotonic() < until:
            link.sendall(request)
            received = peer.receive()
            if received is None or not received[0].startswith(b"HTTP/1.1 200") or received[1] != expected:
                raise ConnectionError(f"expected 200 with {expected} bytes, found {received}")
            counts.append(1)


def _run(port: int, pid: int, request: bytes, expected: int, seconds: float) -> tuple[float, float]:
    """Bytes of bodies a second of the sidecar's CPU, and a second of time."""
    for length in (WARM_SECONDS, seconds):
        counts: list[int] = []
        begun, used = time.monotonic(), cpu_seconds(pid)
        threads = [
            threading.Thread(target=_load, args=(port, request, expected, begun + length, counts))
            for _ in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, used = time.monotonic() - begun, cpu_seconds(pid) - used
    return len(counts) * BODY / used, len(counts) * BODY / took


def measure(server_core: int, load_core: int, seconds: float) -> dict[str, tuple[float, str]]:
    """The throughput of the sidecar by core, up (requests) and down (answers), by name: value and unit.

    Args:
        server_core: the core that the sidecar runs on.
        load_core: the core of the clients and the model.
        seconds: of each direction.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {load_core})
    try:
        return _measure(server_core, seconds)
    finally:
        os.sched_setaffinity(0, before)


def _measure(server_core: int, seconds: float) -> dict[str, tuple[float, str]]:
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=_model, args=(server,), daemon=True).start()
    model = processes.Server(port=server.getsockname()[1], pid=os.getpid())
    try:
        with processes.sidecar(model, core=server_core, batching={}, protocol="none") as sidecar:
            figures: dict[str, tuple[float, str]] = {}
            upload = b"POST /up HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % BODY + bytes(BODY)
            for name, request, expected in (
                ("up", upload, 2),
                ("down", b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n", BODY),
            ):
                core, wall = _run(sidecar.port, sidecar.pid, request, expected, seconds)
                figures[f"{name} a core"] = (round(core / 1e9, 3), "GB/s")
                figures[name] = (round(wall / 1e9, 3), "GB/s")
            return figures
    finally:
        server.close()
