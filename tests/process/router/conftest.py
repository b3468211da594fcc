"""Servers in pods' places, and routers, that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from penstock_wire.contract import SIDECAR_PORT
from tests.support.http.router_upstream import Behave, UpstreamServer, echo
from tests.support.processes.ports import free_host
from tests.support.processes.router_process import RouterProcess

MakeUpstream = Callable[..., Awaitable[UpstreamServer]]
MakeRouter = Callable[..., RouterProcess]


@pytest.fixture
async def upstream() -> AsyncIterator[MakeUpstream]:
    """Start servers."""
    servers: list[UpstreamServer] = []

    async def make(behave: Behave = echo, port: int = 0) -> UpstreamServer:
        servers.append(await UpstreamServer(behave).start(port))
        return servers[-1]

    yield make
    for server in servers:
        await server.stop()


@pytest.fixture
async def pod_server() -> AsyncIterator[MakeUpstream]:
    """Start servers as pods are: each has an address of its own, and all have the sidecars' port."""
    servers: list[UpstreamServer] = []

    async def make(behave: Behave = echo) -> UpstreamServer:
        server = UpstreamServer(behave)
        servers.append(await server.start(SIDECAR_PORT, free_host(SIDECAR_PORT)))
        return server

    yield make
    for server in servers:
        await server.stop()


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[MakeRouter]:
    """Make routers (not started)."""
    routers: list[RouterProcess] = []

    def make(*flags: str, env: dict[str, str] | None = None) -> RouterProcess:
        folder = tmp_path / f"router-{len(routers)}"
        folder.mkdir()
        routers.append(RouterProcess(folder, *flags, env=env))
        return routers[-1]

    yield make
    for process in routers:
        await process.stop()
