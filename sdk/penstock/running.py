"""`penstock.run`: serves an application in this process, for a script or a notebook.

::

    with penstock.run(app) as handle:
        print(handle(5).result())

All nodes run in one event loop, in a thread of its own, and batch as in `penstock.testing`. Classes need no
module that another process could import, so they can be defined in the script or in a cell.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, Unpack

from penstock.batch_code import steps_of_stream
from penstock.composition import Application, bound
from penstock.errors import ArgumentsError, LoadError
from penstock.handles.handle import Handle
from penstock.in_process.decorator import Changes
from penstock.item_pieces import Events, collected, single_pieces
from penstock.testing import Method, Target, served_here
from penstock_wire.extras import needs
from penstock_wire.http import Request, Response

HOST = "127.0.0.1"
PORT = 8000
"""Port of a run that blocks, unless it has another."""
END_SECONDS = 5.0
"""How long HTTP requests under way can go on when a run is closed."""

_runs: dict[str, _Run] = {}
"""The runs of this process by the name of their root."""


class Running(Handle):
    """The handle of an application that this process serves until `close`, or the end of `with`."""

    __slots__ = ("_run",)

    _run: _Run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the calls under way end, call each object's `close`, and end the application.

        Raises:
            Exception: whatever a `close` raised.
        """
        self._run.close()

    def __reduce__(self) -> Any:
        return copy.copy, (self.options(),)


def run(
    target: Application | Callable[..., Any],
    /,
    *,
    blocking: bool = False,
    port: int | None = None,
    **settings: Unpack[Changes],
) -> Running:
    """Serve an application in this process, and return its handle once all of its objects are ready.

    A second run of an application with the same name replaces the first, as when a notebook's cell runs
    again. A run that is not closed ends with the process; then no object's `close` is called.

    Args:
        target: what `.bind` returned, or a class without arguments, or a function.
        blocking: return only when Ctrl-C has ended it; it then answers HTTP at port 8000 unless `port` says
            otherwise.
        port: serve HTTP, too, at this port of this machine; None = only handles call it.
        settings: batch settings, as for `penstock.testing.serving`.

    Raises:
        TypeError: an argument is unknown.
        LoadError: it cannot be served.
        CompositionError: the bound arguments do not make an application.
        OSError: the port is taken.
        Exception: whatever a constructor, `load`, `warmup` or `reconfigure` raised.
    """
    known = Changes.__annotations__
    if unknown := [each for each in settings if each not in known]:
        raise TypeError(
            f"penstock.run: expected blocking, port, {', '.join(known)}, found {', '.join(unknown)}; a name "
            "is given by app.named(…)"
        )
    if not isinstance(target, Application):
        if not callable(target):
            raise LoadError(f"penstock.run: expected a class, a function or an application, found {target!r}")
        target = bound(target, {})
    name = target.root.name
    if name in _runs:
        _runs[name].close()
    if blocking and port is None:
        port = PORT
    started = _Run(name, target, port, settings)
    handle = Running(name, missing_ok=True)
    handle._run = started  # noqa: SLF001 - the same module
    if blocking:
        where = f" at http://{HOST}:{port}" if port else ""
        with handle, contextlib.suppress(KeyboardInterrupt):
            print(f"penstock.run: {name} is served{where}; Ctrl-C ends it", file=sys.stderr, flush=True)
            started.wait()
    return handle


class _Run:
    """An application that is served in a thread of its own; the constructor returns when it is ready.

    Args:
        name: its root's name.
        application: the application.
        port: the port for HTTP; None for none.
        settings: batch settings.
    """

    def __init__(self, name: str, application: Application, port: int | None, settings: Changes) -> None:
        self._name = name
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._ended: Future[None] = Future()
        work = self._serve(application, port, settings)
        threading.Thread(target=self._work, args=(work,), name="penstock-run", daemon=True).start()
        self._loop, self._stop = self._ready.result()
        _runs[name] = self

    def wait(self) -> None:
        """Wait for the end."""
        self._ended.result()

    def close(self) -> None:
        """See `Running.close`."""
        if _runs.get(self._name) is self:
            del _runs[self._name]
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.result()

    def _work(self, work: Any) -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # it belongs to the thread that waits
            (self._ended if self._ready.done() else self._ready).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self, application: Application, port: int | None, settings: Changes) -> None:
        async with served_here(application, None, settings, records=False) as served, _http(served, port):
            stop = asyncio.Event()
            self._ready.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()


@contextlib.asynccontextmanager
async def _http(served: Target, port: int | None) -> AsyncIterator[None]:
    """Answer HTTP for a served object."""
    if port is None:
        yield
        return
    with needs("penstock.run with a port", "sdk"):
        from penstock.server import ModelServer
        from penstock_wire.http.server.local_clients import of_another_site
        from penstock_wire.http.server.server import H1Front
    server, front = ModelServer(docs=True), H1Front()
    methods = {name: _Gathered(served.method(name)) for name in served.by_name() if name is not None}
    server.serve(_Gathered(served), methods, default=served.has_default)

    async def handle(request: Request) -> Response:
        error = of_another_site(request.headers)
        return await server.handle(request) if error is None else error.response()

    await front.listen(HOST, port, handle)
    try:
        yield
    finally:
        await front.close(END_SECONDS)


class _Gathered:
    """A served method whose items share batches with those of other requests and calls (a `Callee`).

    Args:
        method: the method.
    """

    takes_config = False
    tensors = None

    def __init__(self, method: Method) -> None:
        self._method = method
        self.shape = method.shape

    async def run(
        self, items: Sequence[Any], shared: Mapping[str, Any], *, arrays: bool = False
    ) -> list[Any]:
        """See `Model.run`; `arrays` makes no difference."""
        if self.shape.generator:
            return await collected(self.stream(items, shared), len(items))
        return await asyncio.gather(*(self._answer(item, shared) for item in items), return_exceptions=True)

    async def stream(self, items: Sequence[Any], shared: Mapping[str, Any]) -> AsyncGenerator[Events, None]:
        """See `Model.stream`."""
        streams = single_pieces([self._pieces(item, shared) for item in items])
        async with contextlib.aclosing(streams):
            async for events in streams:
                yield events

    async def reconfigure(self, config: Any) -> None:
        """Refuse a userConfig, which comes from a sidecar."""
        raise TypeError("expected no userConfig, found one")

    async def _answer(self, item: Any, shared: Mapping[str, Any]) -> Any:
        if isinstance(item, ArgumentsError):
            raise item
        return await self._method.send_bound(item, shared)

    async def _pieces(self, item: Any, shared: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        if isinstance(item, ArgumentsError):
            raise item
        async with contextlib.aclosing(steps_of_stream(self._method.send_bound(item, shared))) as pieces:
            async for piece in pieces:
                yield piece
