"""An S3 server: moto's, in an environment of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

from bench import venvs
from tests.support.processes.ports import free_port

LOCK = Path(__file__).parents[3] / "requirements" / "s3.lock"


class S3Server:
    """A running server; a context manager that ends it.

    Args:
        address: where it listens.
        prefix: of its command, and of its clients'.
    """

    def __init__(self, address: str = "127.0.0.1", *, prefix: Sequence[str] = ()) -> None:
        self._prefix = prefix
        port = str(free_port())
        self.url = f"http://{address}:{port}"
        python = venvs.ensure("s3", lock=LOCK)
        self._process = subprocess.Popen(
            [*prefix, str(python), "-u", "-m", "moto.server", "-H", address, "-p", port],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert self._process.stderr is not None
        assert any(b"Running on" in line for line in self._process.stderr), "moto did not start"

    @property
    def env(self) -> dict[str, str]:
        """What its clients have in their environment."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}

    def put(self, path: str, data: bytes = b"") -> None:
        """Write an object, as `bucket/key`; a bucket without a key."""
        url = f"{self.url}/{quote(path)}"
        command = [*self._prefix, "curl", "-sS", "--fail", "-X", "PUT", "--data-binary", "@-", url]
        # moto asks who writes an object again, and believes what it is told.
        signed = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, Signature=any"
        command += ["-H", "content-type: application/octet-stream", "-H", f"authorization: {signed}"]
        subprocess.run(command, input=data, check=True, timeout=60, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
