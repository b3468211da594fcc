"""`Handle`: another endpoint as an object with its methods."""

from __future__ import annotations

import dataclasses
import os
import re
from types import ModuleType
from typing import Any, TypedDict, Unpack

from penstock.encoding import NO_JSON
from penstock.errors import EndpointNotFound
from penstock.handles.arguments import HandleCall, Options, call_of
from penstock.handles.loop_thread import shared_loop
from penstock.handles.pending import HandleResponse, running_loop
from penstock.handles.place import Place, Remote, look_up, place_of, read_url
from penstock.handles.stream import HandleStream, Pieces
from penstock.near_names import did_you_mean
from penstock_wire.contract import NAMESPACE_ENV
from penstock_wire.extras import missing

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Changes(TypedDict, total=False):
    """The keyword arguments of `Handle.options`: members of `Options`."""

    stream: bool
    timeout: float | None
    shard_key: str | None
    method: str | None
    model_id: str | None


class Handle:
    """Calls the methods that an endpoint serves.

    `handle(item)` calls the default method and `handle.embed(item)` another one. The request is sent at once;
    await the returned object, wait for it in a thread (`.result()`), or pass it to another call as an
    argument. In a thread without a running event loop, the call runs in a loop that all handles share. A
    handle can be used from any thread and event loop, kept, compared and pickled.

    Args:
        endpoint: name of the ModelEndpoint.
        namespace: the endpoint's namespace; by default that of the pod.
        url: the endpoint's URL, for a process outside of a pod.
        missing_ok: check at each call, and not now, whether the endpoint exists.

    Raises:
        EndpointNotFound: the endpoint does not exist (a KeyError).
        ValueError: a name or the URL is not valid.
    """

    __slots__ = ("_endpoint", "_namespace", "_options", "_url")

    def __init__(
        self,
        endpoint: str,
        namespace: str | None = None,
        url: str | None = None,
        *,
        missing_ok: bool = False,
    ) -> None:
        for what, value in (("endpoint", endpoint), ("namespace", namespace)):
            if value is None and what == "namespace":
                continue
            if not isinstance(value, str):
                raise TypeError(f"penstock.Handle: expected the {what}'s name, found {value!r}")
            if not _NAME.fullmatch(value):
                raise ValueError(
                    f"penstock.Handle: expected the {what}'s name of lower-case letters, digits and hyphens, "
                    f"found {value[:64]!r}"
                )
        self._endpoint = endpoint
        self._namespace = namespace
        self._url = url
        self._options = Options()
        if url is not None:
            read_url(url)
        elif not missing_ok:
            look_up(self._place(), endpoint)

    def options(self, **changes: Unpack[Changes]) -> Handle:
        """Return a handle with other options.

        Args:
            changes: `stream` (read a generator's pieces as they come), `timeout` (seconds for a call),
                `shard_key`, `method`, `model_id`; options that are not given stay.

        Raises:
            TypeError, ValueError: an option is unknown, or its value is not valid.
        """
        known = [field.name for field in dataclasses.fields(Options)]
        unknown = [name for name in changes if name not in known]
        if unknown:
            hint = did_you_mean(unknown[0], known)
            raise TypeError(f"expected options among {', '.join(known)}, found {', '.join(unknown)}{hint}")
        return self._with(dataclasses.replace(self._options, **changes))

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the method; the request is sent before this returns, or in the next turn of its loop.

        Args:
            args: the item; or the arguments of a method with several parameters, in order.
            named: the same by name; with one item in `args`, the arguments that a batched method takes once
                for all items.

        Returns:
            A `HandleResponse`; with `stream=True` a `HandleStream`.

        All errors are raised when the answer is awaited, so that of several calls each has its own.
        """
        namespace = self._namespace or os.environ.get(NAMESPACE_ENV, "")
        call: HandleCall | TypeError
        place: Place | Exception
        try:
            call = call_of(self._endpoint, self._options, args, named, namespace=namespace)
        except TypeError as error:
            call = place = error
        else:
            try:
                place = call.cycle or self._place()
            except (EndpointNotFound, ValueError) as error:
                place = error
        loop = running_loop() or shared_loop() if isinstance(place, Remote | Exception) else place.loop
        if self._options.stream:
            return HandleStream(_opened(place, call), loop, self._endpoint)
        return HandleResponse(_answered(place, call), loop, self._endpoint)

    def __getattr__(self, name: str) -> Handle:
        if name.startswith("_"):
            raise AttributeError(f"expected the name of a method that is served, found {name}")
        if name == "remote":  # of Ray Serve
            called = self._options.method or "handle"
            raise AttributeError(
                f"{self._endpoint}: expected {called}(…), found {called}.remote: drop .remote; a method of "
                'that name is called by .options(method="remote")'
            )
        return self._with(dataclasses.replace(self._options, method=name))

    def _place(self) -> Place:
        return place_of(self._endpoint, self._namespace, self._url)

    def _with(self, options: Options) -> Handle:
        made = Handle.__new__(Handle)
        made.__setstate__((self._endpoint, self._namespace, self._url, options))
        return made

    def __getstate__(self) -> tuple[str, str | None, str | None, Options]:
        return self._endpoint, self._namespace, self._url, self._options

    def __setstate__(self, state: tuple[str, str | None, str | None, Options]) -> None:
        self._endpoint, self._namespace, self._url, self._options = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.__getstate__())

    def __repr__(self) -> str:
        where = [repr(self._endpoint)]
        where += [
            f"{name}={value!r}"
            for name, value in (("namespace", self._namespace), ("url", self._url))
            if value is not None
        ]
        changed = [
            f"{field.name}={getattr(self._options, field.name)!r}"
            for field in dataclasses.fields(Options)
            if getattr(self._options, field.name) != field.default
        ]
        return f"Handle({', '.join(where)})" + (f".options({', '.join(changed)})" if changed else "")


# NB: a handle has every attribute: `handle.tolist()`, as for arrays, would call the endpoint.
NO_JSON[Handle] = "call it, and give the answer"


async def _answered(place: Place | Exception, call: HandleCall | TypeError) -> Any:
    if isinstance(call, TypeError):  # an argument cannot be sent
        raise call
    call = await call.operands()
    if isinstance(place, Exception):
        raise place
    if not isinstance(place, Remote):
        return await place.answer(call)
    return await _remote().answer(place, call)


async def _opened(place: Place | Exception, call: HandleCall | TypeError) -> Pieces:
    if isinstance(call, TypeError):
        raise call
    call = await call.operands()
    if isinstance(place, Exception):
        raise place
    if not isinstance(place, Remote):
        return await place.stream(call)
    pieces: Pieces = await _remote().stream(place, call)
    return pieces


def _remote() -> ModuleType:
    """Import the module that calls by HTTP; unlike calls within the process, it needs the extra `sdk`."""
    try:
        from penstock.handles import remote
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing("penstock.Handle", "sdk", f"none named {error.name!r}")) from error
    return remote
