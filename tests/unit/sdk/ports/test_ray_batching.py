"""The example in the docstring of Ray Serve's `serve.batch`, ported in the fewest edits."""

from __future__ import annotations

import asyncio

import penstock
from penstock import Request


@penstock.backend
class BatchedDeployment:
    @penstock.batch(max_batch_size=10, batch_wait_timeout=0.1)
    async def batch_handler(self, requests: list[Request]) -> list[str]:
        response_batch = []
        for r in requests:
            name = (await r.json())["name"]
            response_batch.append(f"Hello {name}!")
        self.sizes = [*getattr(self, "sizes", []), len(requests)]
        return response_batch

    def update_batch_params(self, max_batch_size: int, batch_wait_timeout_s: float) -> None:
        self.batch_handler.configure(max_batch_size=max_batch_size, batch_wait_timeout=batch_wait_timeout_s)

    async def __call__(self, request: Request) -> str:
        return await self.batch_handler(request)

    def batches(self) -> list[int]:
        return self.sizes


app = BatchedDeployment.bind()  # type: ignore[attr-defined]


def test_a_batch_handler_beside_call() -> None:
    """6 of its 15 lines changed: the imports, the decorators, and the two setters, which are one call.

    `batches` and what it reads are the test's. A full batch does not wait for the timer.
    """
    with penstock.run(app) as handle:
        handle.update_batch_params(4, 60.0).result()
        calls = [handle(name=str(number)) for number in range(8)]
        assert [call.result() for call in calls] == [f"Hello {number}!" for number in range(8)]
        assert handle.batches().result() == [4, 4]


async def test_in_a_loop_calls_are_gathered_as_there() -> None:
    with penstock.run(app) as handle:
        await handle.update_batch_params(2, 60.0)
        assert await asyncio.gather(handle({"name": "a"}), handle({"name": "b"})) == ["Hello a!", "Hello b!"]
