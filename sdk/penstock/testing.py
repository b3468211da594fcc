"""A served class in a test of yours: its method gets batches as from a sidecar, without a process or a port.

::

    async def test_it_counts_letters():
        async with penstock.testing.serving(Counter) as counter:
            assert await asyncio.gather(*map(counter, ["a", "bb"])) == [1, 2]
            assert counter.batches == [["a", "bb"]]

Items and answers go through JSON, each item is bound to the signature by itself, an exception is raised at
its own caller, a batch that raises is searched for who makes it raise: all as behind a sidecar.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack

from penstock.encoding import decode, encode
from penstock.errors import LoadError
from penstock.in_process.batcher import Batcher
from penstock.in_process.decorator import Changes
from penstock.in_process.settings import MAX_CONCURRENT, BatchSettings
from penstock.item_pieces import Events, ends
from penstock.model import Model
from penstock.response import Response
from penstock.target import Served, target_of
from penstock.threads import in_thread


class Method:
    """A served method. A call with one item gives its answer when awaited; of a generator, a stream.

    Attributes:
        batches: the items of each run of the method.
    """

    def __init__(self, model: Model, settings: BatchSettings) -> None:
        self._model = model
        self._settings = settings
        # As in a sidecar: requests that differ in a parameter share no batch.
        self._batchers: dict[bytes, Batcher] = {}
        self.batches: list[list[Any]] = []

    def __call__(self, item: Any, /, **parameters: Any) -> Any:
        """Send one item.

        Args:
            item: any value with a JSON form.
            parameters: what a client sends beside `instances`.

        Raises:
            ArgumentsError: the parameters do not fit; of an item that does not, when its answer is awaited.
        """
        key = encode(sorted(parameters.items()))
        shared = self._model.shape.bind_shared(_through_json(parameters))
        batcher = self._batchers.get(key)
        if batcher is None:
            code = _Code(self._model, shared, self.batches)
            batcher = self._batchers[key] = Batcher(code, self._settings)
        if self._model.shape.generator:
            return batcher.stream(None, _through_json(item))
        return _awaited(batcher, _through_json(item))


class Target(Method):
    """A served object: called itself it is its default method; the others are attributes."""

    def __init__(self, served: Served, settings: BatchSettings, executor: ThreadPoolExecutor) -> None:
        super().__init__(Model(served, executor), settings)
        self._default = served.default
        self._methods = {
            name: Method(Model(each, executor), settings) for name, each in served.methods.items()
        }

    def __call__(self, item: Any, /, **parameters: Any) -> Any:
        """Send one item to the default method; see `Method`."""
        if not self._default:
            names = ", ".join(sorted(self._methods))
            raise TypeError(f"expected one of the methods {names} to be named, found none")
        return super().__call__(item, **parameters)

    def __getattr__(self, name: str) -> Method:
        methods: dict[str, Method] = self.__dict__.get("_methods", {})
        if name not in methods:
            raise AttributeError(f"expected one of the methods {', '.join(sorted(methods))}, found {name}")
        return methods[name]


@contextlib.asynccontextmanager
async def serving(
    target: Any, /, init_kwargs: Mapping[str, Any] | None = None, **settings: Unpack[Changes]
) -> AsyncIterator[Target]:
    """Construct a target as `python -m penstock.serve` does, and serve it in this process.

    Args:
        target: a class or a function.
        init_kwargs: keyword arguments of the class.
        settings: how it is batched, as of `@penstock.batch`.

    Raises:
        LoadError: it cannot be served.
        Exception: what its constructor, `load`, `warmup` or `close` raised.
    """
    if not isinstance(target, type) and not callable(target):
        raise LoadError(f"expected a class or a function, found {target!r}")
    found = target_of(getattr(target, "__qualname__", repr(target)), target, init_kwargs)
    with ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="model") as executor:
        served = await in_thread(executor, found.build)
        await _hook(served, "load", executor)
        await _hook(served, "warmup", executor)
        try:
            yield Target(served, BatchSettings(**settings), executor)
        finally:
            await _hook(served, "close", executor)


async def _hook(served: Served, name: str, executor: ThreadPoolExecutor) -> None:
    if name in served.hooks:
        result = await in_thread(executor, served.hooks[name])
        if inspect.isawaitable(result):
            await result


class _Code:
    """Runs batches of a served method, and notes them."""

    def __init__(self, model: Model, shared: dict[str, Any], batches: list[list[Any]]) -> None:
        self._model = model
        self._shared = shared
        self._batches = batches

    @property
    def streams(self) -> bool:
        return self._model.shape.generator

    async def answers(self, owner: object, values: Sequence[Any]) -> list[Any]:
        self._batches.append(list(values))
        return await self._model.run(values, self._shared, by_item=True)

    async def pieces(self, owner: object, values: Sequence[Any]) -> AsyncGenerator[Events, None]:
        self._batches.append(list(values))
        async with contextlib.aclosing(self._model.stream(values, self._shared)) as steps:
            async for events in steps:
                yield [(index, piece if ends(piece) else _through_json(piece)) for index, piece in events]


async def _awaited(batcher: Batcher, item: Any) -> Any:
    answer = await batcher.answer(None, item)
    return answer if isinstance(answer, Response) else _through_json(answer)


def _through_json(value: Any) -> Any:
    """A value as the other side of a connection gets it (raises AnswerError where it has no JSON)."""
    (found,) = decode([encode(value)])
    if isinstance(found, Exception):
        raise found
    return found
