"""An S3 server of one object, which comes slowly: a download that is seen in progress.

As a program, it listens at the address of its argument, and prints its port.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[3]
SIZE = 2_000_000_000
PIECE, SECONDS = bytes(64 * 1024), 0.1
"""Of each range that is asked for, one piece comes in this time."""


class _Object(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Say how large it is."""
        self._head(200, SIZE)

    def do_GET(self) -> None:
        """Send a range of it."""
        start, _, end = self.headers.get("range", f"bytes=0-{SIZE - 1}").removeprefix("bytes=").partition("-")
        left = int(end) - int(start) + 1
        self._head(206, left, ("content-range", f"bytes {start}-{end}/{SIZE}"))
        with contextlib.suppress(ConnectionError):
            while left > 0:
                self.wfile.write(PIECE[:left])
                left -= len(PIECE)
                time.sleep(SECONDS)

    def _head(self, status: int, length: int, *more: tuple[str, str]) -> None:
        self.send_response(status)
        fields = [("etag", '"1"'), ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"), *more]
        for name, value in [("content-length", str(length)), *fields]:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def slow_bucket(address: str, *, prefix: Sequence[str]) -> Iterator[str]:
    """Serve it; gives the URL.

    Args:
        address: where it listens.
        prefix: of the command.
    """
    command = [*prefix, sys.executable, "-m", "tests.support.processes.slow_bucket", address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://{address}:{process.stdout.readline().strip()}"
        finally:
            process.kill()


if __name__ == "__main__":
    server = ThreadingHTTPServer((sys.argv[1], 0), _Object)
    print(server.server_address[1], flush=True)
    server.serve_forever()
