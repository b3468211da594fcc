"""A real sidecar process before a model of its protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.support.processes.sidecar_process import Pair, Program, Reply, until

Told = TypeVar("Told")


class ProtocolPair(Pair):
    """A sidecar before a model of its protocol; with protocol `none`, of `openai`."""

    kind = ""
    program: tuple[str, ...] = ()
    """Another module that runs as the model, and its arguments; set before `start`."""

    async def start_model(self) -> None:
        self.model = Program(*(self.program or ("tests.support.models.protocol_models", self.kind)))
        self.model_url = f"http://{await self.model.start()}"

    async def look(self) -> dict[str, Any]:
        """The runs of the model, and the notices that it got."""
        document: dict[str, Any] = (await self.ask("/-/runs", method="GET", base=self.model_url)).document
        return document

    async def batched(
        self,
        items: int,
        plug: Coroutine[Any, Any, Reply],
        *asks: Coroutine[Any, Any, Reply],
        runs: Sequence[int] | None = None,
    ) -> list[Reply]:
        """The replies to requests that share a batch of so many items: `plug` has the slot till all wait.

        Where there are as many requests as items, they wait in the order given. `runs` are the items of
        what the model runs for them, where that is more than the batch.
        """
        before = len((await self.look())["runs"])
        tasks = await self.together(items, plug, *asks)
        replies = await asyncio.gather(*tasks)
        await self.until_load(0)  # nothing of it is run again behind its answers
        assert (await self.look())["runs"][before + 1 :] == list(runs or [items])
        return replies

    async def together(
        self, items: int, plug: Coroutine[Any, Any, Reply], *asks: Coroutine[Any, Any, Told]
    ) -> list[asyncio.Task[Told]]:
        """Requests that share a batch, as for `batched`, on their way to the model."""
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
        return tasks

    async def resume(self) -> None:
        """Let what is parked go on, and whatever comes there later."""
        assert (await self.ask("/-/resume", base=self.model_url)).status == 200

    async def held(self) -> Any:
        """The predictions that wait at the gate."""
        return (await self.look())["held"]


@contextlib.asynccontextmanager
async def pairs(folder: Path) -> AsyncIterator[Callable[..., Awaitable[ProtocolPair]]]:
    """A function that starts a pair of a protocol, with flags and a policy; all pairs end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            protocol: str, *flags: str, program: tuple[str, ...] = (), **batching: Any
        ) -> ProtocolPair:
            own = folder / protocol
            own.mkdir(exist_ok=True)
            pair = ProtocolPair(own, f"--protocol={protocol}", *flags)
            pair.kind = "openai" if protocol == "none" else protocol
            pair.program = program
            stack.push_async_callback(_stop, pair)
            await pair.start(**batching)
            return pair

        yield start


async def _stop(pair: ProtocolPair) -> None:
    if hasattr(pair, "session"):  # else it did not start
        await pair.stop()
