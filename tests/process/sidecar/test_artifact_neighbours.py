"""Pods that copy an artifact from each other: sidecars and first steps, before an operator's real port."""

from __future__ import annotations

import asyncio
import http.client
import random
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock_sidecar.artifact import neighbour
from penstock_sidecar.artifact.errors import ArtifactError
from penstock_sidecar.artifact.neighbour import Guide, Neighbour
from penstock_sidecar.artifact.plan import Plan, write_plan
from penstock_sidecar.artifact.store import Store
from penstock_sidecar.model import artifact_port
from penstock_wire.control.artifact import ArtifactTurn, read_state, signature
from tests.support.http.file_server import FileServer, file_server
from tests.support.processes.artifact_pods import World, kill, whole
from tests.support.processes.artifact_step import digest, size
from tests.support.processes.sidecar_process import until

MIB = 1 << 20
PIECE = 4 * MIB


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A backend without pods."""
    with file_server(tmp_path) as server:
        async with AsyncExitStack() as stack:
            made = World(tmp_path, server, stack)
            host, port = await made.operator.server.start("127.0.0.1", 0)
            made.operator.url = f"http://{host}:{port}"
            stack.push_async_callback(made.operator.server.stop)
            yield made


async def test_pods_that_start_at_once_read_the_origin_once(world: World) -> None:
    """One reads it, the others copy what it has so far, and wait for its digest."""
    world.server.files["/model.bin"] = data = random.Random(1).randbytes(24 * MIB)
    world.server.allowed = 10 * MIB
    pods = [await world.pod(number) for number in (2, 3, 4)]
    steps = [pod.step.start() for pod in pods]

    async def partly() -> bool:
        return all(size(pod.part) == 2 * PIECE for pod in pods)

    await until(partly)
    world.server.allowed = None
    world.server.gate.set()

    async def first() -> str:
        return next(
            (
                state.digest
                for pod in pods
                if (state := read_state(pod.volume / "state.json")) and state.digest
            ),
            "",
        )

    world.record(await until(first))
    assert [await whole(step) for step in steps] == ["", "", ""]
    assert world.read() == len(data)
    for pod in pods:
        assert pod.files == {"model.bin": data}

    # A later pod needs no origin at all, nor what may read it.
    world.server.authorization = "revoked"
    world.server.asked.clear()
    late = await world.pod(5)
    full = await asyncio.to_thread(late.step.run, most=9 * MIB)
    assert full == "expected room for the files, found the volume full"
    assert not (late.volume / "files").exists()
    assert await whole(late.step.start()) == ""
    assert late.files == {"model.bin": data}

    # One whose neighbour has just died waits until the operator misses that, too.
    await kill(pods[0])
    last = await world.pod(6)
    assert await whole(last.step.start()) == ""
    assert last.files == {"model.bin": data}
    assert world.server.asked == []


KEY = "0" * 64
TURN = ArtifactTurn(source="source", key=KEY, neighbour="127.0.0.1")


class Told(Guide):
    """A pod that is told what a test says; the origin at last.

    Args:
        neighbours: what it is told.
        digest: what the files must have, if that is known.
    """

    def __init__(self, *neighbours: Neighbour, digest: str | None) -> None:
        super().__init__(source="source", digest=digest, settings=None, sidecar=None)
        self._neighbours = iter(neighbours)
        self.lost: list[str | None] = []

    async def neighbour(self, lost: str | None = None) -> Neighbour | None:
        """The next one."""
        self.lost.append(lost)
        return next(self._neighbours, None)

    async def demanded(self, *, patient: bool = False) -> str | None:
        """The digest, at once."""
        return await super().demanded()


class Lone:
    """The volumes of a pod that copies and of its neighbour, whose port is this process's."""

    def __init__(self, folder: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
        monkeypatch.setattr(artifact_port, "STALL", 0.1)
        monkeypatch.setattr(artifact_port, "UNKNOWN", 0.1)
        self.server, self.there, self.here = server, folder / "there", folder / "here"
        self.there.mkdir()
        self.here.mkdir()
        self.data = server.files["/model.bin"] = random.Random(2).randbytes(3 * PIECE)
        self.port = artifact_port.listen("127.0.0.1", 0, self.there, lambda: TURN)

    def plan(self, **files: tuple[int, str]) -> None:
        """Write what the neighbour says that it has, or will."""
        write_plan(self.there / "plan.json", Plan(source="source", boot="other", files=files))

    def neighbour(self, **changes: Any) -> Neighbour:
        """The neighbour."""
        return Neighbour(msgspec.structs.replace(TURN, **changes), self.port)

    async def fill(self, *neighbours: Neighbour, digest: str | None = None) -> dict[str, bytes]:
        """Bring the files; returns what the model finds."""
        store = Store(self.here, source="source", limit=0, clock=time.monotonic)
        self.guide = Told(*neighbours, digest=digest)
        await store.fill(f"{self.server.url}/model.bin", (), guide=self.guide)
        return {file.name: file.read_bytes() for file in (self.here / "files").iterdir()}

    def starts(self) -> list[int]:
        """Where the ranges began that the origin was asked for, after the look for its size."""
        return sorted(int(fields["range"][6:].partition("-")[0]) for _, fields in self.server.asked[1:])


@pytest.fixture
def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lone]:
    """Two volumes."""
    with file_server(tmp_path) as server:
        yield Lone(tmp_path, server, monkeypatch)


async def part(lone: Lone) -> None:
    """A neighbour has a part of the file, and gives no more."""
    lone.plan(**{"model.bin": (len(lone.data), '"first"')})
    (lone.there / "parts").mkdir()
    (lone.there / "parts" / "model.bin").write_bytes(lone.data[:PIECE])


@pytest.mark.parametrize("known", [True, False], ids=["digest-known", "digest-unknown"])
async def test_of_a_neighbour_that_stops_what_came_is_kept_if_a_digest_can_say_that_it_is_right(
    lone: Lone, *, known: bool
) -> None:
    """The origin gives the rest; without a digest, all: nothing copied may be the first download."""
    await part(lone)
    demanded = digest({"model.bin": lone.data}) if known else None
    assert await lone.fill(lone.neighbour(), digest=demanded) == {"model.bin": lone.data}
    assert lone.starts() == [PIECE, 2 * PIECE] if known else [0, PIECE, 2 * PIECE]


async def no_plan(_: Lone) -> None:
    """A neighbour answers 503."""


async def trickle(lone: Lone) -> None:
    """A neighbour gives a byte at a time, without end."""
    await part(lone)
    at = PIECE
    while True:
        await asyncio.sleep(0.02)
        with (lone.there / "parts" / "model.bin").open("ab") as file:
            file.write(lone.data[at : at + 1])
        at += 1


@pytest.mark.parametrize("ill", [part, no_plan, trickle])
async def test_a_neighbour_that_stops_is_asked_again_once_and_not_at_once(
    lone: Lone, monkeypatch: pytest.MonkeyPatch, ill: Callable[[Lone], Coroutine[Any, Any, None]]
) -> None:
    """The guide hears which one stopped, also if it gave bytes; after the second time the origin is read."""
    monkeypatch.setattr(neighbour, "_SILENT", 1.0)
    kept = 0 if ill is no_plan else PIECE
    serving = asyncio.create_task(ill(lone))
    try:
        neighbours = [lone.neighbour() for _ in range(3)]
        right = digest({"model.bin": lone.data})
        assert await lone.fill(*neighbours, digest=right) == {"model.bin": lone.data}
    finally:
        serving.cancel()
    assert lone.guide.lost == [None, "127.0.0.1"]
    assert lone.starts()[0] == kept


async def test_altered_bytes_a_wrong_key_and_other_paths_end_at_the_origin(lone: Lone) -> None:
    """A digest decides; nothing is written elsewhere, and without the key nothing is answered."""
    right = digest({"model.bin": lone.data})
    (lone.there / "files").mkdir()
    (lone.there / "files" / "model.bin").write_bytes(lone.data[:-1] + b"?")
    lone.plan(**{"model.bin": (len(lone.data), '"first"')})
    assert await lone.fill(lone.neighbour(), digest=right) == {"model.bin": lone.data}
    assert lone.starts() == [0, PIECE, 2 * PIECE]

    shutil.rmtree(lone.here / "files")
    lone.server.asked.clear()
    strangers = [lone.neighbour(key="1" * 64) for _ in range(3)]
    assert await lone.fill(*strangers, digest=right) == {"model.bin": lone.data}
    assert len(lone.server.asked) > 1

    shutil.rmtree(lone.here / "files")
    lone.plan(**{"../model.bin": (3, "1")})
    with pytest.raises(ArtifactError, match="below the artifact's root"):
        await lone.fill(lone.neighbour(), digest=right)
    path = "/files/../plan.json"
    for fields, status in (({}, 403), ({"authorization": f"Penstock {signature(KEY, path)}"}, 404)):
        client = http.client.HTTPConnection("127.0.0.1", lone.port)
        client.request("GET", path, headers=fields)
        answer = client.getresponse()
        assert (answer.status, answer.read().count(b"boot")) == (status, 0)
        client.close()


async def test_strangers_hold_no_place(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without the key, slow ones or those that wait for it, give way to a pod that has it."""
    monkeypatch.setattr(artifact_port, "UNKNOWN", 60.0)
    (lone.there / "files").mkdir()
    (lone.there / "files" / "model.bin").write_bytes(lone.data)
    lone.plan(**{"model.bin": (len(lone.data), '"first"')})
    with ExitStack() as stack:
        for number in range(artifact_port.MOST):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", lone.port)))
            end = "\r\n" if number % 2 else ""
            stranger.sendall(f"GET /plan HTTP/1.1\r\nauthorization: Penstock 1\r\n{end}".encode())
        right = digest({"model.bin": lone.data})
        assert await lone.fill(lone.neighbour(), digest=right) == {"model.bin": lone.data}
        assert lone.server.asked == []


async def test_files_that_change_at_a_neighbour_are_never_mixed(lone: Lone) -> None:
    """It began again, because the object had changed: what came of the old version goes."""
    lone.plan(**{"model.bin": (len(lone.data), "1")})
    (lone.there / "parts").mkdir()
    (lone.there / "parts" / "model.bin").write_bytes(lone.data[:PIECE])
    second = random.Random(3).randbytes(len(lone.data))
    lone.server.files.clear()

    class Later(Told):
        async def neighbour(self, lost: str | None = None) -> Neighbour | None:
            """Change the files before the second time."""
            if (lone.here / "parts").is_dir():
                lone.plan(**{"model.bin": (len(second), "2")})
                (lone.there / "parts" / "model.bin").unlink()
                (lone.there / "parts" / "model.bin").write_bytes(second)
            return lone.neighbour()

    store = Store(lone.here, source="source", limit=0, clock=time.monotonic)
    await store.fill("https://host.invalid/m", (), guide=Later(digest=digest({"model.bin": second})))
    assert (lone.here / "files" / "model.bin").read_bytes() == second
