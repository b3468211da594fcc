"""Copies an artifact from another pod of the backend: the operator says which, by the pod's own sidecar."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from penstock_sidecar.artifact.errors import NeighbourLost
from penstock_sidecar.artifact.origins import Remote
from penstock_sidecar.artifact.paths import wanted
from penstock_sidecar.artifact.plan import Plan
from penstock_wire import contract
from penstock_wire.control import settings as wire_settings
from penstock_wire.control.artifact import ArtifactAdvice, ArtifactDemand, ArtifactTurn, signature
from penstock_wire.errors import DocumentError

PIECE = 1 << 20
"""Fits into a processor's cache until it is hashed and written."""
_UNKNOWN = 5.0
"""Seconds to wait for the operator's word; without it the origin is read."""
_UNDECIDED = 30.0
"""Seconds to wait for the digest of what was copied."""
_ASK = 0.5
_SILENT = 30.0
"""Seconds without a byte, and for a piece or the plan, after which a neighbour is given up."""
_MOST_PLAN = 64 << 20
T = TypeVar("T")


class Guide:
    """What the first step is told: whom to copy from, and what the files must be.

    Args:
        source: the artifact, as in `ArtifactState`.
        digest: what the user demands; None for that of the first download.
        settings: the settings file, if any, which has that of the first download, late.
        sidecar: URL of the pod's sidecar, if it is to be asked.
    """

    def __init__(
        self, *, source: str, digest: str | None, settings: Path | None, sidecar: str | None
    ) -> None:
        self._source = source
        self._digest = digest
        self._settings = settings
        self._sidecar = sidecar

    async def neighbour(self, lost: str | None = None) -> Neighbour | None:
        """The pod to copy from; None for the origin, also if nobody says.

        Args:
            lost: address of one that stopped: the operator has until `_UNKNOWN` to miss its reports.
        """
        end = asyncio.get_running_loop().time() + _UNKNOWN
        while self._sidecar is not None:
            turn, is_late = (await self._advice()).turn, asyncio.get_running_loop().time() > end
            if turn is not None and turn.source == self._source and (turn.neighbour != lost or is_late):
                return Neighbour(turn) if turn.neighbour else None
            if is_late:
                break
            await asyncio.sleep(_ASK)
        return None

    async def demanded(self, *, patient: bool = False) -> str | None:
        """The digest that the files must have; None if none is known.

        Args:
            patient: whether to wait for one.
        """
        end = asyncio.get_running_loop().time() + (_UNDECIDED if patient else 0.0)
        while True:
            digest = self._digest or (await self._advice()).digest or self._recorded()
            if digest or asyncio.get_running_loop().time() >= end:
                return digest or None
            await asyncio.sleep(_ASK)

    async def _advice(self) -> ArtifactAdvice:
        if self._sidecar is None:
            return ArtifactAdvice()
        parts = urlsplit(self._sidecar)

        def ask() -> bytes:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_UNKNOWN)
            try:
                connection.request("GET", contract.ADVICE_PATH)
                return connection.getresponse().read()
            finally:
                connection.close()

        try:
            return msgspec.json.decode(await asyncio.to_thread(ask), type=ArtifactAdvice)
        except (OSError, http.client.HTTPException, msgspec.DecodeError):
            return ArtifactAdvice()

    def _recorded(self) -> str | None:
        try:
            data = self._settings.read_bytes() if self._settings is not None else b"{}"
            demand = wire_settings.decode(data, text=True).artifact
        except (OSError, DocumentError):
            return None
        return demand.digest if isinstance(demand, ArtifactDemand) and demand.source == self._source else None


class Neighbour:
    """A pod that has the files, or comes by them; each request names the plan that they are of.

    Args:
        turn: the operator's word.
        port: where it serves them.
    """

    def __init__(self, turn: ArtifactTurn, port: int = contract.ARTIFACT_PORT) -> None:
        self.address = turn.neighbour
        self._key = turn.key
        # NB: not by a library that obeys HTTP_PROXY: a proxy cannot reach pods.
        self._connection = http.client.HTTPConnection(turn.neighbour, port, timeout=_SILENT)
        self._answer: http.client.HTTPResponse | None = None
        self._plan = ""
        self.unpacked = False

    async def files(self, _: Sequence[str]) -> list[Remote]:
        """List its files, which are the wanted ones.

        Raises:
            NeighbourLost: it cannot be reached, has none, or serves other pods.
            ArtifactError: a path leads elsewhere.
        """
        with self._lost():
            data = await self._in_time(asyncio.ensure_future(asyncio.to_thread(self._read_plan)))
        try:
            plan = msgspec.json.decode(data, type=Plan)
        except msgspec.DecodeError as error:
            raise NeighbourLost(f"expected a plan from {self.address}, found another answer") from error
        self.unpacked = plan.unpacked
        remotes = {remote.path: remote for remote in plan.remotes()}
        return [remotes[path] for path in wanted(remotes, ())]

    async def pieces(
        self, remotes: Sequence[Remote], kept: dict[str, int]
    ) -> AsyncGenerator[memoryview, None]:
        """Yield the missing pieces of all files in order; the next one is read meanwhile.

        A piece is overwritten when the one after it was asked for.

        Args:
            remotes: what `files` gave.
            kept: bytes of each file that need not come.

        Raises:
            NeighbourLost: it went away, gave nothing for too long, or has other files now.
        """
        pieces = self._read(remotes, kept)
        ahead = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
        try:
            while True:
                with self._lost():
                    piece = await self._in_time(ahead)
                if piece is None:
                    return
                ahead = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
                yield piece
        finally:
            await self._stop(ahead)

    async def _in_time(self, reading: asyncio.Future[T]) -> T:
        """What a thread reads, which has to end even if bytes come one by one."""
        if not (await asyncio.wait((reading,), timeout=_SILENT))[0]:
            await self._stop(reading)
            raise TimeoutError(f"expected {PIECE >> 20} MiB within {_SILENT:g} s, found less")
        return await reading

    async def _stop(self, reading: asyncio.Future[Any]) -> None:
        if self._connection.sock is not None:
            with suppress(OSError):  # so a thread that waits for bytes gets none
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(reading, return_exceptions=True)

    def close(self) -> None:
        """Close the connection."""
        if self._answer is not None:
            self._answer.close()
        self._connection.close()

    def _read(self, remotes: Sequence[Remote], kept: dict[str, int]) -> Iterator[memoryview]:
        # New memory for each piece would have to be mapped, which takes as long as the bytes' way into it.
        buffers = cycle([memoryview(bytearray(PIECE)) for _ in range(2)])
        for remote in remotes:
            if (at := kept[remote.path]) < remote.size:
                asked = {"range": f"bytes={at}-{remote.size - 1}", "if-match": self._plan}
                answer = self._ask(f"/files/{quote(remote.path)}", asked)
                while at < remote.size:
                    piece = next(buffers)[: remote.size - at]
                    if not (count := answer.readinto(piece)):
                        raise ConnectionError(f"expected {remote.size} bytes of {remote.path}, found {at}")
                    at += count
                    yield piece[:count]

    def _read_plan(self) -> bytes:
        answer = self._ask("/plan", {})
        self._plan = answer.getheader("etag", "")
        data = answer.read(_MOST_PLAN)
        answer.read()
        return data

    def _ask(self, path: str, fields: dict[str, str]) -> http.client.HTTPResponse:
        fields["authorization"] = f"Penstock {signature(self._key, path)}"
        self._connection.request("GET", path, headers=fields)
        self._answer = answer = self._connection.getresponse()
        if answer.status not in (200, 206):
            raise ConnectionError(f"{answer.status} {answer.reason}")
        return answer

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise NeighbourLost(f"{self.address} gives nothing more: {error}") from error
