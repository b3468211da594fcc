"""A sidecar's process before a model that ends connections behind an answer, without saying so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.http.late_closer import LateCloser
from tests.support.http.stream_peer import scripted
from tests.support.processes.sidecar_process import Pair, got

AT_ONCE = 20


class LatePair(Pair):
    """A sidecar before a server of the test's own loop."""

    def __init__(self, folder: Path, model: LateCloser, *flags: str) -> None:
        super().__init__(folder, *flags)
        self.late = model

    async def start_model(self) -> None:
        """It listens already."""
        self.model = self  # type: ignore[assignment]
        self.model_url = f"http://127.0.0.1:{self.late.port}"

    async def stop(self) -> None:
        """End the sidecar; the test ends the model."""
        await self.session.close()
        await self.sidecar.stop()


@pytest.mark.parametrize("status", [500, 422])
async def test_a_failed_batch_costs_nobody_else_an_answer(tmp_path: Path, status: int) -> None:
    """Behind 500 the connection is not used again. Behind 422 it may be: what dies on it is sent anew."""
    async with scripted(LateCloser(status)) as model:
        pair = LatePair(tmp_path, model)
        await pair.start(maxBatchSize=AT_ONCE, batchWaitTimeoutMs=200)
        try:
            asked = [pair.predict("bad" if number == 7 else number) for number in range(AT_ONCE)]
            replies = await asyncio.gather(*asked)
            later = await asyncio.gather(*[pair.predict(number) for number in range(AT_ONCE)])
        finally:
            await pair.stop()
    bad = replies.pop(7)
    assert (bad.status, bad.document) == (status, {"error": "oh"})
    assert [got(reply) for reply in replies] == [[number] for number in range(AT_ONCE) if number != 7]
    assert [got(reply) for reply in later] == [[number] for number in range(AT_ONCE)]
    assert max(map(len, model.runs)) > 1
    if status == 500:
        assert not model.unread


@pytest.mark.parametrize("protocol", ["instances", "none"])
async def test_what_the_model_did_not_read_is_sent_anew_once(tmp_path: Path, protocol: str) -> None:
    """It goes out on the connection that the model is about to close, and is executed once."""
    async with scripted(LateCloser(422)) as model:
        pair = LatePair(tmp_path, model, f"--protocol={protocol}")
        await pair.start(maxBatchSize=1)
        try:
            for number in range(5):
                assert (await pair.predict("bad")).status == 422
                assert got(await pair.predict(number)) == [number]
        finally:
            await pair.stop()
    assert model.runs == [item for number in range(5) for item in (["bad"], [number])]
    assert model.unread
