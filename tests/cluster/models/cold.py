"""A model that is ready at once, but answers /warm with 503 until /allow is called; /seen lists requests."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

seen: list[list[str]] = []
allowed: list[bool] = []


class Handler(BaseHTTPRequestHandler):
    """Records what is posted."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Ready; /allow and /seen."""
        if self.path == "/allow":
            allowed.append(True)
        self.answer(200, json.dumps(seen) if self.path == "/seen" else "ok")

    def do_POST(self) -> None:
        """Take a request down."""
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        seen.append([self.path, self.headers["content-type"], body])
        refused = self.path.startswith("/warm") and not allowed
        self.answer(503 if refused else 200, '{"predictions": [1, 2]}')

    def answer(self, status: int, body: str) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
