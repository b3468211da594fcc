"""A program of Ray Serve, as its guides write them; `test_ray.py` runs it there, and ported here."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Adder:
    def __init__(self, number: int) -> None:
        self.number = number

    def add(self, value: int) -> int:
        return value + self.number

    def look_up(self, key: str) -> int:
        return {"a": 1}[key]

    def hello(self) -> str:
        return "hello"

    def both(self, one: int, two: int = 2) -> list[int]:
        return [one, two]

    def fail(self, name: str) -> None:
        raise FileNotFoundError(name)


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=64)
class Batch:
    @serve.batch(max_batch_size=4.0, batch_wait_timeout_s=0.2)
    async def double(self, values: list[int]) -> list[int]:
        if 13 in values:
            raise ValueError("13")
        return [value * 2 for value in values]

    @serve.batch(max_batch_size=2, batch_wait_timeout_s=0.2)
    async def steps(self, values: list[int]) -> AsyncIterator[list[Any]]:
        for step in range(3):
            yield [value + step if step <= value else StopIteration for value in values]

    @serve.batch(max_batch_size=1)
    async def twice(self, values: list[int]) -> list[int]:
        return values + values

    async def __call__(self, value: int) -> int:
        return await self.double(value)

    async def stream(self, value: int) -> AsyncIterator[int]:
        async for piece in self.steps(value):
            yield piece

    async def wrong(self, value: int) -> int:
        return await self.twice(value)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Chain:
    def __init__(self, one: DeploymentHandle, ten: DeploymentHandle, batch: DeploymentHandle) -> None:
        self.one, self.ten, self.batch = one, ten, batch

    async def __call__(self, value: int) -> int:
        first = self.one.add.remote(value)
        return await self.ten.add.remote(first)

    async def caught(self, key: str) -> Any:
        try:
            return await self.one.look_up.remote(key)
        except KeyError:
            return "no such key"

    async def deep(self, name: str) -> None:
        return await self.one.fail.remote(name)

    async def gathered(self, keys: list[str]) -> list[Any]:
        calls = [self.one.look_up.remote(key) for key in keys]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return ["no such key" if isinstance(each, KeyError) else each for each in answers]

    async def batched(self, values: list[int]) -> list[Any]:
        calls = [self.batch.remote(value) for value in values]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return ["bad" if isinstance(each, ValueError) else each for each in answers]

    async def streamed(self, value: int) -> list[int]:
        return [piece async for piece in self.batch.options(stream=True).stream.remote(value)]

    async def wrong(self, value: int) -> str:
        try:
            return await self.batch.wrong.remote(value)
        except Exception as error:
            return str(error)

    async def plain(self) -> list[Any]:
        return [
            await self.one.hello.remote(),
            await self.one.both.remote(1),
            await self.one.both.remote(1, two=5),
        ]


def show(name: str, *answers: Any) -> None:
    print(json.dumps([name, *answers]), flush=True)


ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
chain = serve.run(Chain.bind(Adder.bind(1), Adder.options(name="ten").bind(10), Batch.bind()))
show("chain", chain.remote(5).result())
show("caught", chain.caught.remote("z").result(), chain.caught.remote("a").result())
try:
    chain.deep.remote("x").result()
except FileNotFoundError:
    show("deep", "no such file")
show("gathered", chain.gathered.remote(["a", "z", "a"]).result())
show("batched", chain.batched.remote([1, 2, 3, 4]).result())
show("streamed", chain.streamed.remote(0).result(), chain.streamed.remote(5).result())
show("plain", chain.plain.remote().result())
show("one is bad", chain.batched.remote([1, 13, 3, 4]).result())
show("wrong number", chain.wrong.remote(1).result())
