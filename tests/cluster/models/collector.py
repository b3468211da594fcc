"""Takes what OpenTelemetry exports over HTTP, and prints each body as a line of base64."""

import base64
import gzip
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Take(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            print(base64.b64encode(body).decode(), flush=True)
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Only bodies are printed."""


ThreadingHTTPServer(("", 4318), Take).serve_forever()
