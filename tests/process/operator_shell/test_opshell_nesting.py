"""Values nested too deeply for a parser cost their own object alone, wherever they come in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.handlers import Watches
from penstock_operator.kinds import BACKEND, PARENTS, Kind
from penstock_operator.kube.cluster import Credentials, KubernetesCluster
from penstock_operator.nesting import LEVELS
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.operator_process import Process, until
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import backend
from tests.unit.operator_shell.test_opshell_nesting import DEPTHS, depth, spelled

# -- as a real client and kopf bring it in ---------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[TinyApiserver]:
    async with TinyApiserver() as running:
        yield running


def poison(server: TinyApiserver, levels: int) -> None:
    """Three backends, the second with a deep userConfig, and with owners of its fields as deep."""
    server.spelled['"@deep@"'] = spelled(levels)
    server.spelled['{"f:deep": {}}'] = '{"f:a":' * levels + "{}" + "}" * levels
    for name, config in (("a", 1), ("bad", "@deep@"), ("c", 1)):
        server.cluster.user_applies(backend(name, userConfig=config))
    live = server.cluster.objects["ModelBackend", "n", "bad"]
    live["metadata"]["managedFields"].append({"manager": "x", "fieldsV1": {"f:spec": {"f:deep": {}}}})


@pytest.mark.parametrize("levels", DEPTHS)
async def test_lists_and_reads_hold_the_neighbours(
    server: TinyApiserver, cluster: KubernetesCluster, levels: int
) -> None:
    """Whole lists, lists of metadata alone, and a read of the object itself."""
    poison(server, levels)
    for metadata_only in (False, True):
        listed = await cluster.list(BACKEND, keep=dict, metadata_only=metadata_only)
        assert [obj["metadata"]["name"] for obj in listed] == ["a", "bad", "c"]
    alone = await cluster.get(BACKEND, "n", "bad")
    assert alone is not None
    assert depth(alone["spec"]) >= LEVELS


@pytest.mark.parametrize("levels", DEPTHS)
async def test_a_watch_goes_on_behind_a_deep_object(server: TinyApiserver, levels: int) -> None:
    """One watch a kind, opened once: listed, changed and made while it is watched, neighbours and all."""
    poison(server, levels)
    seen: asyncio.Queue[str] = asyncio.Queue()
    starts = 0

    class Sink:
        def is_stored(self, kind: Kind, obj: dict[str, Any]) -> bool:
            return False

        def put(self, obj: dict[str, Any]) -> None:
            if obj["kind"] == "ModelBackend":
                seen.put_nowait(obj["metadata"]["name"])

        def remove(self, obj: dict[str, Any]) -> None:
            pass

    def started() -> None:
        nonlocal starts
        starts += 1

    async def credentials() -> Credentials:
        return Credentials(
            server=server.url, authorization="Bearer t", ca_path=None, insecure=True,
            certificate_path=None, private_key_path=None,
        )  # fmt: skip

    watches = Watches(
        Sink(), credentials=credentials, started=started, kinds=dict.fromkeys(PARENTS), namespace=None,
        log=lambda *_args, **_fields: None,
    )  # fmt: skip
    watches.start()

    async def sees(*names: str) -> None:
        missing = set(names)
        async with asyncio.timeout(SECONDS):
            while missing:
                missing.discard(await seen.get())

    try:
        await sees("a", "bad", "c")
        server.cluster.user_applies(backend("bad", userConfig=["@deep@"]))
        server.cluster.user_applies(backend("d"))
        await sees("bad", "d")
        assert starts == 1
    finally:
        await watches.stop()


async def test_an_operator_starts_and_works_beside_a_deep_object(
    server: TinyApiserver, tmp_path: Path
) -> None:
    """The whole process: it lists, watches, reconciles the others, says what is wrong, and re-lists."""
    poison(server, 3000)
    process = await Process.start(server, tmp_path)
    try:

        def unreadable() -> bool:
            status = server.cluster.find(BACKEND, "n", "bad").get("status") or {}
            return any(entry["reason"] == "Unreadable" for entry in status.get("conditions", ()))

        def has(name: str) -> bool:
            return ("Deployment", "n", f"{name}-backend") in server.cluster.objects

        await until(unreadable, "the deep one is told")
        await until(lambda: has("a") and has("c"), "its neighbours are followed")
        server.cluster.user_applies(backend("later"))
        await until(lambda: has("later"), "events still come")
        server.cluster.user_applies(backend("bad", userConfig={"a": 1}))
        await until(lambda: has("bad"), "it is read again once it is mended")
        assert process.said("watches ended") == 0
        assert process.said("loop failed") == 0
    finally:
        assert await process.end() == 0
