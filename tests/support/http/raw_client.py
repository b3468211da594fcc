"""A raw client's one exchange with a server on loopback."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.clocks.waiting import SECONDS


async def until_closed(address: tuple[str, int], sent: bytes) -> bytes:
    """Send bytes; returns all that comes back until the server closes, which a test fails without."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), SECONDS)
    except TimeoutError:
        pytest.fail("expected the server to close the connection")
    finally:
        writer.close()
