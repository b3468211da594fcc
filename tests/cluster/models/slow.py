"""A model of the instances protocol that takes 200 ms a batch and runs one at a time."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

one_at_a_time = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Echoes instances."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Ready."""
        self.answer(b"ok")

    def do_POST(self) -> None:
        """Take the time, and answer."""
        instances = json.loads(self.rfile.read(int(self.headers["content-length"])))["instances"]
        with one_at_a_time:
            time.sleep(0.2)
        self.answer(json.dumps({"predictions": instances}).encode())

    def answer(self, body: bytes) -> None:
        """Send an answer."""
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
