"""Downloads files in parallel pieces, in constant memory, and goes on where a killed step was.

Pieces are asked for ahead, and written in order. So a file is its own record: as many bytes as it has are
right, whenever the process ended, and its SHA-256 is known when its last piece is written. A step that finds
such a file reads it for its hash and asks for the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from penstock_sidecar.artifact.errors import ArtifactError
from penstock_sidecar.artifact.neighbour import Neighbour
from penstock_sidecar.artifact.origins import REQUEST, Origin, Remote, failure

PIECE = 4 << 20
AHEAD = 6
"""Pieces that are asked for at once, while none has timed out."""
_TRIES = 4
_FINAL = (FileNotFoundError, PermissionDeniedError, PreconditionError, UnauthenticatedError)


async def download(
    origin: Origin | Neighbour,
    remotes: Sequence[Remote],
    folder: Path,
    *,
    uri: str,
    came: Callable[[int], None],
) -> dict[str, str]:
    """Bring the files into a folder; what it has of them stays.

    Args:
        origin: where they come from.
        folder: it holds nothing but starts of these files in these versions.
        uri: for messages, which have it without its query: that can be a signature.
        came: called with the bytes that were written.

    Returns:
        The SHA-256 of each file in hexadecimal digits, by path.

    Raises:
        ArtifactError: a file cannot be read, changes, or is not what its origin says.
        NeighbourLost: a neighbour does not give it.
        OSError: a file cannot be written.
    """
    uri = uri.partition("?")[0]
    kept = {remote.path: kept_bytes(folder / remote.path, remote) for remote in remotes}
    missing = any(kept[remote.path] < remote.size for remote in remotes)
    pieces: AsyncGenerator[Any, None]
    if isinstance(origin, Neighbour):
        pieces = origin.pieces(remotes, kept)
    elif missing and remotes[0].whole:
        pieces = _from_the_start(origin, remotes[0], uri=uri)
    else:
        pieces = _ahead(origin, remotes, kept, uri=uri)
    hashes: dict[str, str] = {}
    try:
        for remote in remotes:
            file = folder / remote.path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("r+b" if kept[remote.path] else "w+b") as opened:
                digest = await asyncio.to_thread(hashlib.file_digest, opened, "sha256")
                at = opened.tell()
                while at < remote.size:
                    piece = await anext(pieces, b"")
                    if not piece:
                        raise ArtifactError(f"{uri}: expected {remote.size} bytes, found {at}")
                    # Both take about as long, and neither needs the interpreter's lock.
                    hashing = asyncio.ensure_future(asyncio.to_thread(digest.update, piece))
                    opened.write(piece)
                    await hashing
                    at += len(piece)
                    came(len(piece))
            hashes[remote.path] = digest.hexdigest()
            if remote.sha256 not in (None, hashes[remote.path]):
                file.unlink()
                raise ArtifactError(
                    f"{uri}: expected {remote.path} with SHA-256 {remote.sha256}, found {hashes[remote.path]}"
                )
    finally:
        await pieces.aclose()
    return hashes


def kept_bytes(file: Path, remote: Remote) -> int:
    """Bytes of a file that need not come again; what is more than it may have goes."""
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return 0
    if size > remote.size or (remote.whole and size < remote.size):
        file.unlink()
        return 0
    return size


async def _ahead(
    origin: Origin, remotes: Sequence[Remote], kept: dict[str, int], *, uri: str
) -> AsyncGenerator[Any, None]:
    """Yield the missing pieces of all files in order, with some asked for ahead."""
    ranges = _ranges(remotes, kept)
    asked: deque[asyncio.Task[Any]] = deque()
    path, store, slots = "", None, _Slots()
    try:
        while True:
            while len(asked) < AHEAD and (piece := next(ranges, None)) is not None:
                remote, start, end = piece
                if remote.path != path:
                    path, store = remote.path, origin.store(remote)
                asked.append(asyncio.create_task(_read(store, remote, start, end, slots, uri=uri)))
            if not asked:
                return
            yield await asked.popleft()
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def _ranges(remotes: Sequence[Remote], kept: dict[str, int]) -> Iterator[tuple[Remote, int, int]]:
    for remote in remotes:
        for start in range(kept[remote.path], remote.size, PIECE):
            yield remote, start, min(start + PIECE, remote.size)


class _Slots:
    """How many pieces may be asked for at once: half as many after one has timed out, but one at least."""

    def __init__(self) -> None:
        self._most = AHEAD
        self._free = asyncio.Semaphore(AHEAD)
        self._owed = 0

    async def take(self) -> int:
        """Wait for a slot; returns how many there are."""
        await self._free.acquire()
        return self._most

    def give(self, most: int, *, late: bool) -> None:
        """Give a slot back that was taken when there were `most`; `late`: its piece has timed out."""
        if late and most == self._most:
            self._most = max(1, most // 2)
            self._owed += most - self._most
        if self._owed:
            self._owed -= 1
        else:
            self._free.release()


async def _read(store: Any, remote: Remote, start: int, end: int, slots: _Slots, *, uri: str) -> Any:
    """Read a range of a file in the version that was listed."""
    options: Any = {"range": (start, end)}
    if remote.etag is not None and not remote.etag.startswith("W/"):
        options["if_match"] = remote.etag
    for attempt in range(_TRIES):
        most, since, late = await slots.take(), time.monotonic(), False
        try:
            answer = await obstore.get_async(*store, options=options)
            _same(answer, remote, uri)
            data = await answer.bytes_async()
        except (BaseError, OSError) as error:
            if isinstance(error, _FINAL) or attempt == _TRIES - 1:
                raise failure(error, uri) from error
            late = time.monotonic() - since >= REQUEST.total_seconds() / 2
        else:
            if len(data) != end - start:
                raise ArtifactError(
                    f"{uri}: expected {end - start} bytes of {remote.path}, found {len(data)}"
                )
            return data
        finally:
            slots.give(most, late=late)
        if not late:
            await asyncio.sleep(2**attempt)
    raise AssertionError("unreachable")


def _same(answer: Any, remote: Remote, uri: str) -> None:
    found = answer.meta
    if found["size"] != remote.size or (remote.etag is not None and found["e_tag"] != remote.etag):
        raise failure(PreconditionError(), uri)


async def _from_the_start(origin: Origin, remote: Remote, *, uri: str) -> AsyncGenerator[Any, None]:
    """Yield a file of a server that gives no ranges."""
    try:
        answer = await obstore.get_async(*origin.store(remote))
        _same(answer, remote, uri)
        async for piece in answer.stream(min_chunk_size=PIECE):
            yield piece
    except (BaseError, OSError) as error:
        raise failure(error, uri) from error
