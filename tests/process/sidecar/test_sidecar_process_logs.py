"""No log line holds anything of a request or an answer, at any level, in any protocol.

`instances` stands in test_sidecar_process_lifecycle.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.processes.protocol_pair import ProtocolPair
from tests.support.processes.sidecar_process import Pair

MARKER = "m4rk3r"
HEADERS = {"x-secret": MARKER, "authorization": MARKER, "cookie": MARKER}
FAULTS = ("", "reset", "cut", "garbage", "short", "nohttp", "stall")


async def check_logs(pair: Pair) -> None:
    """End the sidecar and look at all that it said."""
    pair.signal()
    await pair.sidecar.ended()
    await pair.sidecar.stop()
    assert len(pair.sidecar.log) > 3
    assert [line for line in pair.sidecar.log if MARKER in line] == []
    assert all({"time", "level", "message"} <= json.loads(line).keys() for line in pair.sidecar.log)


@contextlib.asynccontextmanager
async def running(pair: Pair, **batching: Any) -> AsyncIterator[Pair]:
    try:
        yield await pair.start(**batching)
    finally:
        await pair.stop()


BODIES: dict[str, tuple[str, Any]] = {
    "v2": (
        "/v2/models/double/infer",
        {
            "id": MARKER,
            "inputs": [{"name": MARKER, "shape": [1, 1], "datatype": "FP32", "data": [1]}],
            "parameters": {MARKER: MARKER},
        },
    ),
    "openai": ("/v1/embeddings", {"model": MARKER, "input": MARKER}),
}


@pytest.mark.parametrize("kind", list(BODIES))
async def test_batches_that_go_well_or_do_not(tmp_path: Path, kind: str) -> None:
    """Answers that are right, lost, wrong or late; requests that cannot be read; clients that leave."""
    pair = ProtocolPair(tmp_path, f"--protocol={kind}", "--log-level=debug")
    pair.kind = kind
    path, body = BODIES[kind]
    async with running(pair, defaultTimeoutMs=1000):
        for fault in FAULTS:
            target = f"{path}?q={MARKER}" + (f"&fault={fault}" if fault else "")
            await asyncio.gather(*[pair.ask(target, json=body, headers=HEADERS) for _ in range(3)])
        for text in (f'{{"{MARKER}', f'{{"inputs": {{"{MARKER}": 1}}}}', MARKER):
            await pair.ask(path, data=text.encode(), headers={**HEADERS, "content-type": "application/json"})
        await pair.ask(f"/{MARKER}", method="PATCH", headers=HEADERS)
        await check_logs(pair)


async def test_item_streams(tmp_path: Path) -> None:
    """Values, errors of the model's, a line that cannot be read, a client that leaves or does not read."""
    pair = ProtocolPair(tmp_path, "--protocol=instances", "--log-level=debug")
    pair.kind = "instances"
    streaming = {**HEADERS, "accept": "application/x-ndjson"}
    async with running(pair):
        for lines in (
            f'{{"i": 0, "data": "{MARKER}"}}\n{{"i": 0, "end": true}}\n{{"i": 1, "end": true}}\n',
            f'{{"i": 0, "error": {{"detail": "{MARKER}"}}}}\n{{"i": 1, "data": 1}}\n{{"{MARKER}',
            f'{{"i": 0, "status": 200, "headers": {{"{MARKER}": "{MARKER}"}}}}\n{MARKER}\n',
            f'{{"i": {MARKER}}}\n',
        ):
            script = {"type": "application/vnd.penstock.item-streams+json", "body": lines}
            await pair.ask("/-/script", base=pair.model_url, json=script)
            asks = [pair.predict([1], path=f"/{MARKER}", headers=streaming) for _ in range(2)]
            await pair.batched(2, pair.predict([1]), *asks)
        body = {"instances": [{"x": 10**9, "m": MARKER}]}
        both = [pair.session.post(pair.data + "/stream", json=body, headers=streaming) for _ in range(2)]
        for answer in await asyncio.gather(*both):
            await answer.content.readline()
            answer.close()
        await pair.until_load(0)
        await check_logs(pair)


async def test_what_passes_through(tmp_path: Path) -> None:
    """Requests, streams that break off, WebSocket messages and the reasons of their ends."""
    pair = Pair(tmp_path, "--protocol=none", "--log-level=debug")
    pair.model_program = "tests.support.models.stream_model"
    async with running(pair):
        await pair.ask(f"/show?{MARKER}", method="PATCH", data=MARKER.encode(), headers=HEADERS)
        await pair.ask(f"/sink?{MARKER}", data=MARKER.encode() * 100_000, headers=HEADERS)
        await pair.ask(f"/hang?{MARKER}", method="GET", headers={**HEADERS, "x-penstock-timeout-ms": "200"})
        await pair.ask("/-/go", base=pair.model_url)
        with pytest.raises(aiohttp.ClientPayloadError):
            await pair.ask(f"/cut?{MARKER}", method="GET", headers=HEADERS)
        async with pair.session.ws_connect(f"{pair.data}/ws?{MARKER}", headers=HEADERS) as tunnel:
            await tunnel.send_str(MARKER)
            assert await tunnel.receive_str() == MARKER
            await tunnel.close(message=MARKER.encode())
        lost = await pair.session.ws_connect(f"{pair.data}/ws?{MARKER}", headers=HEADERS)
        await lost.send_str(MARKER)
        await pair.model.stop()
        await lost.receive()
        await lost.close()
        await pair.ask(f"/show?{MARKER}", method="PATCH", data=MARKER.encode(), headers=HEADERS)
        await check_logs(pair)
