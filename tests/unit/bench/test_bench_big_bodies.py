"""The bench of bodies of 1 GB: its server and its clients, with shorter ones."""

from __future__ import annotations

import asyncio
import os

import pytest

from bench import big_bodies


async def test_each_byte_of_a_body_is_counted_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big_bodies, "BYTES", 3 * big_bodies.PIECE + 7)
    server = await asyncio.start_server(big_bodies.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for carry in (big_bodies.up, big_bodies.down):
        assert await asyncio.to_thread(carry, port) == big_bodies.BYTES
    server.close()
    assert big_bodies.memory(os.getpid(), "VmHWM") >= big_bodies.memory(os.getpid(), "VmRSS") > 0
