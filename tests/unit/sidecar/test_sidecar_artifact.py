"""The first step's view of an artifact's files: paths, archives, messages; and the sidecar's look at them."""

from __future__ import annotations

import asyncio
import errno
import gzip
import io
import random
import re
import tarfile
import tracemalloc
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from obstore.store import MemoryStore

from penstock_sidecar.admin import Admin
from penstock_sidecar.artifact import origins
from penstock_sidecar.artifact.download import download
from penstock_sidecar.artifact.errors import ArtifactError, public
from penstock_sidecar.artifact.neighbour import Guide
from penstock_sidecar.artifact.origins import Bucket, Remote
from penstock_sidecar.artifact.paths import wanted
from penstock_sidecar.artifact.plan import Plan, read_plan, write_plan
from penstock_sidecar.artifact.progress import Progress
from penstock_sidecar.artifact.store import Store
from penstock_sidecar.artifact.unpack import unpack
from penstock_sidecar.model.artifact_check import ArtifactCheck
from penstock_wire.control.artifact import (
    ArtifactAdvice,
    ArtifactDemand,
    ArtifactState,
    ArtifactTurn,
    read_state,
    source_of,
)
from penstock_wire.http import Request

ROOM = 10_000_000


@pytest.mark.parametrize(
    ("paths", "include", "words"),
    [
        (["../a"], (), "below the artifact's root, found '../a'"),
        (["/etc/a"], (), "below the artifact's root"),
        (["a//b"], (), "below the artifact's root"),
        (["a\\b"], (), "below the artifact's root"),
        (["a\nb"], (), "below the artifact's root"),
        (["a\udc80"], (), "below the artifact's root, found 'a\\udc80'"),
        (["a" * 256], (), "below the artifact's root"),
        (["a/" * 600 + "a"], (), "below the artifact's root"),
        (["a", "a/b"], (), "expected a file or a folder, found both at 'a'"),
        (["a.pt", "b.pt"], ("*.onnx", "c/*"), "files that match *.onnx or c/*, found a.pt, b.pt"),
        ([f"{number}" for number in range(100_001)], ("1",), "at most 100000 files, with paths of 16.8 MB"),
        (
            [f"{number:0250}/" * 3 + "a" for number in range(30_000)],
            ("1",),
            "at most 100000 files, with paths of",
        ),
    ],
)
def test_paths_stay_in_the_folder(paths: list[str], include: tuple[str, ...], words: str) -> None:
    """A path that could be written elsewhere, or not at all, is refused before anything is written."""
    with pytest.raises(ArtifactError, match=re.escape(words)):
        wanted(paths, include)


def zipped(
    *members: tuple[str, bytes],
    mode: int = 0o100644,
    method: int = zipfile.ZIP_DEFLATED,
    note: bytes = b"",
) -> bytes:
    """A ZIP archive."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type, info.comment = mode << 16, method, note
            archive.writestr(info, content)
    return data.getvalue()


def tarred(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, mode: str = "w:gz") -> bytes:
    """A tar archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:  # type: ignore[call-overload] # a mode
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def header(kind: bytes, size: int, *, name: str = "a") -> bytes:
    """A header of a tar archive."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def extended(kind: bytes, *records: str) -> bytes:
    """A header of a tar archive that says more of what follows."""
    data = "".join(f"{len(text) + 2 + len(str(len(text) + 4)):d} {text}\n" for text in records).encode()
    return header(kind, len(data)) + data.ljust(-(-len(data) // 512) * 512, b"\0")


LARGE = 80_000_000
SPARSE = ("GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=1024")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        *(
            (
                "m.tar.gz",
                gzip.compress(header(kind, LARGE) + bytes(LARGE), 1),
                "headers of at most 65.5 kB, found",
            )
            for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        ),
        ("m.tar", extended(tarfile.XGLTYPE, "comment=1") * 2000, "expected an archive in m.tar"),
        ("m.tar", header(tarfile.GNUTYPE_SPARSE, 0), "regular files, found a sparse one: 'a'"),
        ("m.tar", extended(tarfile.XHDTYPE, *SPARSE) + header(b"0", 9) + b"9" * LARGE, "found a sparse one"),
        ("m.tar", extended(tarfile.XHDTYPE, "GNU.sparse.map=0,1") + header(b"0", 1) + b"1", "a sparse one"),
        ("m.tar", extended(tarfile.XHDTYPE, "GNU.sparse.map=x") + header(b"0", 1), "an archive in m.tar"),
        (
            "m.zip",
            zipped(*[(f"{n}", b"") for n in range(300)], note=bytes(60_000)),
            "directory of at most",
        ),
        ("m.zip", zipped(("a", bytes(1000)), method=zipfile.ZIP_BZIP2), "neither stored nor deflated: 'a'"),
        ("m.zip", zipped(("a", bytes(1000)), method=zipfile.ZIP_LZMA), "neither stored nor deflated: 'a'"),
        ("m.tar", tarred(("a", bytes(1000)), mode="w:bz2"), "expected an archive in m.tar"),
        ("m.tar", tarred(("a", bytes(1000)), mode="w:xz"), "expected an archive in m.tar"),
    ],
    ids=lambda value: "data" if isinstance(value, bytes) else value,
)
def test_what_describes_an_archives_files_takes_little_memory(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    """A kilobyte of compressed headers would else be a gigabyte of memory."""
    (tmp_path / name).write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactError, match=re.escape(words)):
            unpack(tmp_path / name, tmp_path / "out", (), room=ROOM)
        assert tracemalloc.get_traced_memory()[1] < LARGE // 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("m.zip", zipped(("../a", b"")), "below the artifact's root"),
        ("m.tar.gz", tarred(("../a", b"")), "below the artifact's root"),
        ("m.tgz", tarred(("/a", b"")), "below the artifact's root"),
        ("m.zip", zipped(("a", b"/etc/passwd"), mode=0o120777), "found a link or device: 'a'"),
        ("m.tar", tarred(("a", b""), kind=tarfile.SYMTYPE, mode="w"), "found a link or device: 'a'"),
        ("m.tar", tarred(("a", b""), kind=tarfile.LNKTYPE, mode="w"), "found a link or device: 'a'"),
        ("m.tar", tarred(("a", b""), kind=tarfile.FIFOTYPE, mode="w"), "found a link or device: 'a'"),
        ("m.zip", zipped(("a", bytes(5_000_000))), "of files, found more"),
        ("m.tar.gz", tarred(("a", bytes(5_000_000))), "of files, found more"),
        ("m.tar", tarred(("a", bytes(ROOM + 1)), mode="w"), "at most 10 MB of files, found more"),
        ("m.zip", b"PK weights", "expected an archive in m.zip"),
        ("m.tar.gz", b"\x1f\x8b weights", "expected an archive in m.tar.gz"),
        ("m.tar.gz", tarred(("a", b"b" * 1000))[:-20], "expected an archive in m.tar.gz"),
        ("m.zip", zipped(), "found no file"),
    ],
    ids=lambda value: "data" if isinstance(value, bytes) else value,
)
def test_an_archive_that_is_none_or_means_harm(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    """It is refused, and nothing is written outside of its folder."""
    (tmp_path / "out").mkdir()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=re.escape(words)):
        unpack(tmp_path / name, tmp_path / "out", (), room=ROOM)
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "out"}
    assert sum(entry.stat().st_size for entry in (tmp_path / "out").rglob("*")) <= ROOM


class Memory:
    """An origin whose files are in memory."""

    def __init__(self, **files: bytes) -> None:
        self._store = MemoryStore()
        for path, data in files.items():
            self._store.put(path, data)
        self.remotes = [
            Remote(path=path, size=len(data), version=str(hash(data)), at=path)
            for path, data in files.items()
        ]

    async def files(self, include: Sequence[str]) -> list[Remote]:
        """All of them."""
        return self.remotes

    def store(self, remote: Remote) -> tuple[Any, str]:
        """The memory."""
        return self._store, remote.at


def test_a_bucket_with_too_many_objects_is_refused_whatever_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Patterns look at what was listed: a listing that stops early would be a part, taken for all."""
    monkeypatch.setattr(origins, "MOST_FILES", 2)
    bucket = Bucket("s3://weights/digits")
    bucket._store = MemoryStore()
    for name in "abc":
        bucket._store.put(f"digits/{name}", b"1")
    with pytest.raises(ArtifactError, match="at most 2 objects at s3://weights/digits, found more"):
        asyncio.run(bucket.files(("a",)))


class Step:
    """The step in a folder, from memory."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch

    def fill(self, demanded: str | None = None, limit: int = 0, **files: bytes) -> str:
        """Run it; returns the digest."""
        store = Store(self.folder, source="s", limit=limit, clock=lambda: 0.0)
        self._patch.setattr("penstock_sidecar.artifact.store.origin_of", lambda _: Memory(**files))
        guide = Guide(source="s", digest=demanded, settings=None, sidecar=None)
        state = asyncio.run(store.fill("s3://weights/m", (), guide=guide))
        return msgspec.json.decode(state, type=ArtifactState).digest


def test_whole_files_without_a_state_or_with_another_digest_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that failed at what lies there would do so at each restart."""
    other = Step(tmp_path / "other", monkeypatch)
    other.folder.mkdir()
    two = other.fill(m=b"two")
    step = Step(tmp_path / "volume", monkeypatch)
    step.folder.mkdir()
    one = step.fill(m=b"one")
    (step.folder / "state.json").write_bytes(b"")
    assert step.fill(m=b"one") == one
    assert step.fill(demanded=two, m=b"two") == two
    assert (step.folder / "files/m").read_bytes() == b"two"


@pytest.mark.parametrize("name", ["m", "m.zip"])
def test_old_files_that_fill_the_volume_go_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The step would else fail at its own record, at each restart; so would an archive's plan beside it."""
    write, parts = Path.write_bytes, tmp_path / "parts"

    def written(path: Path, data: bytes) -> int:
        """Write, unless there are parts."""
        if parts.is_dir() and any(parts.iterdir()):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    (plan,) = asyncio.run(Memory(**{name: b"old"}).files(()))
    write_plan(tmp_path / "plan.json", Plan.of([plan], source="s"))
    parts.mkdir()
    (parts / name).write_bytes(b"old")
    monkeypatch.setattr(Path, "write_bytes", written)
    Step(tmp_path, monkeypatch).fill(**{name: zipped(("a", b"new"))})
    assert [file.name for file in (tmp_path / "files").iterdir()] == ["a" if name == "m.zip" else name]
    state = read_state(tmp_path / "state.json")
    assert state is not None
    assert state.digest


def test_a_step_killed_as_it_showed_an_archives_files_leaves_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one in the plan, by which others copy. A state that is right is not written anew."""
    step, packed = Step(tmp_path, monkeypatch), {"m.zip": zipped(("a", b"new"))}
    kept = Store._kept
    monkeypatch.setattr(Store, "_kept", Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        step.fill(**packed)
    monkeypatch.setattr(Store, "_kept", kept)
    other = Step(tmp_path / "other", monkeypatch)
    other.folder.mkdir()
    wanted = other.fill(**packed)
    assert step.fill(demanded=wanted) == wanted
    assert not (tmp_path / "parts").exists()
    plan = read_plan(tmp_path / "plan.json")
    assert plan is not None
    assert plan.unpacked
    assert {*plan.files} == {"a"}
    monkeypatch.setattr(
        Progress, "finish", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    assert step.fill() == wanted


def test_an_archive_is_no_part_of_the_room_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The free bytes are those beside it; the pod's limit has it."""
    monkeypatch.setattr(Store, "_free", 10_000)
    step, data = Step(tmp_path, monkeypatch), random.Random(1).randbytes(6_000)
    packed = {"m.zip": zipped(("a", data))}
    with pytest.raises(ArtifactError, match="of files, found more"):
        step.fill(limit=12_000, **packed)
    step.fill(limit=20_000, **packed)
    assert (tmp_path / "files/a").read_bytes() == data


def test_messages_hold_nothing_secret(tmp_path: Path) -> None:
    """Of a server's answer, its status and code; of a URL, neither query nor login."""
    answer = (
        "The operation lacked the necessary privileges: Error performing GET https://me:pw@host/m?sig=s3cret "
        "in 58ms - Server returned non-2xx status code: 403 Forbidden: <?xml version='1.0'?>\n<Error><Code>"
        "SignatureDoesNotMatch</Code><Message>It does not.</Message><StringToSign>AKIA</StringToSign></Error>"
        "\n\nDebug source:\nGet { token: hidden }"
    )
    assert public(Exception(answer)) == "403 Forbidden: SignatureDoesNotMatch: It does not."
    reset = Exception(
        "error sending request for url (https://me:pw@host/m?sig=s3cret)\n\nDebug source: hidden"
    )
    assert public(reset) == "error sending request for url (https://…@host/m?…)"

    # Why a connection failed stands in the text for debugging alone.
    unknown = "InvalidCertificate UnknownIssuer: SSL_CERT_PEM can have the authority's certificate"
    own = "InvalidCertificate CaUsedAsEndEntity: the server shows an authority's, not one signed by it"
    for debug, cause in (
        ('Os {\n code: 111,\n message: "Connection refused",', "Connection refused"),
        ('error: "failed to lookup address information"', "failed to lookup address information"),
        ("error: InvalidCertificate(\n   UnknownIssuer,\n)", unknown),
        ("error: InvalidCertificate(\n  Other(\n  OtherError(\n   CaUsedAsEndEntity,\n  ),", own),
        ("error: InvalidCertificate(\n   ExpiredContext {\n", "InvalidCertificate ExpiredContext"),
    ):
        text = "Generic HTTP error: Error performing GET https://h/m?sig=s3cret in 2s, after 6 retries"
        assert public(Exception(f"{text}\n\nDebug source:\n{debug}")) == f"GET https://h/m?…: {cause}"

    origin = Memory(a=b"123", b=b"456")
    a, b = origin.remotes
    for wrong, words in (
        ([replace(a, sha256="0")], "expected a with SHA-256 0, found a665"),
        ([replace(a, whole=True), b], "expected 3 bytes, found 0"),
    ):
        uri = "https://host/m?X-Amz-Signature=s3cret"
        with pytest.raises(ArtifactError, match=words) as raised:
            asyncio.run(download(origin, wrong, tmp_path, uri=uri, came=lambda _: None))
        assert "https://host/m" in str(raised.value)
        assert "s3cret" not in str(raised.value)


def test_progress_is_measured_over_the_last_seconds(tmp_path: Path) -> None:
    """A rate of now, not of the start; what an earlier step has left is not counted as fast."""
    now = 0.0
    progress = Progress(tmp_path / "state.json", source="source", clock=lambda: now)
    progress.begin(total=14_200_000_000, here=1_000_000_000)
    for _ in range(210):
        now += 0.1
        progress.came(10_000_000)
    state = read_state(tmp_path / "state.json")
    assert state is not None
    assert state.words == "3.1 of 14.2 GB, 100 MB/s, 2 min left"


def test_a_sidecar_serves_no_other_files_than_the_first_download_had(tmp_path: Path) -> None:
    """Until the files are there, and while their digest is not the demanded one, the pod is not ready."""
    file = tmp_path / "state.json"
    check = ArtifactCheck(file)
    assert check.message == "its files are not there yet: nothing of the first step"
    file.write_bytes(b"{")
    assert check.message == "its files are not there yet: nothing of the first step"
    file.write_bytes(msgspec.json.encode(ArtifactState(source="s", here=1, total=2)))
    assert check.message == "its files are not there yet: 1 of 2 bytes"
    file.write_bytes(msgspec.json.encode(ArtifactState(source="s", here=2, total=2, digest="sha256:a")))
    assert check.message == ""
    check.demand = ArtifactDemand(source="another", digest="sha256:b")
    assert check.message == ""
    check.demand = ArtifactDemand(source="s", digest="sha256:b")
    assert check.message.startswith("expected files with digest sha256:b, as the first download had, found")
    assert ArtifactCheck(None).message == ""


def test_what_is_asked_for_names_the_source() -> None:
    """Another place, other patterns or another digest are another version, whose digest is recorded anew."""
    names = {source_of(uri, (), None) for uri in ("s3://a/b", "s3://a/c")}
    assert len(names | {source_of("s3://a/b", ("*",), None), source_of("s3://a/b", (), "d")}) == 4


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("::ffff:127.0.0.1", 200), ("::1", 200), ("10.0.0.9", 403), ("fe80::1%eth0", 403)],
)
async def test_only_the_pod_itself_learns_the_key(peer: str, status: int) -> None:
    """The admin port is open to others, too."""

    async def advice() -> ArtifactAdvice:
        return ArtifactAdvice(turn=ArtifactTurn(source="s", key="secret"))

    none: Any = None
    admin = Admin(
        path=none,
        drain=none,
        metrics=none,
        settings=none,
        dead=str,
        unready=str,
        drain_secret="",
        advice=advice,
    )
    answer = await admin(Request(method="GET", target="/artifact", headers=(), body=b"", peer=peer))
    assert (answer.status, b"secret" in answer.body) == (status, status == 200)
