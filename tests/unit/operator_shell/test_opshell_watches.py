"""The thread that watches outlives whatever ends kopf in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_operator.handlers import Watches
from penstock_operator.kinds import Kind


class _Nobody:
    def knows(self, kind: Kind, obj: dict[str, Any]) -> bool:
        return False

    def put(self, obj: dict[str, Any]) -> None:
        pass

    def remove(self, obj: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    "error", [RuntimeError("induced"), asyncio.CancelledError()], ids=["error", "cancel"]
)
async def test_watches_that_ended_are_started_again(error: BaseException) -> None:
    """Also when kopf, which cancels tasks of its loop as it ends, cancelled the one that runs it."""
    again, loop = asyncio.Event(), asyncio.get_running_loop()

    class Ending(Watches):
        starts = 0

        async def _watch(self) -> None:
            self.starts += 1
            if self.starts == 1:
                raise error
            loop.call_soon_threadsafe(again.set)

    async def nobody() -> Any:
        raise AssertionError("not asked")

    watches = Ending(
        _Nobody(), credentials=nobody, started=lambda: None, child_selector="a=b", namespace=None,
        log=lambda *_args, **_fields: None,
    )  # fmt: skip
    watches.start()
    try:
        await asyncio.wait_for(again.wait(), 20)
        assert watches.alive
    finally:
        await watches.stop()
    assert not watches.alive
