"""The thread that watches outlives whatever ends kopf in it."""

from __future__ import annotations

import asyncio
import contextlib
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
