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

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, Unpack

from penstock import call_context
from penstock.batch_code import BatchCode, Gate, through_json
from penstock.call_context import Context
from penstock.composition import Application, Node, Reference
from penstock.encoding import encode
from penstock.errors import LoadError
from penstock.handles.handle import Handle
from penstock.handles.place import add_local, remove_local
from penstock.handles.served import Method as Sendable
from penstock.handles.served import ServedHere
from penstock.in_process.batcher import MAX_KEYS, Batcher
from penstock.in_process.costs import Cost, reader
from penstock.in_process.decorator import Changes
from penstock.in_process.settings import MAX_CONCURRENT, BatchSettings, changed
from penstock.model import Model
from penstock.request import Request
from penstock.response import Response
from penstock.signature import Shape
from penstock.target import Served, target_of
from penstock.target import Target as Built
from penstock.threads import in_thread
from penstock.user_code import USER_CODE
from penstock_wire.call_chain import stands_alone
from penstock_wire.durations import parse_ms
from penstock_wire.headers import CALL_CHAIN, MODEL_ID, Headers, is_key_field

_count = itertools.count(1)
"""Numbers the endpoints without a name."""


class Method:
    """A served method; a call with one item returns an awaitable answer or, of a generator, a stream.

    Attributes:
        batches: the items of each run of the method (in a test; `penstock.run` does not record them).
    """

    def __init__(self, model: Model, settings: BatchSettings, gate: Gate, *, records: bool) -> None:
        self._gate = gate
        self._records = records
        self._fields: Headers = ()
        self._timeout: float | None = None
        self._model = model
        cost = model.shape.cost or settings.cost
        if cost is not None:
            settings = dataclasses.replace(settings, cost=_cost_of_item(cost))
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
        return self.send(through_json(item), through_json(parameters))

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

    @property
    def shape(self) -> Shape:
        """How the method takes its items."""
        return self._model.shape

    def send(self, item: Any, members: Mapping[str, Any]) -> Any:
        """Send one item that has been through JSON already.

        Args:
            item: the item.
            members: the members beside `instances`.
        """
        return self.send_bound(item, self._model.shape.bind_shared(members))

    def send_bound(self, item: Any, shared: Mapping[str, Any]) -> Any:
        """Send one item as `send` does, with the arguments for all items already bound.

        Args:
            item: the item.
            shared: the arguments (`Shape.bind_shared`).
        """
        context = call_context.current()
        if self._fields or self._timeout is not None:
            context = Context(self._fields)
            if self._timeout is not None:
                context.deadline = time.monotonic() + self._timeout
        # Each item of a method that takes requests has its own fields.
        alone = context is None or self._model.shape.request is not None
        fields = () if alone or context is None else tuple(sorted(filter(_of_key, context.fields)))
        key = (encode(sorted(shared.items())), fields)
        batcher = self._batchers.get(key)
        if batcher is None:
            if len(self._batchers) >= MAX_KEYS:
                self._batchers = {key: each for key, each in self._batchers.items() if not each.idle}
            code = BatchCode(
                self._model,
                dict(shared),
                limit=self._settings.max_batch_size,
                gate=self._gate,
                record=self.batches if self._records else None,
            )
            batcher = self._batchers[key] = Batcher(code, self._settings)
        if self._model.shape.generator:
            return batcher.stream(None, (item, context), None if context is None else context.deadline)
        return _awaited(batcher, item, context)


class Target(Method):
    """A served object: a call of it is a call of its default method; all methods are attributes."""

    def __init__(
        self,
        served: Served,
        settings: BatchSettings,
        executor: ThreadPoolExecutor,
        endpoint: Callable[[], str],
        *,
        records: bool,
    ) -> None:
        super().__init__(Model(served, executor), settings, gate := Gate(), records=records)
        self._endpoint = endpoint
        self.has_default = served.default
        self._methods = {
            name: Method(Model(each, executor), settings, gate, records=records)
            for name, each in served.methods.items()
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
            await self._model.reconfigure(through_json(config))

    @property
    def handle(self) -> Handle:
        """The handle by which other classes call it: calls have a `result`, and errors are those of HTTP."""
        return Handle(self._endpoint(), missing_ok=True)

    def by_name(self) -> dict[str | None, Sendable]:
        """All methods by name; the default one also by None."""
        methods: dict[str | None, Sendable] = dict(self._methods.items())
        if self.has_default:
            methods[None] = self
        return methods

    def __call__(self, item: Any, /, **parameters: Any) -> Any:
        """Send one item to the default method; see `Method`."""
        if not self.has_default:
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
    nodes' names call them without HTTP. A node's `userConfig` goes to its `reconfigure`.

    Args:
        target: a class, a function or an application.
        init_kwargs: keyword arguments of the class.
        settings: batch settings, as for `@penstock.batch`; for all nodes of an application, but
            `maxBatchSize`, `batchWaitTimeout` and `maxConcurrentBatches` of a node's own take precedence.

    Raises:
        LoadError: it cannot be served.
        CompositionError: the bound arguments do not make an application.
        Exception: whatever its constructor, `load`, `warmup`, `reconfigure` or `close` raised.
    """
    async with served_here(target, init_kwargs, settings, records=True) as served:
        yield served


@contextlib.asynccontextmanager
async def served_here(
    target: Any, init_kwargs: Mapping[str, Any] | None, settings: Changes, *, records: bool
) -> AsyncIterator[Target]:
    """Serve a target in this process; arguments and errors as for `serving`.

    Args:
        target: see there.
        init_kwargs: see there.
        settings: see there.
        records: note the items of each batch.
    """
    async with contextlib.AsyncExitStack() as stack:
        if not isinstance(target, Application):
            if not isinstance(target, type) and not callable(target):
                raise LoadError(f"expected a class, a function or an application, found {target!r}")
            name = getattr(target, "__qualname__", repr(target))
            built = target_of(name, target, init_kwargs)
            yield await _begin(stack, built, changed(BatchSettings(), settings), records=records)
            return
        if init_kwargs:
            raise LoadError("expected no init kwargs for an application, whose nodes have theirs, found some")
        served: Target | None = None
        for node in target.nodes:
            built = target_of(node.name, node.kind, node.resolved(_handle))
            own = _settings(node, settings)
            served = await _begin(stack, built, own, node, records=records)
        if served is not None:
            yield served


async def _begin(
    stack: contextlib.AsyncExitStack,
    built: Built,
    settings: BatchSettings,
    node: Node | None = None,
    *,
    records: bool,
) -> Target:
    """Construct a target, and let the stack close it; handles with its node's name, if any, call it."""
    executor = stack.enter_context(ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="model"))
    served = await in_thread(executor, built.build)
    await _hook(served, "load", executor)
    await _hook(served, "warmup", executor)
    stack.push_async_callback(_hook, served, "close", executor)

    @functools.cache
    def endpoint() -> str:
        """Let handles call it, and return the name by which they do."""
        free = f"served-{next(_count)}" if node is None else node.name
        add_local(free, ServedHere(target.by_name()))
        stack.callback(remove_local, free)
        return free

    target = Target(served, settings, executor, endpoint, records=records)
    if node is not None:
        config = node.spec.get("userConfig")
        if config is not None:
            if served.reconfigure is None:
                raise LoadError(f"{node.name}: expected a method reconfigure for its userConfig, found none")
            await target.reconfigure(config)
        endpoint()
    return target


def _cost_of_item(cost: Cost) -> Cost:
    """What an item costs that has the context of its call beside it."""
    read = reader(cost)
    return lambda value: read(value[0])


def _of_key(field: tuple[bytes, bytes]) -> bool:
    """Whether a header field is part of the key, as in a sidecar."""
    return is_key_field(field[0]) or (field[0] == CALL_CHAIN and stands_alone(field[1]))


def _handle(reference: Reference) -> Handle:
    return Handle(reference.endpoint, reference.namespace, missing_ok=True)


def _settings(node: Node, settings: Changes) -> BatchSettings:
    batching = node.spec.get("batching", {})
    names = {"maxBatchSize": "max_batch_size", "maxConcurrentBatches": "max_concurrent_batches"}
    own = {name: batching[field] for field, name in names.items() if field in batching}
    if "batchWaitTimeout" in batching:
        own["batch_wait_timeout"] = parse_ms(batching["batchWaitTimeout"]) / 1000
    if "cost" in batching:
        own["cost"] = batching["cost"].get("path")
    return changed(changed(BatchSettings(), settings), own)


async def _hook(served: Served, name: str, executor: ThreadPoolExecutor) -> None:
    if name in served.hooks:
        result = await in_thread(executor, served.hooks[name])
        if inspect.isawaitable(result):
            with USER_CODE:
                await result


async def _awaited(batcher: Batcher, item: Any, context: Context | None) -> Any:
    answer = await batcher.answer(None, (item, context), None if context is None else context.deadline)
    # NB: the answer to a whole request is not JSON: it may be bytes.
    whole = isinstance(item, Request) and item.item is ...
    return answer if whole or isinstance(answer, Response) else through_json(answer)


def _seconds(timeout: object) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"expected a timeout above 0 seconds, found {timeout!r}")
    return timeout
