"""Lists come in pages, of which one is in memory at a time, also where kopf lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import BACKEND, CONFIG_MAP
from penstock_operator.kube.cluster import PAGE, KubernetesCluster
from penstock_operator.reconcile.manager import watched
from tests.support.processes.operator_process import Process, until
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import Harness, backend


@pytest.fixture
async def server() -> AsyncIterator[TinyApiserver]:
    async with TinyApiserver() as running:
        for name in "abcde":
            metadata = {"namespace": "n", "name": name}
            running.cluster.user_applies({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        running.page = 2
        yield running


@pytest.mark.parametrize("before", [2, 4], ids=["second page", "last page"])
async def test_a_list_whose_pages_ran_out_of_time_is_begun_anew(
    server: TinyApiserver, cluster: KubernetesCluster, before: int
) -> None:
    """410 to a further page: what comes back is one whole list, each object once."""
    seen: list[str] = []

    def keep(obj: dict[str, Any]) -> str:
        seen.append(obj["metadata"]["name"])
        if len(seen) == before:
            server.fail[("GET", "configmaps")] = [410]
        return seen[-1]

    assert await cluster.list(CONFIG_MAP, keep=keep) == list("abcde")
    assert seen == [*"abcde"[:before], *"abcde"]


async def test_a_list_that_never_gets_through_is_an_error(
    server: TinyApiserver, cluster: KubernetesCluster
) -> None:
    """410 again and again ends in an error, to be tried later; so does one to the first page."""
    firsts = 0

    def keep(obj: dict[str, Any]) -> None:
        nonlocal firsts
        if obj["metadata"]["name"] == "b":
            firsts += 1
            server.fail[("GET", "configmaps")] = [410]

    with pytest.raises(Unavailable, match="induced"):
        await cluster.list(CONFIG_MAP, keep=keep)
    assert firsts == 4
    server.fail[("GET", "configmaps")] = [410]
    with pytest.raises(Unavailable, match="induced"):
        await cluster.list(CONFIG_MAP, keep=dict)


async def test_an_operator_asks_for_no_list_without_a_limit(server: TinyApiserver, tmp_path: Path) -> None:
    """Ours and kopf's, of every kind."""
    process = await Process.start(server, tmp_path)
    kinds = watched(None)
    try:
        await until(lambda: server.watches == len(kinds) + 1, "all watches")
        for kind in kinds:
            lists = [
                query
                for method, path, query, _ in server.requests
                if method == "GET" and path == kind.path(None) and "watch" not in query
            ]
            assert len(lists) >= 2, kind
            # kopf's asks for one object: it begins where ours does, and leaves that object out.
            assert {query["limit"] for query in lists} == {str(PAGE), "1"}, kind
    finally:
        await process.end()


def test_a_version_that_the_store_has_is_known_and_no_other() -> None:
    """What watches list after a start is handed over only where it is news."""
    harness = Harness()
    live = harness.apply(backend())
    is_stored = harness.manager.is_stored
    assert is_stored(BACKEND, live)
    assert not is_stored(BACKEND, {**live, "metadata": {**live["metadata"], "resourceVersion": "999"}})
    assert not is_stored(BACKEND, {**live, "metadata": {**live["metadata"], "uid": "another"}})
    assert not is_stored(BACKEND, {**live, "metadata": {**live["metadata"], "name": "another"}})
    assert not is_stored(CONFIG_MAP, live)
