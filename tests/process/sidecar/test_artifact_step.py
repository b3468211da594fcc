"""The first step that downloads a model's files, as a process before real servers."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_wire.control.artifact import ArtifactDemand, read_state
from penstock_wire.control.settings import Settings, encode
from tests.support.cluster.cluster_waits import wait_for
from tests.support.http.file_server import FileServer, file_server
from tests.support.processes.artifact_step import Step, check_bucket, digest, https, size
from tests.support.processes.s3_server import S3Server

MIB = 1 << 20
PIECE = 4 * MIB


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    """A web server over TLS, whose authority the step is given as users give it."""
    with file_server(tmp_path) as served:
        yield served


def test_it_goes_on_after_a_kill_at_any_byte(server: FileServer, tmp_path: Path) -> None:
    """Killed at 20 random bytes it asks for what is missing alone, and the bytes are right."""
    chance = random.Random(37)
    data = chance.randbytes(24 * MIB)
    server.files["/model.bin"] = data
    step = https(server, tmp_path, "model.bin", "--digest", digest({"model.bin": data}))
    part = tmp_path / "volume" / "parts" / "model.bin"
    kept = 0
    for _ in range(20):
        server.blocked.clear()
        server.gate.clear()
        server.allowed = chance.randrange(kept, min(kept + 3 * PIECE, len(data) - 1))
        process = step.start()
        assert server.blocked.wait(60)
        came = kept + (server.allowed + 1 - kept) // PIECE * PIECE
        wait_for("what the server has sent", lambda came=came: size(part) == came, every=0.01)
        process.kill()
        process.communicate()
        server.gate.set()
        # The write of a piece can end at any byte.
        kept = chance.randint(kept, came)
        if came:
            os.truncate(part, kept)
    server.allowed = None
    server.asked.clear()
    assert step.run() == ""
    assert step.files() == {"model.bin": data}
    starts = [int(fields["range"].removeprefix("bytes=").split("-")[0]) for _, fields in server.asked[1:]]
    assert min(starts) == kept > PIECE


def test_memory_stays_constant(server: FileServer, tmp_path: Path) -> None:
    """A file four times as large as the bound needs no more of it."""
    server.files["/large.bin"] = bytes(512 * MIB)
    step = https(server, tmp_path, "large.bin")
    assert step.measured() < 128 * 1024
    assert (tmp_path / "volume" / "files" / "large.bin").stat().st_size == 512 * MIB


def test_what_was_right_is_not_asked_for_again_and_another_digest_is_refused(
    server: FileServer, tmp_path: Path
) -> None:
    """The digest of the first download, in the pod's settings, holds for the next pod; sha256sum agrees."""
    server.files["/model.bin"] = b"one"
    settings = tmp_path / "settings.json"
    step = https(server, tmp_path, "model.bin", "--settings", str(settings))
    assert step.run() == ""
    state = read_state(tmp_path / "volume" / "state.json")
    assert state is not None
    shell = ["sh", "-c", "sha256sum * | sha256sum"]
    summed = subprocess.run(shell, cwd=step.folder / "files", capture_output=True, check=True)
    assert state.digest == f"sha256:{summed.stdout.split()[0].decode()}" == digest({"model.bin": b"one"})
    count = len(server.asked)
    assert step.run() == ""
    assert len(server.asked) == count

    demand = ArtifactDemand(source="source", digest=state.digest)
    settings.write_bytes(encode(Settings(version=1, artifact=demand)))
    server.files["/model.bin"], server.etag = b"two", '"second"'
    step.folder = tmp_path / "next"
    other = Step(step.folder, step.uri, "--settings", str(settings), SSL_CERT_FILE=str(server.authority))
    assert other.run() == (
        f"expected {step.uri} with digest {state.digest}, found {digest({'model.bin': b'two'})}"
    )
    assert not (other.folder / "files").exists()


def test_a_volume_that_fills_up_keeps_what_came(server: FileServer, tmp_path: Path) -> None:
    """The model finds nothing, however often the step is tried; with room again, the rest comes."""
    server.files["/model.bin"] = data = random.Random(5).randbytes(16 * MIB)
    step = https(server, tmp_path, "model.bin")
    for _ in range(2):
        assert step.run(most=9 * MIB) == "expected room for the files, found the volume full"
        assert not (step.folder / "files").exists()
    server.asked.clear()
    assert step.run() == ""
    assert step.files() == {"model.bin": data}
    starts = [int(fields["range"].removeprefix("bytes=").split("-")[0]) for _, fields in server.asked[1:]]
    assert min(starts) == 9 * MIB


def test_a_file_that_changes_while_it_is_read_is_refused_and_then_read_anew(
    server: FileServer, tmp_path: Path
) -> None:
    """No file is made of two versions."""
    first, second = random.Random(1).randbytes(40 * MIB), random.Random(2).randbytes(40 * MIB)
    server.files["/model.bin"], server.allowed = first, 12 * MIB
    step = https(server, tmp_path, "model.bin")
    process = step.start()
    assert server.blocked.wait(60)
    server.files["/model.bin"], server.etag, server.allowed = second, '"second"', None
    server.gate.set()
    _, error = process.communicate(timeout=60)
    assert "to stay as it is, found it changed while it was read" in error
    assert step.run() == ""
    assert step.files() == {"model.bin": second}


def test_a_token_that_is_revoked_meanwhile_ends_the_step_and_what_came_stays(
    server: FileServer, tmp_path: Path
) -> None:
    """It is not tried again, and a new token brings the rest alone; the authority can come as text, too."""
    server.files["/model.bin"] = data = random.Random(1).randbytes(40 * MIB)
    server.allowed, server.authorization = 12 * MIB, "Bearer mine"
    process = https(server, tmp_path, "model.bin", HTTP_AUTHORIZATION="Bearer mine").start()
    assert server.blocked.wait(60)
    part = tmp_path / "volume/parts/model.bin"
    wait_for("what the server has sent", lambda: size(part) == 12 * MIB, every=0.01)
    server.allowed, server.authorization = None, "Bearer new"
    server.asked.clear()
    server.gate.set()
    _, error = process.communicate(timeout=60)
    assert f"credentials that may read {server.url}/model.bin, found others: 403 Forbidden" in error
    assert len(server.asked) <= 6  # the pieces ahead
    server.asked.clear()
    secret = {"HTTP_AUTHORIZATION": "Bearer new", "SSL_CERT_PEM": server.authority.read_text()}
    again = Step(tmp_path / "volume", f"{server.url}/model.bin", **secret)
    assert again.run() == ""
    assert again.files() == {"model.bin": data}
    starts = [int(fields["range"].removeprefix("bytes=").split("-")[0]) for _, fields in server.asked[1:]]
    assert min(starts) >= 12 * MIB


def test_a_server_without_ranges_and_one_that_refuses(server: FileServer, tmp_path: Path) -> None:
    """A whole answer is read as one; a refusal has its code, and nothing secret."""
    server.files["/model.bin?token=s3cret"] = data = random.Random(3).randbytes(9 * MIB)
    server.ranges = False
    server.authorization = "Bearer mine"
    step = https(server, tmp_path, "model.bin?token=s3cret")
    refusal = step.run()
    url = f"{server.url}/model.bin"
    assert refusal == f"expected credentials that may read {url}, found others: 403 Forbidden: AccessDenied"
    server.files["/model.bin"] = data
    unsigned = https(server, tmp_path, "model.bin").run()
    assert f"{url}, found none, as there is no HTTP_AUTHORIZATION: 403 Forbidden" in unsigned
    allowed = https(server, tmp_path, "model.bin?token=s3cret", HTTP_AUTHORIZATION="Bearer mine")
    assert allowed.run() == ""
    assert allowed.files() == {"model.bin": data}
    server.authorization = None
    (tmp_path / "next").mkdir()
    missing = https(server, tmp_path / "next", "none.bin").run()
    assert missing == f"expected files at {server.url}/none.bin, found none: 404 Not Found"


def test_a_proxy_of_the_environment_is_used(tmp_path: Path) -> None:
    """It gets the request for a connection."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(60)
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        process = Step(tmp_path / "volume", "https://host.invalid/model.bin", HTTPS_PROXY=url).start()
        with proxy.accept()[0] as asked:
            assert asked.recv(1000).startswith(b"CONNECT host.invalid:443 HTTP/1.1")
        process.kill()
        process.communicate()


def test_the_hub_at_a_revision(server: FileServer, tmp_path: Path) -> None:
    """Its commit is asked for, large files come from where it sends, and only there without its token."""
    (tmp_path / "store").mkdir()
    with file_server(tmp_path / "store") as store:
        weights, config = b"weights" * 1000, b"{}"
        siblings = [
            {"rfilename": "onnx/model.onnx", "size": len(weights), "blobId": "1",
             "lfs": {"sha256": hashlib.sha256(weights).hexdigest(), "size": len(weights)}},
            {"rfilename": "config.json", "size": 2, "blobId": "2"},
            {"rfilename": "README.md", "size": 5, "blobId": "3"},
        ]  # fmt: skip
        page = json.dumps({"sha": "c0ffee", "siblings": siblings}).encode()
        server.files["/api/models/org/repo/revision/v1?blobs=true"] = page
        server.files["/org/repo/resolve/c0ffee/config.json"] = config
        server.moved["/org/repo/resolve/c0ffee/onnx/model.onnx"] = f"{store.url}/blob?signed=1"
        store.files["/blob?signed=1"] = weights
        server.authorization = "Bearer hf_mine"
        both = tmp_path / "both.pem"
        both.write_bytes(server.authority.read_bytes() + store.authority.read_bytes())
        trust = {"SSL_CERT_FILE": str(both), "HF_ENDPOINT": server.url}
        step = Step(
            *(tmp_path / "hub", "hf://org/repo@v1", "--include", "*.onnx", "--include", "config.json"),
            **trust,
            HF_TOKEN="hf_mine",
        )
        assert step.run() == ""
        assert step.files() == {"onnx/model.onnx": weights, "config.json": config}
        assert all("authorization" not in fields for _, fields in store.asked)
        store.files["/blob?signed=1"] = b"weighty" * 1000
        other = Step(
            tmp_path / "other", "hf://org/repo@v1", "--include", "onnx/*", **trust, HF_TOKEN="hf_mine"
        )
        assert "expected onnx/model.onnx with SHA-256" in other.run()


def test_a_bucket_and_what_is_not_in_it(tmp_path: Path) -> None:
    """All below a prefix, an object, patterns, an archive; a missing key and a size that does not fit."""
    with S3Server() as s3:
        check_bucket("s3", s3, tmp_path)
        assert "NoSuchBucket" in Step(tmp_path / "gone", "s3://nothing/here/", **s3.env).run()
