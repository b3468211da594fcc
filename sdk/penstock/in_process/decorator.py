"""`@penstock.batch`: one queue for a function, or for each instance with a method, in each event loop."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from penstock.end import End
from penstock.in_process.batcher import Batcher
from penstock.in_process.costs import Cost
from penstock.in_process.function import BatchedCode
from penstock.in_process.settings import BatchSettings, changed
from penstock.in_process.state import BatchState
from penstock.in_process.stream import Stream

Owner = TypeVar("Owner", contravariant=True)
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Out = TypeVar("Out", covariant=True)
"""A call's return value: a coroutine, or a `Stream`."""

_Later = Coroutine[Any, Any, Answer]
_Steps = AsyncIterator[Sequence[Answer | End]] | Iterator[Sequence[Answer | End]]


class Changes(TypedDict, total=False):
    """The keyword arguments of `configure`: members of `BatchSettings`."""

    max_batch_size: int
    batch_wait_timeout: float
    max_concurrent_batches: int
    timeout: float | None
    isolate: bool
    cost: Cost | None


class Queues:
    """The queues of one function, or of one instance's method: one for each event loop with calls."""

    __slots__ = ("_batchers", "_code", "_latest", "settings")

    def __init__(self, code: BatchedCode, settings: BatchSettings) -> None:
        self._code = code
        self.settings = settings
        self._batchers: dict[asyncio.AbstractEventLoop, Batcher] = {}
        self._latest: Batcher | None = None

    def call(self, owner: object, value: Any) -> Any:
        """Make one call; return a coroutine, or the stream of a generator."""
        if self._code.streams:
            return self._batcher().stream(owner, value)
        return self._answer(owner, value)

    async def _answer(self, owner: object, value: Any) -> Any:
        return await self._batcher().answer(owner, value)

    def _batcher(self) -> Batcher:
        loop = asyncio.get_running_loop()
        latest = self._latest
        if latest is not None and latest.loop is loop:
            return latest
        batcher = self._batchers.get(loop)
        if batcher is None:
            for other in [other for other in self._batchers if other.is_closed()]:
                del self._batchers[other]
            batcher = self._batchers[loop] = Batcher(self._code, self.settings, self._code.shown)
        self._latest = batcher
        return batcher

    @property
    def state(self) -> BatchState:
        """The state of all queues."""
        return sum((each.state for each in list(self._batchers.values())), BatchState())

    def apply(self, settings: BatchSettings) -> None:
        """Use other settings from the next batch on."""
        self.settings = settings
        for batcher in list(self._batchers.values()):
            batcher.apply(settings)


class BoundBatch(Generic[Item, Out]):
    """A batched method of one instance; see `batch`."""

    __penstock_in_process__ = True

    def __init__(self, code: BatchedCode, name: str, owner: object, queues: Queues) -> None:
        self._code = code
        self._name = name
        self._owner = owner
        self._queues = queues

    @overload
    def __call__(self, item: Item, /, *args: Any, **named: Any) -> Out: ...
    @overload
    def __call__(self, /, **named: Any) -> Out: ...
    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Make one call; its answer is awaited, or read piece by piece."""
        return self._queues.call(self._owner, self._code.bind(args, named))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._name)

    @property
    def settings(self) -> BatchSettings:
        """The current settings of batching."""
        return self._queues.settings

    @property
    def state(self) -> BatchState:
        """What this instance's calls do now, for debugging."""
        return self._queues.state

    def configure(self, **changes: Unpack[Changes]) -> None:
        """Change how this instance's calls are batched, from its next batch on."""
        self._queues.apply(changed(self._queues.settings, changes))


class BatchFunction(Generic[Item, Out]):
    """A batched function; see `batch`."""

    __penstock_in_process__ = True

    def __init__(self, code: BatchedCode, settings: BatchSettings) -> None:
        self._code = code
        self._own = Queues(code, settings)
        self._name = getattr(code.function, "__name__", "")
        # By identity, since an instance can compare equal to others, or be unhashable.
        self._instances: dict[int, tuple[weakref.ref[Any], Queues]] = {}
        functools.update_wrapper(self, code.function)

    @overload
    def __call__(self, item: Item, /, *args: Any, **named: Any) -> Out: ...
    @overload
    def __call__(self, /, **named: Any) -> Out: ...
    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Make one call; its answer is awaited, or read piece by piece."""
        if self._code.method:  # called as `Class.method(instance, item)`
            if not args:
                raise TypeError(f"{self._code.name}: expected an instance, found none")
            return self._bound(args[0])(*args[1:], **named)
        return self._own.call(None, self._code.bind(args, named))

    def __reduce__(self) -> str:
        return str(getattr(self, "__qualname__", self._name))

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name
        self._code.become_method()

    def _bound(self, instance: Any) -> BoundBatch[Any, Any]:
        entry = self._instances.get(id(instance))
        if entry is None:
            entry = self._instances[id(instance)] = self._first(instance)
        return BoundBatch(self._code, self._name, instance, entry[1])

    def _first(self, instance: Any) -> tuple[weakref.ref[Any], Queues]:
        number, instances = id(instance), self._instances
        try:
            reference = weakref.ref(instance, lambda _: instances.pop(number, None))
        except TypeError:
            raise TypeError(
                "penstock.batch: expected an instance that weak references can be made to, found "
                f'{type(instance).__name__}; add "__weakref__" to its __slots__'
            ) from None
        return reference, Queues(self._code, self._own.settings)

    @property
    def settings(self) -> BatchSettings:
        """The current settings of batching; of a method, those of all instances without their own."""
        return self._own.settings

    @property
    def state(self) -> BatchState:
        """What calls do now, for debugging; of a method those of all instances."""
        return sum((queues.state for _, queues in list(self._instances.values())), self._own.state)

    def configure(self, **changes: Unpack[Changes]) -> None:
        """Change how calls are batched, from the next batch on; of a method for all its instances."""
        self._own.apply(changed(self._own.settings, changes))
        for _, queues in list(self._instances.values()):
            queues.apply(changed(queues.settings, changes))


class BatchMethod(BatchFunction[Item, Out]):
    """A batched method as an attribute of its class; see `batch`."""

    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None, /) -> BoundBatch[Item, Out]: ...
    def __get__(self, instance: object | None, owner: type[Any] | None = None, /) -> Any:
        """Return an instance's method; for the class, this object, with `configure` for all instances."""
        return self if instance is None else self._bound(instance)


class _Decorator(Protocol):
    """The decorator that `batch(…)` with settings returns."""

    @overload
    def __call__(
        self, function: Callable[[list[Item]], Awaitable[Sequence[Answer]]], /
    ) -> BatchFunction[Item, _Later[Answer]]: ...
    @overload
    def __call__(
        self, function: Callable[[list[Item]], _Steps[Answer]], /
    ) -> BatchFunction[Item, Stream[Answer]]: ...
    @overload
    def __call__(
        self, function: Callable[[Owner, list[Item]], Awaitable[Sequence[Answer]]], /
    ) -> BatchMethod[Item, _Later[Answer]]: ...
    @overload
    def __call__(
        self, function: Callable[[Owner, list[Item]], _Steps[Answer]], /
    ) -> BatchMethod[Item, Stream[Answer]]: ...
    @overload
    def __call__(self, function: Callable[..., Any], /) -> BatchMethod[Any, Any]: ...


@overload
def batch(
    function: Callable[[list[Item]], Awaitable[Sequence[Answer]]], /
) -> BatchFunction[Item, _Later[Answer]]: ...
@overload
def batch(function: Callable[[list[Item]], _Steps[Answer]], /) -> BatchFunction[Item, Stream[Answer]]: ...
@overload
def batch(
    function: Callable[[Owner, list[Item]], Awaitable[Sequence[Answer]]], /
) -> BatchMethod[Item, _Later[Answer]]: ...
@overload
def batch(
    function: Callable[[Owner, list[Item]], _Steps[Answer]], /
) -> BatchMethod[Item, Stream[Answer]]: ...
@overload
def batch(function: Callable[..., Any], /) -> BatchMethod[Any, Any]: ...
@overload
def batch(**settings: Unpack[Changes]) -> _Decorator: ...
def batch(function: Callable[..., Any] | None = None, /, **settings: Unpack[Changes]) -> Any:
    """Batch the calls of a function or method: it gets a list of items, each caller awaits one item's answer.

    ::

        @penstock.batch(max_batch_size=32)
        async def embed(texts: list[str]) -> list[Vector]:
            return await model.run(texts)


        vector = await embed("a penstock")  # by many callers at once

    While fewer than `max_concurrent_batches` run, calls start a batch at once; else they wait for the next
    batch. A plain `def` runs in a thread. With several parameters, each gets a list. If the function is a
    generator, each caller gets an asynchronous iterator: each step yields a list with an entry for each call,
    and `END` as an entry ends that call's stream. An exception object as an entry is raised at that caller.
    If the function itself raises, parts of the batch are run again until each call has its own outcome.

    Args:
        function: the decorated function, if the decorator is used without brackets.
        settings: members of `BatchSettings`; `configure` can change them later.

    Raises:
        TypeError: it is not a function, has no parameter for a list, or a setting has another type.
        ValueError: a setting is out of its range.
    """
    chosen = changed(BatchSettings(), settings)

    def decorate(code: Callable[..., Any]) -> Any:
        return BatchMethod(BatchedCode(code), chosen)

    return decorate if function is None else decorate(function)
