"""Unpacks an artifact that is one archive: regular files alone, below its root, no more than has room."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from penstock_sidecar.artifact.errors import ArtifactError
from penstock_sidecar.artifact.paths import checked, wanted
from penstock_wire.control.artifact import amount

_READ = 1 << 20
_MOST_RATIO = 200
"""Weights seldom have a tenth less when they are compressed; a bomb has a thousandth."""


def unpack(archive: Path, folder: Path, include: Sequence[str], *, room: int) -> tuple[dict[str, str], int]:
    """Unpack the wanted files of a tar or ZIP archive.

    Args:
        archive: named as what it is, such as `model.tar.gz`.
        folder: where to; it exists and is empty.
        room: the most bytes to write.

    Returns:
        The SHA-256 of each file in hexadecimal digits, by path, and their bytes.

    Raises:
        ArtifactError: it is no archive, has links or paths that lead out of the folder, or too many bytes.
        OSError: a file cannot be written.
    """
    most = min(room, archive.stat().st_size * _MOST_RATIO)
    try:
        names = wanted((name for name, _ in _members(archive)), include)
        hashes, left = {}, most
        for name, source in _members(archive):
            if name not in hashes and source is not None and name in names:
                hashes[name], size = _write(source, folder / name, most=left, limit=most)
                left -= size
    # NB: NotImplementedError and RuntimeError are zipfile's, for methods it lacks and for encrypted files.
    except (
        *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
        *(NotImplementedError, RuntimeError),
    ) as error:
        raise ArtifactError(f"expected an archive in {archive.name}: {error}") from error
    return hashes, most - left


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield the files of an archive, each readable until the next."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                if (info.external_attr >> 16) & 0o170000 not in (0, 0o100000, 0o040000):
                    raise ArtifactError(f"expected regular files, found a link or device: {info.filename!r}")
                if not info.is_dir():
                    with opened.open(info) as source:
                        yield checked(info.filename.removeprefix("./")), source
        return
    with tarfile.open(archive, "r|*") as stream:
        for member in stream:
            if not (member.isfile() or member.isdir()):
                raise ArtifactError(f"expected regular files, found a link or device: {member.name!r}")
            if member.isfile():
                yield checked(member.name.removeprefix("./")), stream.extractfile(member)
            stream.members = []  # type: ignore[attr-defined] # it keeps each


def _write(source: IO[bytes], target: Path, *, most: int, limit: int) -> tuple[str, int]:
    """Write one file; what the archive says of its size is not believed. Returns its hash and size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        while piece := source.read(_READ):
            size += len(piece)
            if size > most:
                raise ArtifactError(f"expected an archive of at most {amount(limit)} of files, found more")
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest(), size
