"""Google's and Azure's buckets, by the emulators that their clients are tested with."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pytest

from bench import venvs
from tests.support.cluster.cluster_waits import wait_for
from tests.support.processes.artifact_step import Step, check_bucket
from tests.support.processes.ports import free_port

CACHE = venvs.CACHE.parent
AZURITE, GCS = "azurite@3.37.0", "github.com/fsouza/fake-gcs-server@v1.56.1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""That of Azurite's only account, which its manual prints."""
ACCOUNT, VERSION = "devstoreaccount1", "2021-08-06"
INSTALL_SECONDS = 900


class Emulator:
    """A running server of buckets; a context manager that ends it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> list[str]:
        """Install it if it is missing; returns its command."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self.start(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("the emulator", self._listens, every=0.1)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @staticmethod
    def send(method: str, url: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Send a request, which must be taken."""
        request = urllib.request.Request(url, data, dict(headers), method=method)  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=60):  # noqa: S310
            pass


class Google(Emulator):
    """fake-gcs-server."""

    @property
    def env(self) -> dict[str, str]:
        """What its clients have in their environment."""
        return {"GOOGLE_BASE_URL": self.url, "GOOGLE_SKIP_SIGNATURE": "true"}

    def start(self) -> list[str]:
        """Build it if it is missing; returns its command."""
        program = CACHE / "go" / "fake-gcs-server"
        if not program.exists():
            env = os.environ | {"GOBIN": str(program.parent)}
            subprocess.run(["go", "install", GCS], env=env, check=True, timeout=INSTALL_SECONDS)
        flags = ["-scheme=http", "-host=127.0.0.1", f"-port={self.port}", "-backend=memory"]
        return [str(program), *flags, f"-public-host=127.0.0.1:{self.port}"]

    def put(self, path: str, data: bytes = b"") -> None:
        """Write an object, as `bucket/key`; a bucket without a key."""
        bucket, _, key = path.partition("/")
        if key:
            url = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
            self.send("POST", url, data, {"content-type": "application/octet-stream"})
        else:
            body = b'{"name": "%s"}' % bucket.encode()
            self.send("POST", f"{self.url}/storage/v1/b", body, {"content-type": "application/json"})


class Azure(Emulator):
    """Azurite."""

    @property
    def env(self) -> dict[str, str]:
        """What its clients have in their environment."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
        }

    def start(self) -> list[str]:
        """Install it if it is missing; returns its command."""
        folder = CACHE / "azurite"
        program = folder / "node_modules" / ".bin" / "azurite-blob"
        if not program.exists():
            npm = shutil.which("npm")
            assert npm is not None, "Azurite needs npm: install Node.js 18 or newer"
            folder.mkdir(parents=True, exist_ok=True)
            install = [
                npm,
                "install",
                "--no-save",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(folder),
                AZURITE,
            ]
            subprocess.run(install, check=True, timeout=INSTALL_SECONDS)
        flags = ["--silent", "--disableTelemetry", "--inMemoryPersistence", "--skipApiVersionCheck"]
        return [str(program), *flags, "--blobPort", str(self.port)]

    def put(self, path: str, data: bytes = b"") -> None:
        """Write an object, as `container/key`; a container without a key."""
        _, _, key = path.partition("/")
        date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        fields = {"x-ms-date": date, "x-ms-version": VERSION} | (
            {"x-ms-blob-type": "BlockBlob"} if key else {}
        )
        target = f"/{ACCOUNT}/{quote(path)}"
        kind = "application/octet-stream"
        signed = ["PUT", "", "", str(len(data) or ""), "", kind, *[""] * 6]
        signed += [f"{name}:{value}" for name, value in sorted(fields.items())]
        signed += [f"/{ACCOUNT}{target}", *([] if key else ["restype:container"])]
        digest = hmac.new(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
        fields["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.url}{target}" + ("" if key else "?restype=container")
        self.send("PUT", url, data, fields | {"content-type": kind})


@pytest.mark.parametrize(("scheme", "kind"), [("gs", Google), ("az", Azure)], ids=["gs", "az"])
def test_buckets_of_other_clouds(scheme: str, kind: type[Google | Azure], tmp_path: Path) -> None:
    """What holds of S3 holds of them; other credentials are refused by name."""
    with kind() as server:
        check_bucket(scheme, server, tmp_path)
        if scheme == "az":
            other = server.env | {"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"other").decode()}
            words = Step(tmp_path / "refused", "az://weights/digits", **other).run()
            assert words.startswith("expected credentials that may read az://weights/digits, found others")
