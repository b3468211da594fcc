"""The first step that downloads a model's files, as a process, and what it does with a bucket."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Protocol

from penstock_wire.control.artifact import digest_of
from tests.support.http.file_server import FileServer


class Step:
    """The step with its folder, run again and again as kubelet does."""

    def __init__(self, folder: Path, uri: str, *arguments: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.uri = folder, uri
        self._command = [sys.executable, "-m", "penstock_sidecar.artifact", uri, str(folder)]
        self._command += ["--source", "source", *arguments]
        self._env = os.environ | env

    def start(self) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def measured(self) -> int:
        """Run it to its end, and return the most memory that it had, in KiB."""
        # NB: a child's ru_maxrss can be that of its parent, from before exec.
        code = "import sys; from penstock_sidecar.artifact.__main__ import main; main(sys.argv[1:]); "
        code += "print(open('/proc/self/status').read())"
        command = [sys.executable, "-c", code, *self._command[3:]]
        output = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True).stdout
        (most,) = re.findall(r"VmHWM:\s+(\d+) kB", output)
        return int(most)

    def run(self, *, most: int | None = None) -> str:
        """Run it to its end; returns its last words, empty if it was well.

        Args:
            most: bytes of a file at which the volume is full; None for those that it has.
        """
        command = self._command if most is None else ["prlimit", f"--fsize={most}", *self._command]
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == (1 if done.stderr else 0)
        return done.stderr.strip().removeprefix("penstock artifact: ")

    def files(self) -> dict[str, bytes]:
        """What the model finds."""
        root = self.folder / "files"
        return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def digest(files: dict[str, bytes]) -> str:
    """The digest of files by their content."""
    return digest_of({path: hashlib.sha256(data).hexdigest() for path, data in files.items()})


def https(server: FileServer, tmp_path: Path, name: str, *arguments: str, **env: str) -> Step:
    """A step that downloads a file of the web server."""
    trust = {"SSL_CERT_FILE": str(server.authority)}
    return Step(tmp_path / "volume", f"{server.url}/{name}", *arguments, **trust, **env)


def size(file: Path) -> int:
    """Bytes of a file, 0 without it."""
    return file.stat().st_size if file.exists() else 0


class BucketServer(Protocol):
    """A server of buckets."""

    @property
    def env(self) -> dict[str, str]:
        """What its clients have in their environment."""

    def put(self, path: str, data: bytes = b"") -> None:
        """Write an object, as `bucket/key`; a bucket without a key."""


def check_bucket(scheme: str, server: BucketServer, folder: Path) -> None:
    """Check that the step brings the files of a bucket, and says what is not there."""
    server.put("weights")
    files = {"a.bin": b"a" * 100, "sub/b ~%+é.onnx": b"b"}
    for path, data in files.items():
        server.put(f"weights/digits/{path}", data)
    server.put("weights/digits-2/other.bin", b"other")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(f"./{path}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    server.put("weights/digits.tar.gz", packed.getvalue())

    def step(name: str, key: str, *arguments: str, **env: str) -> Step:
        return Step(folder / name, f"{scheme}://weights/{key}", *arguments, **server.env, **env)

    for name, key in (("prefix", "digits"), ("slash", "digits/"), ("archive", "digits.tar.gz")):
        each = step(name, key)
        assert each.run() == ""
        assert each.files() == files
    object_alone = step("object", "digits/a.bin")
    assert object_alone.run() == ""
    assert object_alone.files() == {"a.bin": files["a.bin"]}
    some = step("some", "digits", "--include", "*.onnx")
    assert some.run() == ""
    assert list(some.files()) == ["sub/b ~%+é.onnx"]
    absent = f"expected an object or a prefix at {scheme}://weights/digit, found neither"
    assert step("none", "digit").run() == absent
    assert (
        "expected files that match *.pt, found a.bin, sub/b"
        in step("pt", "digits", "--include", "*.pt").run()
    )
    small = step("small", "digits", PENSTOCK_STORAGE_LIMIT="50").run()
    assert small.startswith("expected room for 101 bytes, found less: the model's limit of ephemeral-storage")
    assert not any((folder / "small" / "parts").iterdir())
