"""Serves a class in your own test: its method gets batches as from a sidecar, without a process or a port.

::

    async def test_it_counts_letters():
        async with penstock.testing.serving(Counter) as counter:
            assert await asyncio.gather(*map(counter, ["a", "bb"])) == [1, 2]
            assert counter.batches == [["a", "bb"]]

As behind a sidecar, items and answers go through JSON, each item is bound to the signature by itself, an
exception is raised at its own caller, and a batch that raises is searched for the item that causes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, Unpack

from penstock import call_context
from penstock.call_context import Context
from penstock.composition import Application, Node, Reference
from penstock.encoding import decode, encode
from penstock.errors import LoadError
from penstock.handles.handle import Handle
from penstock.handles.place import add_local, remove_local
from penstock.handles.served import Method as Sendable
from penstock.handles.served import ServedHere
from penstock.in_process.batcher import Batcher
from penstock.in_process.decorator import Changes
from penstock.in_process.settings import MAX_CONCURRENT, BatchSettings, changed
from penstock.item_pieces import Events, ends
from penstock.model import Model
from penstock.response import Response
from penstock.target import Served, target_of
from penstock.target import Target as Built
from penstock.threads import in_thread
from penstock.user_code import USER_CODE
from penstock_wire.call_chain import stands_alone
from penstock_wire.headers import CALL_CHAIN, MODEL_ID, Headers, is_key_field


class Method:
    """A served method; a call with one item returns an awaitable answer or, of a generator, a stream.

    Attributes:
        batches: the items of each run of the method.
    """

    def __init__(self, model: Model, settings: BatchSettings, gate: _Gate) -> None:
        self._gate = gate
        self._fields: Headers = ()
        self._timeout: float | None = None
        self._model = model
        self._settings = settings
        # As in a sidecar, requests that differ in a parameter do not share a batch.
        self._batchers: dict[tuple[bytes, Headers], Batcher] = {}
        self.batches: list[list[Any]] = []

    def __call__(self, item: Any, /, **parameters: Any) -> Any:
        """Send one item.

        Args:
            item: any value with a JSON form.
            parameters: the members beside `instances`.

        Raises:
            ArgumentsError: the parameters do not fit; for an item, raised when its answer is awaited.
        """
        return self.send(_through_json(item), _through_json(parameters))

    def options(
        self,
        *,
        model_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Return the same method with other options for its requests; options that are not given stay.

        Args:
            model_id: the model that they are for, as in `x-penstock-model-id`.
            headers: header fields to add, as in `context().headers`.
            timeout: seconds after which a call raises `DeadlineExceeded`; sets `context().seconds_left`.
        """
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._fields}
        fields |= {name.lower(): value for name, value in (headers or {}).items()}
        if model_id is not None:
            fields[MODEL_ID.decode()] = model_id
        made = copy.copy(self)
        vars(made)["_fields"] = tuple((name.encode(), value.encode()) for name, value in fields.items())
        if timeout is not None:
            vars(made)["_timeout"] = _seconds(timeout)
        return made

    @property
    def streams(self) -> bool:
        """Whether the method is a generator."""
        return self._model.shape.generator

    def send(self, item: Any, members: Mapping[str, Any]) -> Any:
        """Send one item that has been through JSON already.

        Args:
            item: the item.
            members: the members beside `instances`.
        """
        context = call_context.current()
        if self._fields or self._timeout is not None:
            context = Context(self._fields)
            if self._timeout is not None:
                context.deadline = time.monotonic() + self._timeout
        fields = () if context is None else tuple(sorted(filter(_of_key, context.fields)))
        key = (encode(sorted(members.items())), fields)
        shared = self._model.shape.bind_shared(members)
        batcher = self._batchers.get(key)
        if batcher is None:
            code = _Code(self._model, shared, self.batches, self._settings.max_batch_size, self._gate)
            batcher = self._batchers[key] = Batcher(code, self._settings)
        if self._model.shape.generator:
            return batcher.stream(None, (item, context), None if context is None else context.deadline)
        return _awaited(batcher, item, context)


class Target(Method):
    """A served object: a call of it is a call of its default method; all methods are attributes."""

    def __init__(self, served: Served, settings: BatchSettings, executor: ThreadPoolExecutor) -> None:
        super().__init__(Model(served, executor), settings, gate := _Gate())
        self._default = served.default
        self._methods = {
            name: Method(Model(each, executor), settings, gate) for name, each in served.methods.items()
        }

    def options(
        self,
        *,
        model_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Self:
        """See `Method.options`; applies to all methods."""
        made = super().options(model_id=model_id, headers=headers, timeout=timeout)
        methods = {
            name: each.options(model_id=model_id, headers=headers, timeout=timeout)
            for name, each in self._methods.items()
        }
        vars(made)["_methods"] = methods
        return made

    def method(self, name: str) -> Method:
        """Return a method by its name, as in `x-penstock-method`, even if a member here has that name.

        Raises:
            AttributeError: no method has this name.
        """
        if name not in self._methods:
            names = ", ".join(sorted(self._methods))
            raise AttributeError(f"expected one of the methods {names}, found {name}")
        return self._methods[name]

    async def reconfigure(self, config: Any) -> None:
        """Give the object a userConfig while no batch runs; calls meanwhile wait.

        Args:
            config: any JSON value.

        Raises:
            TypeError: the class has no method `reconfigure`.
            Exception: whatever that raised; the object stays as that left it.
        """
        async with self._gate.closed():
            await self._model.reconfigure(_through_json(config))

    def by_name(self) -> dict[str | None, Sendable]:
        """All methods by name; the default one also by None."""
        methods: dict[str | None, Sendable] = dict(self._methods.items())
        if self._default:
            methods[None] = self
        return methods

    def __call__(self, item: Any, /, **parameters: Any) -> Any:
        """Send one item to the default method; see `Method`."""
        if not self._default:
            names = ", ".join(sorted(self._methods))
            raise TypeError(f"expected one of the methods {names} to be named, found none")
        return super().__call__(item, **parameters)

    def __getattr__(self, name: str) -> Method:
        if name.startswith("__") or "_methods" not in self.__dict__:
            raise AttributeError(name)
        return self.method(name)


@contextlib.asynccontextmanager
async def serving(
    target: Any, /, init_kwargs: Mapping[str, Any] | None = None, **settings: Unpack[Changes]
) -> AsyncIterator[Target]:
    """Construct a target as `python -m penstock.serve` does, and serve it in this process.

    For an application (`.bind`), all nodes are served and the root is yielded; meanwhile, handles with the
    nodes' names call them without HTTP.

    Args:
        target: a class, a function or an application.
        init_kwargs: keyword arguments of the class.
        settings: batch settings, as for `@penstock.batch`; for all nodes of an application, but
            `maxBatchSize` and `maxConcurrentBatches` in a node's `spec` take precedence.

    Raises:
        LoadError: it cannot be served.
        CompositionError: the bound arguments do not make an application.
        Exception: whatever its constructor, `load`, `warmup` or `close` raised.
    """
    async with contextlib.AsyncExitStack() as stack:
        if not isinstance(target, Application):
            if not isinstance(target, type) and not callable(target):
                raise LoadError(f"expected a class, a function or an application, found {target!r}")
            name = getattr(target, "__qualname__", repr(target))
            built = target_of(name, target, init_kwargs)
            yield await _begin(stack, built, BatchSettings(**settings))
            return
        if init_kwargs:
            raise LoadError("expected no init kwargs for an application, whose nodes have theirs, found some")
        served: Target | None = None
        for node in target.nodes:
            built = target_of(node.name, node.kind, node.resolved(_handle))
            served = await _begin(stack, built, _settings(node, settings))
            add_local(node.name, ServedHere(served.by_name()))
            stack.callback(remove_local, node.name)
        if served is not None:
            yield served


async def _begin(stack: contextlib.AsyncExitStack, built: Built, settings: BatchSettings) -> Target:
    """Construct a target, and let the stack close it."""
    executor = stack.enter_context(ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="model"))
    served = await in_thread(executor, built.build)
    await _hook(served, "load", executor)
    await _hook(served, "warmup", executor)
    stack.push_async_callback(_hook, served, "close", executor)
    return Target(served, settings, executor)


def _of_key(field: tuple[bytes, bytes]) -> bool:
    """Whether a header field is part of the key, as in a sidecar."""
    return is_key_field(field[0]) or (field[0] == CALL_CHAIN and stands_alone(field[1]))


def _handle(reference: Reference) -> Handle:
    return Handle(reference.endpoint, reference.namespace, missing_ok=True)


def _settings(node: Node, settings: Changes) -> BatchSettings:
    batching = node.spec.get("batching", {})
    names = {"maxBatchSize": "max_batch_size", "maxConcurrentBatches": "max_concurrent_batches"}
    own = {name: batching[field] for field, name in names.items() if field in batching}
    return changed(BatchSettings(**settings), own)


async def _hook(served: Served, name: str, executor: ThreadPoolExecutor) -> None:
    if name in served.hooks:
        result = await in_thread(executor, served.hooks[name])
        if inspect.isawaitable(result):
            with USER_CODE:
                await result


class _Gate:
    """A gate for batches: while it is closed, none are inside, and new ones wait."""

    def __init__(self) -> None:
        self._one_closes = asyncio.Lock()
        self._opened, self._empty = asyncio.Event(), asyncio.Event()
        self._opened.set()
        self._empty.set()
        self._inside = 0

    @contextlib.asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        while not self._opened.is_set():
            await self._opened.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        async with self._one_closes:
            self._opened.clear()
            try:
                await self._empty.wait()
                yield
            finally:
                self._opened.set()


class _Code:
    """Runs batches of a served method, and records them."""

    def __init__(
        self, model: Model, shared: dict[str, Any], batches: list[list[Any]], limit: int, gate: _Gate
    ) -> None:
        self._gate = gate
        self._model = model
        self._limit = limit
        self._shared = shared
        self._batches = batches

    @property
    def streams(self) -> bool:
        return self._model.shape.generator

    async def answers(self, owner: object, values: Sequence[Any]) -> list[Any]:
        async with self._gate.entered():
            items, context = self._begin(values)
            try:
                return await self._model.run(items, copy.deepcopy(self._shared))
            except asyncio.CancelledError:
                context.cancel_calls()
                raise
            finally:
                context.end()

    async def pieces(self, owner: object, values: Sequence[Any]) -> AsyncGenerator[Events, None]:
        async with self._gate.entered():
            items, context = self._begin(values)
            shared = copy.deepcopy(self._shared)
            try:
                async with contextlib.aclosing(self._model.stream(items, shared)) as steps:
                    async for events in steps:
                        yield [(index, _sent(piece)) for index, piece in events]
            except (asyncio.CancelledError, GeneratorExit):
                context.cancel_calls()
                raise
            finally:
                context.end()

    def _begin(self, values: Sequence[tuple[Any, Context | None]]) -> tuple[list[Any], Context]:
        """Record a batch, and set its context; the method may change its items, as each run is sent anew."""
        items = [item for item, _ in values]
        self._batches.append(items)
        contexts = [context or Context() for _, context in values]
        context = call_context.opened(call_context.of_batch(contexts, self._limit))
        call_context.resume(context)
        return copy.deepcopy(items), context


def _sent(piece: Any) -> Any:
    """Convert a piece to the client's value; bytes are sent as they are."""
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    return piece if ends(piece) else _through_json(piece)


async def _awaited(batcher: Batcher, item: Any, context: Context | None) -> Any:
    answer = await batcher.answer(None, (item, context), None if context is None else context.deadline)
    return answer if isinstance(answer, Response) else _through_json(answer)


def _seconds(timeout: object) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"expected a timeout above 0 seconds, found {timeout!r}")
    return timeout


def _through_json(value: Any) -> Any:
    """Encode and decode a value, as over a connection (raises AnswerError if it has no JSON form)."""
    (decoded,) = decode([encode(value)])
    if isinstance(decoded, Exception):
        raise decoded
    return decoded
