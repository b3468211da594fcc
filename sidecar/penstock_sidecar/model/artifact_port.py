"""Serves the files of an artifact to pods of the same backend, also while they still come.

The kernel sends them in threads of the lowest priority, so that the loop that serves requests neither copies
nor waits, and each connection uses at most a part of a processor. Only a pod that has the operator's key of
now is answered; anybody can connect, so a connection without the key gives its place to a new one. A request
names the plan that it was made by: what it gets is never of two versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from penstock_sidecar.artifact.paths import FILES, PARTS, PLAN, checked
from penstock_wire.addresses import ANY, bind_any
from penstock_wire.control.artifact import ArtifactTurn, signature

SHARE = 0.5
"""Of a processor, for one connection."""
MOST = 16
"""Connections at once; in a line of pods there are one or two."""
STALL = 20.0
"""Seconds to wait for more bytes of a file that still comes, or for a slow receiver."""
UNKNOWN = 10.0
"""Seconds to wait for the key of a request."""
_CHUNK = 4 << 20
_LOOK = 0.05
_LEAVE = 1.0
"""Seconds for the thread of a connection that lost its place to end."""
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")
_TIMEOUT = struct.pack("ll", int(STALL), 0)
T = TypeVar("T")


def listen(host: str, port: int, folder: Path, turn: Callable[[], ArtifactTurn | None]) -> int:
    """Begin to serve in threads of its own, until the process ends.

    Args:
        port: 0 for any.
        folder: the volume of the artifact.
        turn: returns the operator's word of now, None without any.

    Returns:
        The port.

    Raises:
        OSError: the address cannot be bound.
    """
    server = _Server(host, port, folder, turn)
    threading.Thread(target=server.serve_forever, daemon=True, name="artifact").start()
    return int(server.server_address[1])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, folder: Path, turn: Callable[[], ArtifactTurn | None]) -> None:
        self.folder, self.turn = folder, turn
        self._places = threading.BoundedSemaphore(MOST)
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}
        self._plan: tuple[tuple[int, int], str] = ((0, 0), "")
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = (
            bind_any(port, backlog=MOST)
            if host == ANY
            else socket.create_server((host, port), family=family, backlog=MOST)
        )
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, if there is a place, or one without the key can give up its own."""
        if not self._places.acquire(blocking=False) and not self._take_place():
            self.shutdown_request(request)
            return
        with self._lock:
            self._strangers[request] = None
        super().process_request(request, client_address)

    def _take_place(self) -> bool:
        """Take the place of the connection that has been without the key for longest."""
        with self._lock:
            oldest = next(iter(self._strangers), None)
            if oldest is None:
                return False
            del self._strangers[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        return self._places.acquire(timeout=_LEAVE)

    def is_stranger(self, request: socket.socket) -> bool:
        """Whether a connection has not shown the key, and keeps its place so far."""
        return request in self._strangers

    def welcome(self, request: socket.socket) -> None:
        """Let a connection that has shown the key keep its place."""
        with self._lock:
            self._strangers.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it at the lowest priority: this counts for the thread alone."""
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
            super().process_request_thread(request, client_address)
        finally:
            self.welcome(request)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke; the other pod does."""

    def plan(self) -> str:
        """What the plan of now is known by; "" without one."""
        try:
            with (self.folder / PLAN).open("rb") as file:
                stat = os.fstat(file.fileno())
                if self._plan[0] != (mark := (stat.st_ino, stat.st_mtime_ns)):
                    self._plan = mark, hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return ""
        return self._plan[1]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def setup(self) -> None:
        """Let the kernel end what stalls: with a timeout of Python's, `sendfile` returns after each part."""
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.request.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT)
        super().setup()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer `/plan`, and `/files/PATH` with a range."""
        kind, _, path = unquote(self.path).removeprefix("/").partition("/")
        asked = _RANGE.fullmatch(self.headers.get("range", ""))
        # NB: the other pod may have the key first; then the operator's next answer brings it here.
        if "authorization" not in self.headers or not self._wait(self._is_ours, UNKNOWN):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif kind == "plan":
            self._send_plan()
        elif kind == "files" and asked is not None and checked(path):
            self._send_range(path, int(asked[1]), int(asked[2]) + 1)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _is_ours(self) -> bool | None:
        """Whether the request has the key of now; None if not yet, as `_wait` wants it."""
        turn = self.server.turn()
        sent = self.headers.get("authorization", "").removeprefix("Penstock ").encode()
        if turn is not None and hmac.compare_digest(sent, signature(turn.key, self.path).encode()):
            self.server.welcome(self.connection)
            return True
        return None if self.server.is_stranger(self.connection) else False

    def _send_plan(self) -> None:
        plan = self._wait(lambda: self.server.plan() or None, STALL)
        if plan is None:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        with (self.server.folder / PLAN).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._begin(HTTPStatus.OK, size, plan)
            self._send(file.fileno(), 0, size, plan)

    def _send_range(self, path: str, start: int, end: int) -> None:
        plan = self.headers.get("if-match", "")
        descriptor = self._wait(lambda: self._open(path), STALL, plan)
        if descriptor is None:
            self.send_error(HTTPStatus.PRECONDITION_FAILED)
            return
        try:
            self._begin(HTTPStatus.PARTIAL_CONTENT, end - start, plan)
            self._send(descriptor, start, end, plan)
        finally:
            os.close(descriptor)

    def _begin(self, status: HTTPStatus, length: int, plan: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(length))
        self.send_header("etag", plan)
        self.end_headers()
        self.wfile.flush()

    def _open(self, path: str) -> int | None:
        for folder in (PARTS, FILES):
            with contextlib.suppress(FileNotFoundError):
                return os.open(self.server.folder / folder / path, os.O_RDONLY | os.O_NOFOLLOW)
        return None

    def _wait(self, look: Callable[[], T | None], seconds: float, plan: str = "") -> T | None:
        """Wait until there is something; None if it does not come, or the plan is another one."""
        end = time.monotonic() + seconds
        while not plan or self.server.plan() == plan:
            if (found := look()) is not None or time.monotonic() > end:
                return found
            time.sleep(_LOOK)
        return None

    def _send(self, descriptor: int, start: int, end: int, plan: str) -> None:
        """Send bytes of a file as they come; the connection ends where none do."""
        self.close_connection = True
        while start < end:
            here = self._wait(partial(_beyond, descriptor, start), STALL, plan)
            if here is None:
                return
            began, used = time.monotonic(), time.thread_time()
            size = min(here, end) - start
            sent = os.sendfile(self.connection.fileno(), descriptor, start, min(size, _CHUNK))
            start += sent
            used = time.thread_time() - used
            time.sleep(max(0.0, used / SHARE - (time.monotonic() - began)))
        self.close_connection = False


def _beyond(descriptor: int, start: int) -> int | None:
    """The size of a file that has bytes beyond this place."""
    size = os.fstat(descriptor).st_size
    return size if size > start else None
