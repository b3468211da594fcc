"""The folder of an artifact, over the restarts of its step: what came, and when it is whole.

files/       what the model sees; there only when all of it is, with the digest that was asked for
parts/       what has come so far
plan.json    `Plan`: the sizes and versions of the files in `parts` or `files`
state.json   `ArtifactState`
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock_sidecar.artifact.download import download, kept_bytes
from penstock_sidecar.artifact.errors import ArtifactError, NeighbourLost
from penstock_sidecar.artifact.neighbour import Guide, Neighbour
from penstock_sidecar.artifact.origins import ARCHIVES, Origin, Remote, origin_of
from penstock_sidecar.artifact.paths import FILES, PARTS, PLAN, STATE
from penstock_sidecar.artifact.plan import Plan, read_plan, write_plan
from penstock_sidecar.artifact.progress import Progress
from penstock_sidecar.artifact.unpack import unpack
from penstock_wire.control.artifact import amount, digest_of, read_state

SPARE = 64 << 10
"""Bytes that stay free, for the plan and the state: without them whole files would come again."""
TRIES = 2
"""Times in a row that neighbours may stop before they gave `WORTH`, until the origin is read."""
WORTH = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """Files that came whole.

    Args:
        folder: where they are.
    """

    digest: str
    size: int
    folder: Path


class Store:
    """The folder of one artifact.

    Args:
        folder: it exists.
        source: the artifact, as in `ArtifactState`.
        limit: the most bytes that the pod may keep on its node; 0 for no limit.
        clock: monotonic seconds.
    """

    def __init__(self, folder: Path, *, source: str, limit: int, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._source = source
        self._limit = limit
        self._progress = Progress(folder / STATE, source=source, clock=clock)

    async def fill(self, uri: str, include: Sequence[str], *, guide: Guide) -> bytes:
        """Bring the files, unless they are there.

        Args:
            guide: whom to copy from, and what they must be.

        Returns:
            The state, as it was written.

        Raises:
            ArtifactError: they cannot be had, or are not what was asked for.
            OSError: they cannot be written.
        """
        if (files := self._folder / FILES).is_dir():
            state = read_state(self._folder / STATE)
            if state is not None and state.source == self._source:
                # Without a digest in the state, its last write found the volume full.
                found, size = _digest(files)
                if (await guide.demanded() or state.digest) == found:
                    return self._kept(found, size, written=state.digest == found)
            shutil.rmtree(files)
        # NB: the operator sends pods that are ahead first; so it must know this before it is asked.
        self._progress.begin(total=0, here=_size(self._parts))
        brought = await self._from_neighbours(include, guide)
        if brought is None:
            brought = await self._from_origin(uri, include, guide)
        return self._keep(brought)

    async def _from_neighbours(self, include: Sequence[str], guide: Guide) -> _Brought | None:
        """Copy what the operator says; None if the origin is to be read."""
        failures = 0
        lost: str | None = None
        while failures < TRIES and (neighbour := await guide.neighbour(lost)) is not None:
            before = self._progress.here
            print(f"penstock artifact: copying from {neighbour.address}", flush=True)
            try:
                brought = await self._bring(neighbour, include, uri=neighbour.address)
            except NeighbourLost as error:
                print(f"penstock artifact: {error}", flush=True)
                failures = 0 if self._progress.here - before >= WORTH else failures + 1
                lost = neighbour.address
                continue
            finally:
                neighbour.close()
            if await guide.demanded(patient=True) == brought.digest:
                return brought
            print(f"penstock artifact: {neighbour.address} has other files", flush=True)
            shutil.rmtree(self._parts)
            return None
        return None

    async def _from_origin(self, uri: str, include: Sequence[str], guide: Guide) -> _Brought:
        plan = read_plan(self._folder / PLAN)
        if plan is not None and plan.copied and await guide.demanded() is None:
            # NB: without a digest to check them by, a neighbour's bytes would be the first download.
            shutil.rmtree(self._parts, ignore_errors=True)
        brought = await self._bring(origin_of(uri), include, uri=uri)
        demanded = await guide.demanded()
        plan = read_plan(self._folder / PLAN)
        if plan is not None and plan.copied and demanded not in (None, brought.digest):
            shutil.rmtree(self._parts)
            brought = await self._bring(origin_of(uri), include, uri=uri)
        if demanded not in (None, brought.digest):
            raise ArtifactError(
                f"expected {uri.partition('?')[0]} with digest {demanded}, found {brought.digest}"
            )
        return brought

    async def _bring(self, place: Origin | Neighbour, include: Sequence[str], *, uri: str) -> _Brought:
        remotes = await place.files(include)
        unpacked = self._folder / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        self._leave(remotes, copied=isinstance(place, Neighbour))
        self._make_room(remotes)
        hashes = await download(place, remotes, self._parts, uri=uri, came=self._progress.came)
        size = sum(remote.size for remote in remotes)
        is_unpacked = isinstance(place, Neighbour) and place.unpacked
        if is_unpacked or len(remotes) != 1 or not remotes[0].path.endswith(ARCHIVES):
            return _Brought(digest=digest_of(hashes), size=size, folder=self._parts)
        unpacked.mkdir()
        room = min(self._free, self._limit - size) if self._limit else self._free
        hashes, size = unpack(self._parts / remotes[0].path, unpacked, include, room=room)
        return _Brought(digest=digest_of(hashes), size=size, folder=unpacked)

    def _keep(self, brought: _Brought) -> bytes:
        """Show the files to the model."""
        brought.folder.rename(self._folder / FILES)
        return self._kept(brought.digest, brought.size)

    def _kept(self, digest: str, size: int, *, written: bool = False) -> bytes:
        """Write that all is there; also after a step that was killed as it did so.

        Args:
            written: whether the state says so already: a full volume does not keep a pod from starting again.
        """
        shutil.rmtree(self._parts, ignore_errors=True)  # first: an archive may have taken the last room
        files, plan = self._folder / FILES, read_plan(self._folder / PLAN)
        sizes = {
            str(file.relative_to(files)): file.stat().st_size for file in files.rglob("*") if file.is_file()
        }
        if (
            plan is None or {path: size for path, (size, _) in plan.files.items()} != sizes
        ):  # it is the archive's
            listed = [Remote(path=path, size=size, version=digest, at=path) for path, size in sizes.items()]
            write_plan(self._folder / PLAN, Plan.of(listed, source=self._source, unpacked=True))
        return (
            (self._folder / STATE).read_bytes()
            if written
            else self._progress.finish(digest=digest, size=size)
        )

    @property
    def _parts(self) -> Path:
        return self._folder / PARTS

    @property
    def _free(self) -> int:
        stat = os.statvfs(self._folder)
        return max(0, stat.f_bavail * stat.f_frsize - SPARE)

    def _leave(self, remotes: Sequence[Remote], *, copied: bool) -> None:
        """Leave of the parts what belongs to the files in their versions of now."""
        last, plan = read_plan(self._folder / PLAN), Plan.of(remotes, source=self._source)
        if last is None or (last.boot, last.source) != (plan.boot, plan.source):
            shutil.rmtree(self._parts, ignore_errors=True)
        else:
            for path, (_, version) in last.files.items():
                if plan.files.get(path, (0, ""))[1] != version:
                    (self._parts / path).unlink(missing_ok=True)
        self._parts.mkdir(exist_ok=True)
        copied = copied or (last is not None and last.copied and _size(self._parts) > 0)
        write_plan(self._folder / PLAN, msgspec.structs.replace(plan, copied=copied))

    def _make_room(self, remotes: Sequence[Remote]) -> None:
        """Refuse what does not fit, before it is downloaded."""
        total = sum(remote.size for remote in remotes)
        here = sum(kept_bytes(self._parts / remote.path, remote) for remote in remotes)
        self._progress.begin(total=total, here=here)
        if self._limit and total > self._limit:
            limit = f"the model's limit of ephemeral-storage is {amount(self._limit)}"
            raise ArtifactError(f"expected room for {amount(total)}, found less: {limit}")
        if total - here > (free := self._free):
            raise ArtifactError(
                f"expected room for {amount(total - here)}, found {amount(free)} in the volume"
            )


def _digest(files: Path) -> tuple[str, int]:
    hashes, size = {}, 0
    for file in files.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                hashes[str(file.relative_to(files))] = hashlib.file_digest(opened, "sha256").hexdigest()
            size += file.stat().st_size
    return digest_of(hashes), size


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
