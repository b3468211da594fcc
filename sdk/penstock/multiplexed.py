"""Many models in one process: a method that loads one by its id, and a cache of the recently used ones.

A model is loaded when it is first requested; further calls meanwhile wait for the same load. If there are
too many models, the least recently used one is evicted, once the new one has loaded. A model in use is closed
when the calls that use it have ended (`call_context.Context.end`).

Clients choose the ids: ids of another form never reach the loader, and one that has no model costs a load
once in `ABSENT_SECONDS`, and no other model.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from penstock import call_context
from penstock.call_context import Context
from penstock.errors import ArgumentsError, UnknownModel
from penstock.handles.loop_thread import shared_loop
from penstock.user_code import USER_CODE, described
from penstock_wire.headers import MODEL_ID
from penstock_wire.process import log

F = TypeVar("F", bound=Callable[..., Any])
IDS = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""The form of ids by default: such an id is a file's name, and never leaves its folder."""
MAX_ID = 256
ABSENT_SECONDS = 10.0
"""How long an id without a model is remembered."""
MAX_ABSENT = 1024
"""The most such ids; the oldest is forgotten."""
_Load = tuple["Models", str]
"""A load, by its models and its id."""
_LOADING: contextvars.ContextVar[_Load | None] = contextvars.ContextVar("loading", default=None)
"""The load that the running code is part of, the innermost."""
_WAITS: dict[_Load, list[_Load]] = {}
"""The loads that each load waits for now."""
_WAITS_LOCK = threading.Lock()
CLOSE = "close"
"""The optional method of a model that is called when it is evicted."""


class Entry:
    """One model, loaded or being loaded.

    Args:
        model_id: its id.

    Attributes:
        model: result of a blocking loader, set when it has loaded.
        task: task of an asynchronous loader.
        loaded: it has been loaded.
        evicted: it has left the cache.
        users: the calls that use it.
    """

    __slots__ = ("evicted", "loaded", "model", "model_id", "task", "users")

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.model: Future[Any] = Future()
        self.task: asyncio.Task[Any] | None = None
        self.loaded = self.evicted = False
        self.users: set[Context] = set()


@contextlib.contextmanager
def _waiting(load: _Load) -> Iterator[None]:
    """Note that the load which the running code is part of, if any, waits for another.

    Raises:
        RuntimeError: the other waits for it already, so that both would wait for good.
    """
    own = _LOADING.get()
    if own is None:
        yield
        return
    with _WAITS_LOCK:
        reached = [load]
        for each in reached:
            if each == own:
                by = "" if load == own else f", by way of the loader of {own[1]!r}"
                raise RuntimeError(f"expected a loader that loads {load[1]!r}, found that it asks for it{by}")
            reached += [further for further in _WAITS.get(each, ()) if further not in reached]
        _WAITS.setdefault(own, []).append(load)
    try:
        yield
    finally:
        with _WAITS_LOCK:
            _WAITS[own].remove(load)
            if not _WAITS[own]:
                del _WAITS[own]


class Models:
    """The models of one instance; a call with an id returns the model, or an awaitable for an `async` loader.

    Args:
        loader: loads a model by its id.
        most: the most models at once.
        ids: the form of ids, a regular expression.
    """

    def __init__(self, loader: Callable[[str], Any], most: int, ids: str = IDS) -> None:
        self._loader = loader
        self._most = most
        self._ids = re.compile(ids)
        self._absent: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._asynchronous = inspect.iscoroutinefunction(loader)
        self._closing: set[asyncio.Future[None]] = set()

    def __reduce__(self) -> Any:
        raise TypeError("a loader with its models cannot be pickled: pickle the object whose method it is")

    def __call__(self, model_id: str) -> Any:
        """Return the model with an id.

        Args:
            model_id: such as `penstock.context().model_id`.

        Raises:
            ArgumentsError: the id is empty, or of another form.
            UnknownModel: it has no model, which was found at most `ABSENT_SECONDS` ago.
            RuntimeError: the loader of this model waits for it, also by way of other models' loaders.
            Exception: whatever else the loader raised; the next call loads again.
        """
        if not isinstance(model_id, str):
            raise TypeError(f"expected the id of a model as text, found {model_id!r}")
        if not model_id:
            name = MODEL_ID.decode()
            raise ArgumentsError(
                f"expected the id of a model in the header {name}, found none", missing=(name,)
            )
        if len(model_id) > MAX_ID or not self._ids.fullmatch(model_id):
            raise ArgumentsError(
                f"expected the id of a model of the form {self._ids.pattern}, found {model_id[:64]!r}"
            )
        until, message = self._absent.get(model_id, (0.0, ""))
        if until > time.monotonic():
            raise UnknownModel(message)
        return self._awaited(model_id) if self._asynchronous else self._blocking(model_id)

    def _blocking(self, model_id: str) -> Any:
        entry, first = self._take(model_id)
        if entry.loaded:
            return entry.model.result()
        with _waiting((self, model_id)):
            return self._loaded(entry, model_id, first=first)

    def _loaded(self, entry: Entry, model_id: str, *, first: bool) -> Any:
        if first:
            began = time.monotonic()
            outer = _LOADING.set((self, model_id))
            try:
                model = self._loader(model_id)
            except BaseException as error:  # of any kind: other calls that wait for this model get it, too
                raised = self._failed(entry, error)
                entry.model.set_exception(raised)
                if raised is error:
                    raise
                raise raised from error
            finally:
                _LOADING.reset(outer)
            entry.model.set_result(model)
            for each in self._there(entry, began):
                _close_blocking(each)
        return entry.model.result()

    async def _awaited(self, model_id: str) -> Any:
        entry, first = self._take(model_id)
        if first or entry.task is None:
            # NB: not part of any call: the first caller can leave while the others wait on.
            alone = contextvars.Context()
            alone.run(_LOADING.set, (self, model_id))
            entry.task = asyncio.get_running_loop().create_task(self._load(entry), context=alone)
            entry.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        if entry.loaded:
            return await asyncio.shield(entry.task)
        with _waiting((self, model_id)):
            return await asyncio.shield(entry.task)

    async def _load(self, entry: Entry) -> Any:
        began = time.monotonic()
        try:
            with USER_CODE:
                model = await self._loader(entry.model_id)
        except BaseException as error:  # a cancelled load leaves no entry behind, either
            raised = self._failed(entry, error)
            if raised is error:
                raise
            raise raised from error
        for each in self._there(entry, began):
            await self._close_async(each)
        return model

    async def _close_async(self, entry: Entry) -> None:
        if entry.task is not None:
            result = _close(entry, entry.task.result())
            if result is not None:
                await _logged(entry, result)

    def _take(self, model_id: str) -> tuple[Entry, bool]:
        """Get or create the entry of an id, and make the current call one of its users.

        Returns:
            The entry, and whether the caller has to load it.
        """
        users = call_context.users()
        with self._lock:
            entry = self._entries.get(model_id)
            first = entry is None
            if entry is None:
                entry = self._entries[model_id] = Entry(model_id)
            self._entries.move_to_end(model_id)
            for context in users:
                if context not in entry.users and context.at_end(
                    functools.partial(self._release, entry, context)
                ):
                    entry.users.add(context)
            return entry, first

    def _too_many(self, kept: Entry) -> list[Entry]:
        """Evict surplus models, unused ones first; return those that can be closed now."""
        closed = []
        while len(self._entries) > self._most:
            others = [each for each in self._entries.values() if each.loaded and each is not kept]
            if not others:
                break  # all are being loaded; each checks again when it has loaded
            evicted = next((each for each in others if not each.users), others[0])
            del self._entries[evicted.model_id]
            evicted.evicted = True
            if not evicted.users:
                closed.append(evicted)
        return closed

    def _there(self, entry: Entry, began: float) -> list[Entry]:
        """Note that a model was loaded; return the entries to close."""
        seconds = round(time.monotonic() - began, 3)
        log("model loaded", model_id=entry.model_id, seconds=seconds)
        with self._lock:
            entry.loaded = True
            return self._too_many(entry)

    def _failed(self, entry: Entry, error: BaseException) -> BaseException:
        """Note that a load failed; return the exception for its callers."""
        model_id = entry.model_id
        with self._lock:
            if self._entries.get(model_id) is entry:
                del self._entries[model_id]
            if not _is_absent(model_id, error):
                return error
            log("model unknown", level="warning", model_id=model_id, error=described(error))
            message = f"expected the id of a model, found {model_id[:64]!r}, which has none"
            self._absent.pop(model_id, None)
            self._absent[model_id] = time.monotonic() + ABSENT_SECONDS, message
            if len(self._absent) > MAX_ABSENT:
                self._absent.popitem(last=False)
        return UnknownModel(message)

    def _release(self, entry: Entry, context: Context) -> None:
        """Remove a call that has ended from the model's users; runs in the server's loop."""
        with self._lock:
            entry.users.discard(context)
            if not entry.evicted or entry.users:
                return
        loop = asyncio.get_running_loop()
        closing: asyncio.Future[None]
        if self._asynchronous:
            closing = loop.create_task(self._close_async(entry))
        else:
            closing = loop.run_in_executor(None, _close_blocking, entry)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all models at the end of the process."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), OrderedDict()
        for entry in entries:
            if entry.loaded and self._asynchronous:
                await self._close_async(entry)
            elif entry.loaded:
                await asyncio.get_running_loop().run_in_executor(None, _close_blocking, entry)
        await asyncio.gather(*self._closing, return_exceptions=True)


def _is_absent(model_id: str, error: BaseException) -> bool:
    """Whether a loader's exception says that an id has no model: a dict's, a file's, or its own."""
    if isinstance(error, FileNotFoundError):
        return model_id in str(error.filename)
    return isinstance(error, UnknownModel) or (isinstance(error, KeyError) and error.args == (model_id,))


def _close(entry: Entry, model: Any) -> Any:
    """Call a model's `close`; return an awaitable, or None if there is nothing to await."""
    log("model closed", model_id=entry.model_id)
    try:
        with USER_CODE:
            hook = getattr(model, CLOSE, None)
            result = hook() if callable(hook) else None
    except Exception as error:
        _log_failure(entry, error)
        return None
    return result if inspect.isawaitable(result) else None


def _close_blocking(entry: Entry) -> None:
    """Close a model of a blocking loader, and wait for its end, also if its `close` is asynchronous."""
    closing = _close(entry, entry.model.result())
    if closing is not None:
        asyncio.run_coroutine_threadsafe(_logged(entry, closing), shared_loop()).result()


async def _logged(entry: Entry, closing: Any) -> None:
    try:
        with USER_CODE:
            await closing
    except Exception as error:
        _log_failure(entry, error)


def _log_failure(entry: Entry, error: Exception) -> None:
    log("closing a model failed", level="error", model_id=entry.model_id, error=described(error))


class Multiplexed:
    """A loader; see `multiplexed`."""

    def __init__(self, loader: Callable[..., Any], most: int, ids: str) -> None:
        functools.update_wrapper(self, loader)
        self._ids = ids
        self._loader = loader
        self._most = most
        self._name = getattr(loader, "__name__", "")
        self._own = Models(loader, most, ids)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # NB: this is not a data descriptor, so an instance's own attribute takes precedence.
        attributes = getattr(instance, "__dict__", None)
        if attributes is None:
            raise TypeError(
                f"penstock.multiplexed: expected objects that have a __dict__, found {type(instance)}"
            )
        models: Models = attributes.setdefault(
            self._name, Models(self._loader.__get__(instance, owner), self._most, self._ids)
        )
        return models

    def __call__(self, model_id: str) -> Any:
        """See `Models.__call__`; for a loader that is a function."""
        return self._own(model_id)


def multiplexed(max_models: int = 3, *, ids: str = IDS) -> Callable[[F], F]:
    """Mark a method, or a function, that loads a model by its id: each is loaded once, and kept while used.

    `self.load(penstock.context().model_id)` returns the model; await it if the method is `async`. Beyond
    `max_models`, the least recently used model is evicted when the new one has loaded: its `close()`, if it
    has one, is called when the calls that use it have ended. An id that has no model (the loader raises a
    KeyError of the id, a FileNotFoundError of a file with its name, or `UnknownModel`) is the client's error.

    Args:
        max_models: the most models of one object at once.
        ids: the form of ids, a regular expression; others are refused, as the client's error.

    Raises:
        TypeError, ValueError: not a method or function, or `max_models` is not an integer from 1.
        re.error: `ids` is not a regular expression.
    """
    most: object = max_models
    if isinstance(most, float) and most.is_integer():
        most = int(most)
    if not isinstance(most, int) or isinstance(most, bool):
        raise TypeError(
            f"penstock.multiplexed: expected a number of models in brackets, found {max_models!r}"
        )
    if most < 1:
        raise ValueError(f"penstock.multiplexed: expected max_models of 1 or more, found {max_models}")

    def mark(loader: F) -> F:
        if not inspect.isfunction(loader):
            raise TypeError(f"penstock.multiplexed: expected a method or a function, found {loader!r}")
        return cast("F", Multiplexed(loader, most, ids))

    return mark


def closing(kind: type, made: Any, hook: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """Make an object's hook `close`, which calls its own hook and then closes its models.

    Args:
        kind: its class.
        made: the object.
        hook: its own hook; None for none.
    """
    names = [name for name in dir(kind) if isinstance(inspect.getattr_static(kind, name), Multiplexed)]
    if not names:
        return hook

    def close() -> Any:
        models = [getattr(made, name) for name in names]
        try:
            with USER_CODE:
                result = None if hook is None else hook()
        except Exception as error:
            return _closed(models, error=error)
        return _closed(models, result)

    return close


async def _closed(models: list[Models], result: Any = None, *, error: Exception | None = None) -> None:
    """Await what the own hook returned, or raise what it raised, and close the models all the same."""
    try:
        if error is not None:
            raise error
        if inspect.isawaitable(result):
            with USER_CODE:
                await result
    finally:
        for each in models:
            await each.close()
