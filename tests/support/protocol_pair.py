"""A real sidecar process before a model of its protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.support.sidecar_process import Pair, Program, Reply, until


class ProtocolPair(Pair):
    """A sidecar before a model of its protocol; with protocol `none`, of `openai`."""

    kind = ""

    async def start_model(self) -> None:
        self.model = Program("tests.support.protocol_models", self.kind)
        self.model_url = f"http://{await self.model.start()}"

    async def look(self) -> dict[str, Any]:
        """What the model ran, and what it was told."""
        found: dict[str, Any] = (await self.ask("/-/runs", method="GET", base=self.model_url)).document
        return found

    async def batched(
        self, items: int, plug: Coroutine[Any, Any, Reply], *asks: Coroutine[Any, Any, Reply]
    ) -> list[Reply]:
        """The replies to requests that share a batch of so many items: `plug` has the slot till all wait.

        Where there are as many requests as items, they wait in the order given.
        """
        before = len((await self.look())["runs"])
        await self.ask("/-/gate?open=0", base=self.model_url)
        first = asyncio.create_task(plug)
        await until(self.held)
        tasks = []
        for ask in asks:
            tasks.append(asyncio.create_task(ask))
            if items == len(asks):
                await self.until_state(queued=len(tasks))
        await self.until_state(queued=items)
        await self.ask("/-/gate?open=1", base=self.model_url)
        await first
        replies = await asyncio.gather(*tasks)
        assert (await self.look())["runs"][before + 1 :] == [items]
        return replies

    async def held(self) -> Any:
        """What the gate keeps waiting."""
        return (await self.look())["held"]


@contextlib.asynccontextmanager
async def pairs(folder: Path) -> AsyncIterator[Callable[..., Awaitable[ProtocolPair]]]:
    """What starts a pair of a protocol under a policy; all of them are stopped in the end.

    Args:
        folder: where their files go.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def start(protocol: str, **batching: Any) -> ProtocolPair:
            own = folder / protocol
            own.mkdir(exist_ok=True)
            pair = ProtocolPair(own, f"--protocol={protocol}")
            pair.kind = "openai" if protocol == "none" else protocol
            stack.push_async_callback(_stop, pair)
            await pair.start(**batching)
            return pair

        yield start


async def _stop(pair: ProtocolPair) -> None:
    if hasattr(pair, "session"):  # else it did not start
        await pair.stop()
