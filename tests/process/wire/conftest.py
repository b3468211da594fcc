"""Fixtures of the tests of the upstream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from penstock_wire.http.client.pool import H1Upstream
from tests.support.http.stream_peer import Scripted, scripted


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[H1Upstream]:
    """An upstream, closed in the end."""
    upstream = H1Upstream()
    yield upstream
    await upstream.close()
    await asyncio.sleep(0)


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Scripted]:
    """A server that plays what the test says."""
    async with scripted(Scripted()) as peer:
        yield peer
