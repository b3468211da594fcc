"""The thread that watches outlives whatever ends kopf in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import kopf
import pytest

from penstock_operator import handlers
from penstock_operator.handlers import Watches
from penstock_operator.kinds import CONFIG_MAP, PARENTS, WATCHED_CHILDREN, Kind
from penstock_operator.kube.cluster import Credentials
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.tiny_apiserver import TinyApiserver

WATCHED: dict[Kind, str | None] = dict.fromkeys((*PARENTS, *WATCHED_CHILDREN), "a=b")
KINDS = len(WATCHED)


class _Nobody:
    def is_stored(self, kind: Kind, obj: dict[str, Any]) -> bool:
        return False

    def put(self, obj: dict[str, Any]) -> None:
        pass

    def remove(self, obj: dict[str, Any]) -> None:
        pass


def anybody(server: TinyApiserver) -> Credentials:
    return Credentials(
        server=server.url, authorization="Bearer t", ca_path=None, insecure=True,
        certificate_path=None, private_key_path=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "error", [RuntimeError("induced"), asyncio.CancelledError()], ids=["error", "cancel"]
)
async def test_watches_that_ended_are_started_again(error: BaseException) -> None:
    """Also when kopf, which cancels tasks of its loop as it ends, cancelled the one that runs it."""
    again, loop = asyncio.Event(), asyncio.get_running_loop()

    class Ending(Watches):
        starts = 0

        async def _watch(self) -> None:
            self.starts += 1
            if self.starts == 1:
                raise error
            loop.call_soon_threadsafe(again.set)

    async def nobody() -> Any:
        raise AssertionError("not asked")

    watches = Ending(
        _Nobody(), credentials=nobody, started=lambda: None, kinds=WATCHED, namespace=None,
        log=lambda *_args, **_fields: None,
    )  # fmt: skip
    watches.start()
    try:
        await asyncio.wait_for(again.wait(), SECONDS)
        assert watches.alive
    finally:
        await watches.stop()
    assert not watches.alive


async def test_kopf_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end waits for all of its tasks; one that ignores its cancellation must not end all watching."""
    monkeypatch.setattr(handlers, "ENDING_SECONDS", 0.3)
    loop, again = asyncio.get_running_loop(), asyncio.Event()
    run_tasks, runs, logins = kopf.run_tasks, 0, 0
    messages: list[str] = []

    async def run(*roots: Any, **more: Any) -> None:
        nonlocal runs
        runs += 1
        while runs == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        await run_tasks(*roots, **more)

    monkeypatch.setattr(handlers.kopf, "run_tasks", run)
    async with TinyApiserver() as server:

        async def credentials() -> Credentials:
            nonlocal logins
            logins += 1
            if logins == 2:
                loop.call_soon_threadsafe(again.set)
            return anybody(server)

        watches = Watches(
            _Nobody(), credentials=credentials, started=lambda: None, kinds=WATCHED, namespace=None,
            log=lambda _message, **fields: messages.append(str(fields.get("error"))),
        )  # fmt: skip
        watches.start()
        try:
            async with asyncio.timeout(SECONDS):
                while server.watches < KINDS:  # noqa: ASYNC110 - another thread opens them
                    await asyncio.sleep(0.05)
                server.fail[("GET", "modelbackends")] = [403] * 3  # it begins to end
                server.break_watches()
                await again.wait()
                opened = server.watches
                while server.watches < opened + KINDS:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.05)
            assert any("left behind" in message for message in messages), messages
            assert watches.alive
        finally:
            await watches.stop()


async def test_a_login_that_fails_is_tried_again_soon() -> None:
    """A token that is just being replaced must not leave us without watches for kopf's minute."""
    assert handlers.LOGIN_BACKOFF < 5
    logins = 0
    async with TinyApiserver() as server:

        async def credentials() -> Credentials:
            nonlocal logins
            logins += 1
            if logins == 1:
                raise OSError("no token yet")
            return anybody(server)

        watches = Watches(
            _Nobody(), credentials=credentials, started=lambda: None, kinds=WATCHED, namespace=None,
            log=lambda *_args, **_fields: None,
        )  # fmt: skip
        watches.start()
        try:
            async with asyncio.timeout(SECONDS):
                while server.watches < KINDS:  # noqa: ASYNC110 - another thread opens them
                    await asyncio.sleep(0.05)
        finally:
            await watches.stop()
    assert logins == 2


async def test_a_watch_that_stalls_is_opened_again_and_tells_what_was_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child that is deleted meanwhile stays away for as long as a watch may be silent, no longer."""
    monkeypatch.setattr(handlers, "SILENT_SECONDS", 0.5)
    gone = asyncio.Event()

    class Sink(_Nobody):
        def remove(self, obj: dict[str, Any]) -> None:
            assert obj["metadata"]["name"] == "c"
            gone.set()

    async with TinyApiserver() as server:
        metadata = {"namespace": "n", "name": "c", "labels": {"a": "b"}}
        await server.cluster.apply(
            CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}
        )

        def watched() -> bool:
            asked = [query for _, path, query, _ in server.requests if path.endswith("/configmaps")]
            return any("watch" in query for query in asked)

        async def credentials() -> Credentials:
            return anybody(server)

        watches = Watches(
            Sink(), credentials=credentials, started=lambda: None, kinds=WATCHED, namespace=None,
            log=lambda *_args, **_fields: None,
        )  # fmt: skip
        watches.start()
        try:
            async with asyncio.timeout(SECONDS):
                while not watched():  # noqa: ASYNC110 - another thread opens it
                    await asyncio.sleep(0.05)
                server.stall_watches()
                await server.cluster.delete(CONFIG_MAP, "n", "c")
                await gone.wait()
        finally:
            await watches.stop()


class _Someone(_Nobody):
    """A sink that has some versions, and notes what it is given."""

    def __init__(self, *stored: str) -> None:
        self.stored = stored
        self.seen: asyncio.Queue[str] = asyncio.Queue()

    def is_stored(self, kind: Kind, obj: dict[str, Any]) -> bool:
        return obj["metadata"]["resourceVersion"] in self.stored

    def put(self, obj: dict[str, Any]) -> None:
        self.seen.put_nowait(f"{obj['metadata']['name']} {obj['metadata']['labels']['v']}")

    def remove(self, obj: dict[str, Any]) -> None:
        self.seen.put_nowait(f"-{obj['metadata']['name']}")


async def write(server: TinyApiserver, name: str, value: str) -> str:
    """Write a ConfigMap that is watched; returns its version."""
    metadata = {"namespace": "n", "name": name, "labels": {"a": "b", "v": value}}
    live = await server.cluster.apply(
        CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    )
    return str(live["metadata"]["resourceVersion"])


@contextlib.asynccontextmanager
async def watching(
    server: TinyApiserver, sink: _Someone, relists: Callable[[], None], listed: str = ""
) -> AsyncIterator[None]:
    async def credentials() -> Credentials:
        return anybody(server)

    watches = Watches(
        sink, credentials=credentials, relists=relists, kinds={CONFIG_MAP: "a=b"},
        listed={CONFIG_MAP: listed}, namespace=None, log=lambda *_args, **_fields: None,
    )  # fmt: skip
    watches.start()
    try:
        yield
    finally:
        await watches.stop()


async def test_a_watch_begins_at_the_list_that_the_sink_has() -> None:
    """What was there is not shown again, what was changed or deleted since is; nothing is listed anew."""
    relists: list[None] = []
    async with TinyApiserver() as server:
        await write(server, "old", "1")
        await write(server, "gone", "1")
        listed = await write(server, "changed", "1")
        await write(server, "changed", "2")
        await server.cluster.delete(CONFIG_MAP, "n", "gone")
        sink = _Someone()
        async with asyncio.timeout(SECONDS), watching(server, sink, lambda: relists.append(None), listed):
            assert {await sink.seen.get(), await sink.seen.get()} == {"changed 2", "-gone"}
            await write(server, "new", "1")
            assert await sink.seen.get() == "new 1"
    assert relists == []
    assert sink.seen.empty()


async def test_a_list_that_is_lost_is_made_anew_without_what_the_sink_has() -> None:
    """And deleted objects are looked for, as no list shows them."""
    relisted = asyncio.Event()
    async with TinyApiserver() as server:
        sink = _Someone(await write(server, "a", "1"))
        listed = await write(server, "b", "1")
        async with asyncio.timeout(SECONDS), watching(server, sink, relisted.set, listed):
            while not server._streams:  # noqa: ASYNC110 - another thread opens it
                await asyncio.sleep(0.05)
            assert not relisted.is_set()
            (queue,) = server._streams
            queue.put_nowait(b'{"type": "ERROR", "object": {"kind": "Status", "code": 410}}\n')
            assert await sink.seen.get() == "b 1"
            await relisted.wait()
    assert sink.seen.empty()


async def test_an_event_of_a_version_that_the_sink_has_is_for_nobody() -> None:
    """The echo of our own write; the watch goes on from its version all the same."""
    async with TinyApiserver() as server:
        listed = await write(server, "a", "1")
        sink = _Someone(*(str(int(listed) + 1 + number) for number in range(2)))
        async with asyncio.timeout(SECONDS), watching(server, sink, lambda: None, listed):
            await write(server, "a", "2")
            ours = await write(server, "a", "3")
            assert ours in sink.stored
            await write(server, "a", "4")
            assert await sink.seen.get() == "a 4"
    assert sink.seen.empty()


def test_a_line_of_a_watch_is_left_as_it_is_unless_it_is_known() -> None:
    """Also one that is cut, and one without an object; a deletion is always news."""
    about = {"metadata": {"namespace": "n", "name": "a", "uid": "u", "resourceVersion": "7"}, "data": {}}
    line = {event: json.dumps({"type": event, "object": about}).encode() for event in ("ADDED", "DELETED")}
    error = b'{"type": "ERROR", "object": {"kind": "Status", "metadata": {}, "code": 410}}'
    bookmark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}'

    def never(_obj: dict[str, Any]) -> bool:
        return False

    for each in (b"", b'{"type": "MODIF', error, bookmark, line["DELETED"]):
        assert handlers._event(each, never) == each
    assert handlers._event(line["ADDED"], never) == bookmark
    assert handlers._event(line["ADDED"], lambda _obj: True) == line["ADDED"]


async def test_kopf_keeps_nothing_of_an_object() -> None:
    """It would keep a kilobyte of each that it has ever seen."""
    memories = handlers._NoMemories()
    assert await memories.recall({"metadata": {"uid": "a"}}, noticed_by_listing=True) is not None
    assert list(memories.iter_all_memories()) == []
