"""OpenAI's own client for Azure, whose key comes in `api-key`, through a real sidecar."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from bench import venvs
from tests.support.processes.foreign_servers import SERVERS, ForeignPair

HERE = Path(__file__).parent
COUNT = 40
KEYS = ("k", "key", "another")
SECONDS = 120


async def test_callers_with_keys_of_their_own_are_known_to_the_model_and_share_no_batch(
    tmp_path: Path,
) -> None:
    """Each answer is the caller's own, no batch goes without its key, and no search calls the model twice."""
    python = await asyncio.to_thread(venvs.ensure, "openai", lock=HERE / "requirements-openai.txt")
    pair = ForeignPair(
        tmp_path, next(server for server in SERVERS if server.name == "uvicorn, h11"), "--protocol=openai"
    )
    try:
        await pair.start(maxBatchSize=16)
        process = await asyncio.create_subprocess_exec(
            str(python),
            str(HERE / "openai" / "ask.py"),
            pair.data,
            str(COUNT),
            *KEYS,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode == 0, err.decode()[-2000:]
        calls = (await pair.ask("/calls", method="GET", base=pair.model_url)).document
    finally:
        await pair.stop()
    assert json.loads(out) == {key: [[n, len(key)] for n in range(1, COUNT + 1)] for key in KEYS}
    assert sum(calls) == COUNT * len(KEYS)
    assert len(calls) < COUNT, "they share batches"
