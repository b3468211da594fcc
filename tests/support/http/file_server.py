"""A web server of files over TLS: with ranges or without, with a gate, and with the Hub's pages."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from penstock_operator.control import pki


@dataclass(slots=True)
class FileServer:
    """What it serves, and what it was asked.

    Args:
        files: content by path.
        moved: locations by path, answered with 302.
        etag: of every file; changed by the test.
        ranges: whether it knows ranges.
        allowed: bytes of a file from which on no answer is sent before `blocked` is looked at.
        authorization: the field that it demands, if any.
        refusal: status and content of every answer, if any.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    etag: str = '"first"'
    ranges: bool = True
    allowed: int | None = None
    authorization: str | None = None
    refusal: tuple[int, bytes] | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    blocked: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    authority: Path = Path()

    def answer(self, path: str, fields: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Answer a request."""
        self.asked.append((path, fields))
        if self.refusal is not None:
            return self.refusal[0], {}, self.refusal[1]
        if self.authorization is not None and fields.get("authorization") != self.authorization:
            return 403, {}, b"<Error><Code>AccessDenied</Code><Secret>hidden</Secret></Error>"
        if path in self.moved:
            return 302, {"location": self.moved[path]}, b""
        if path not in self.files:
            return 404, {}, b""
        if fields.get("if-match", self.etag) != self.etag:
            return 412, {}, b""
        data, head = self.files[path], {"etag": self.etag}
        if self.ranges and (asked := fields.get("range")):
            first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            last = min(last, len(data) - 1)
            if self.allowed is not None and last > self.allowed:
                self.blocked.set()
                self.gate.wait()
            head["content-range"] = f"bytes {first}-{last}/{len(data)}"
            return 206, head, data[first : last + 1]
        return 200, head, data


@contextmanager
def file_server(folder: Path) -> Iterator[FileServer]:
    """Run one on loopback.

    Args:
        folder: where its certificate is written.
    """
    served = FileServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fields = {name.lower(): value for name, value in self.headers.items()}
            status, head, body = served.answer(self.path, fields)
            self.send_response(status)
            for name, value in (*head.items(), ("content-length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_GET  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Clients here are killed."""

    server = Server(("127.0.0.1", 0), Handler)
    served.authority, key = folder / "authority.pem", folder / "server.pem"
    authority = pki.make_authority(now=time.time(), life=3600)
    issued = pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=3600)
    served.authority.write_bytes(authority.certificate)
    key.write_bytes(issued.key + issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    served.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield served
    finally:
        served.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
