"""A model of the Open Inference Protocol: the sum of each row, and how many rows came together.

It answers only once /open was asked.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

one_at_a_time = threading.Lock()
gate = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Sums rows of `x`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Ready; /open."""
        if self.path == "/open":
            gate.set()
        self.answer({"ready": True})

    def do_POST(self) -> None:
        """Infer."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        (x,) = request["inputs"]
        rows, width = x["shape"]
        flat = x["data"]
        sums = [sum(flat[row * width : (row + 1) * width]) for row in range(rows)]
        with one_at_a_time:
            gate.wait()
        self.answer(
            {
                "model_name": "sum",
                "id": request.get("id", ""),
                "outputs": [
                    {"name": "sum", "datatype": "INT64", "shape": [rows, 1], "data": sums},
                    {"name": "rows", "datatype": "INT64", "shape": [rows, 1], "data": [rows] * rows},
                ],
            }
        )

    def answer(self, document: Any) -> None:
        """Send an answer."""
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
