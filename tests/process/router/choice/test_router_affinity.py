"""Requests with one key: where they go, what moves them, and what does not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

from tests.support.clocks.waiting import SECONDS
from tests.support.http.stream_peer import Scripted, Wire, says, scripted
from tests.support.processes.router_process import RouterProcess, backend, endpoint
from tests.unit.router.choice.test_router_affinity import HASHED, shares

_PROCESS = """
from penstock_router.choice.affinity import Hashed, WeightedChoice
choice = WeightedChoice()
print(*(choice.of(Hashed(b"user-%d" % n), {"a": 9, "b": 4, "c": 1}) for n in range(200)), sep="")
"""


def test_every_process_chooses_alike() -> None:
    """Whatever seed Python's own hashes have; and as it did when this was written."""
    said = {
        subprocess.run(
            [sys.executable, "-c", _PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout.decode().strip()
        for seed in ("0", "1", "2")
    }  # fmt: skip
    here = "".join(map(str, shares({"c": 1, "b": 4, "a": 9}, HASHED[:200])))
    assert said == {here}
    assert here[:60] == "bbabababaaacaaaaaaaaaabaababababcaaaabaabaaaababaaabaaababaa"


async def test_a_client_whose_first_request_is_a_websocket_gets_a_cookie_too(router: Any) -> None:
    """With the switch, its only answer: without it, each of its WebSockets would go to any pod."""
    switch = says(b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", then=Wire.gone)
    async with scripted(Scripted()) as server:
        server.scripts = [switch]
        process: RouterProcess = await router().start(
            endpoint(
                "e", backend("b", f"127.0.0.1:{server.port}"), sessionAffinity={"cookie": {"name": "pod"}}
            )
        )
        host, _, port = process.data.removeprefix("http://").partition(":")
        for cookie, expected in ((b"", 1), (b"cookie: pod=a\r\n", 0)):
            reader, writer = await asyncio.open_connection(host, int(port))
            ask = b"GET /e/ws HTTP/1.1\r\nhost: a\r\n%bconnection: upgrade\r\nupgrade: x\r\n\r\n"
            writer.write(ask % cookie)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
            writer.close()
            assert head.startswith(b"HTTP/1.1 101 ")
            assert head.count(b"\r\nset-cookie: pod=") == expected, head
        await process.stop()
