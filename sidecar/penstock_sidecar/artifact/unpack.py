"""Unpacks an artifact that is one archive: regular files alone, below its root, no more than has room.

What describes the files is read in bounded memory, too: Python's readers take headers of tar, directories of
ZIP and pieces of bzip2 and LZMA whole, as large as the archive says that they are.
"""

from __future__ import annotations

import errno
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from penstock_sidecar.artifact.errors import ArtifactError
from penstock_sidecar.artifact.paths import checked, wanted
from penstock_wire.control.artifact import amount

_READ = 1 << 20
_MOST_RATIO = 200
"""Weights seldom have a tenth less when they are compressed; a bomb has a thousandth."""
_MOST_HEADER = 64 << 10
"""Bytes of a tar header's extension: a long path, or attributes. Python nests some 300 of one file."""
_EXTENSIONS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_MOST_DIRECTORY = 16 << 20
"""Bytes of a ZIP archive's directory, which has some 100 for a file."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_GZIP = b"\x1f\x8b"


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
        names = set(wanted((name for name, _ in _members(archive)), include))
        hashes, left = {}, most
        for name, source in _members(archive):
            if name not in hashes and source is not None and name in names:
                hashes[name], size = _write(source, folder / name, most=left, limit=most)
                left -= size
    # NB: RuntimeError is zipfile's, for encrypted files, and a RecursionError of headers before headers.
    except (
        *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError),
        *(RuntimeError, ValueError, OverflowError, IndexError, OSError),
    ) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that of a place before its start
            raise
        raise ArtifactError(f"expected an archive in {archive.name}: {error}") from error
    return hashes, most - left


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield the files of an archive, each readable until the next."""
    with archive.open("rb") as opened:
        is_gzip = opened.read(len(_GZIP)) == _GZIP
    yield from _zipped(archive) if archive.name.endswith(".zip") else _tarred(archive, gzip=is_gzip)


def _zipped(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with _Short(archive) as file, zipfile.ZipFile(file) as opened:
        for info in opened.infolist():
            if (info.external_attr >> 16) & 0o170000 not in (0, 0o100000, 0o040000):
                raise _irregular("a link or device", info.filename)
            if info.compress_type not in _METHODS:
                raise _irregular("one that is neither stored nor deflated", info.filename)
            if not info.is_dir():
                with opened.open(info) as source:
                    yield checked(info.filename.removeprefix("./")), source


def _tarred(archive: Path, *, gzip: bool) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(archive, "r|gz" if gzip else "r|", tarinfo=_Header) as stream:
        for member in stream:
            if not (member.isfile() or member.isdir()):
                raise _irregular("a link or device", member.name)
            if member.issparse():
                raise _irregular("a sparse one", member.name)
            if member.isfile():
                yield checked(member.name.removeprefix("./")), stream.extractfile(member)
            # It keeps each, and what headers say of all that follow.
            stream.members = []  # type: ignore[attr-defined] # not in its stub
            stream.pax_headers = {}


class _Header(tarfile.TarInfo):
    """A header of a tar archive; extensions of the next one are kept, so they have to be small."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _irregular("a sparse one", self.name)
        if self.type in _EXTENSIONS and not 0 <= self.size <= _MOST_HEADER:
            raise ArtifactError(
                f"expected headers of at most {amount(_MOST_HEADER)}, found one of {amount(self.size)}"
            )
        return super()._proc_member(archive)  # type: ignore[misc] # tarfile says what to override

    def _proc_gnusparse_10(self, following: tarfile.TarInfo, *_: Any) -> None:
        raise _irregular("a sparse one", following.name)


class _Short(io.FileIO):
    """A ZIP archive of which at most a directory is read at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, as ever."""
        most = _MOST_DIRECTORY + 1
        data = super().read(most if size is None or size < 0 else min(size, most))
        if len(data) == most:
            raise ArtifactError(f"expected a directory of at most {amount(_MOST_DIRECTORY)}, found more")
        return data


def _irregular(what: str, name: str) -> ArtifactError:
    return ArtifactError(f"expected regular files, found {what}: {name[:200]!r}")


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
