"""Checks the arguments of a handle's call, and makes a request of them."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from penstock import call_chain, call_context
from penstock.encoding import encode, path_of
from penstock.errors import AnswerError, CallCycle, UpstreamTimeout
from penstock.handles.pending import HandleResponse
from penstock.handles.stream import HandleStream
from penstock.signature import POSITIONAL
from penstock_wire.contract import REQUEST_ID as REQUEST_ID_FORM
from penstock_wire.headers import (
    CALL_CHAIN,
    METHOD,
    MODEL_ID,
    REQUEST_ID,
    SHARD_KEY,
    TIMEOUT_MS,
    TRACEPARENT,
    TRACESTATE,
    Headers,
    get,
)
from penstock_wire.item_streams import EVENTS
from penstock_wire.request_ids import RequestIds

MAX_LEVELS = 32
"""The most levels of arguments that are searched for calls and streams; deeper JSON is not checked."""

_ids = {"process": 0, "of": RequestIds()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a handle's calls.

    Args:
        stream: the method is a generator; its pieces are read as they come.
        timeout: seconds for a call, or until the first piece of a stream; None = only the caller's deadline
            and the endpoint's timeouts apply.
        shard_key: requests with the same key go to the same pods if the endpoint has sharding.
        method: the method to call; None = the target's default.
        model_id: the model to use, if the target has several.
    """

    stream: bool = False
    timeout: float | None = None
    shard_key: str | None = None
    method: str | None = None
    model_id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.stream, bool):
            raise TypeError(f"expected stream to be True or False, found {self.stream!r}")
        timeout = self.timeout
        if timeout is not None:
            if isinstance(timeout, bool) or not isinstance(timeout, int | float):
                raise TypeError(f"expected a timeout in seconds or None, found {timeout!r}")
            if not 0 < timeout < math.inf:
                raise ValueError(f"expected a timeout above 0 seconds, found {timeout!r}")
        for name in ("shard_key", "method", "model_id"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"expected {name} to be text or None, found {value!r}")
            if not value or not value.isascii() or not value.isprintable() or value != value.strip():
                raise ValueError(f"expected {name} to be printable ASCII, found {value[:64]!r}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandleCall:
    """One call; its operands can still be pending.

    Args:
        endpoint: its name, for messages.
        args: the unnamed arguments.
        named: the named arguments.
        options: the handle's options.
        deadline: when it fails, by `time.monotonic`; None for never.
        request_id: id of the request.
        headers: header fields of the request, without the remaining time.
        cycle: the error that forbids the call; None if it is allowed.
    """

    endpoint: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    options: Options
    deadline: float | None
    request_id: str
    headers: Headers
    cycle: CallCycle | None = None

    @property
    def has_operands(self) -> bool:
        """Whether it has to wait for answers to other calls."""
        return any(isinstance(each, HandleResponse) for each in (*self.args, *self.named.values()))

    def seconds_left(self) -> float | None:
        """Seconds until the call's deadline; None if it has no deadline.

        Raises:
            UpstreamTimeout: no time is left.
        """
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def late(self) -> UpstreamTimeout:
        """Make the error for a call without an answer in time."""
        return UpstreamTimeout(
            f"{self.endpoint}: no answer before the deadline",
            status=504,
            reason="deadline",
            request_id=self.request_id,
            endpoint=self.endpoint,
        )

    def fields(self) -> Headers:
        """Return all header fields of its request, with the time that remains now.

        Raises:
            UpstreamTimeout: no time is left.
        """
        left = self.seconds_left()
        if left is None:
            return self.headers
        return (*self.headers, (TIMEOUT_MS, b"%d" % math.ceil(left * 1000)))

    async def operands(self) -> HandleCall:
        """Wait for all pending operands at once, and return the call with their answers in place of them.

        If one fails, the others are cancelled, except for those with another waiter.

        Raises:
            UpstreamError: one of them failed, or they took too long.
        """
        if not self.has_operands:
            return self
        names = list(self.named)
        waits = [asyncio.ensure_future(_value(each)) for each in (*self.args, *self.named.values())]
        try:
            async with asyncio.timeout(self.seconds_left()):
                values = await asyncio.gather(*waits)
        except TimeoutError as error:
            if isinstance(error, UpstreamTimeout):
                raise
            raise self.late() from error
        finally:
            for wait in waits:
                wait.cancel()
        count = len(self.args)
        return dataclasses.replace(
            self, args=tuple(values[:count]), named=dict(zip(names, values[count:], strict=True))
        )

    def item_and_members(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the item, and the members beside `instances`."""
        if len(self.args) > 1:
            return {POSITIONAL: list(self.args), **self.named}, {}
        return (self.args[0], self.named) if self.args else (dict(self.named), {})

    def body(self) -> bytes:
        """Encode the request's body.

        Raises:
            TypeError: an argument has no JSON form.
        """
        item, members = self.item_and_members()
        try:
            text = b'{"instances":[%b]' % encode(item)
            beside = [b",%b:%b" % (encode(name), encode(value)) for name, value in members.items()]
        except AnswerError as error:
            raise TypeError(f"{self.endpoint}: expected arguments that have a JSON form: {error}") from error
        return text + b"".join(beside) + b"}"


async def _value(given: Any) -> Any:
    return await given if isinstance(given, HandleResponse) else given


def call_of(
    endpoint: str, options: Options, args: tuple[Any, ...], named: Mapping[str, Any], *, namespace: str = ""
) -> HandleCall:
    """Check a call's arguments, and inherit its caller's deadline, request id, trace and chain.

    Args:
        endpoint: its name.
        options: options of the handle.
        args: the item; nothing if the named arguments make the item; or several arguments, which make it
            together with the named ones.
        named: members of the item; if there is one item in `args`, the members beside `instances`.
        namespace: the endpoint's namespace; empty if unknown.

    Raises:
        TypeError: one holds a call or a stream, or has the name of the items.
    """
    if len(args) == 1 and "instances" in named:
        raise TypeError(f'{endpoint}: expected no argument of the name "instances", found one')
    unnamed = ["the item"] if len(args) == 1 else [f"argument {index}" for index in range(1, len(args) + 1)]
    for name, value in (*zip(unnamed, args, strict=True), *named.items()):
        if not isinstance(value, HandleResponse):
            _check(value, name, endpoint)
    context = call_context.current()
    inherited = () if context is None else context.fields
    now = time.monotonic()
    deadline = None if options.timeout is None else now + options.timeout
    if context is not None and context.deadline is not None:
        deadline = context.deadline if deadline is None else min(deadline, context.deadline)
    request_id = _request_id(get(inherited, REQUEST_ID))
    headers = [(b"content-type", b"application/json"), (REQUEST_ID, request_id)]
    if options.method is not None:
        headers.append((METHOD, options.method.encode()))
    if options.model_id is not None:
        headers.append((MODEL_ID, options.model_id.encode()))
    if options.shard_key is not None:
        headers.append((SHARD_KEY, options.shard_key.encode()))
    if options.stream:
        headers.append((b"accept", EVENTS))
    headers += [field for field in inherited if field[0] in (TRACEPARENT, TRACESTATE)]
    cycle = None
    try:
        chain = call_chain.longer(call_chain.inherited(), endpoint, namespace)
        headers.append((CALL_CHAIN, chain))
    except CallCycle as error:
        error.request_id = request_id.decode()
        cycle = error
    return HandleCall(
        endpoint=endpoint,
        args=args,
        named=named,
        options=options,
        deadline=deadline,
        request_id=request_id.decode(),
        headers=tuple(headers),
        cycle=cycle,
    )


def _request_id(inherited: bytes | None) -> bytes:
    """Return the id of the request that is being answered; outside of a request, or in a batch, a new id."""
    if inherited is not None and b"," not in inherited and REQUEST_ID_FORM.fullmatch(inherited):
        return inherited
    if _ids["process"] != os.getpid():  # after a fork, so that two processes do not make the same ids
        _ids.update(process=os.getpid(), of=RequestIds())
    ids: Any = _ids["of"]
    made: bytes = ids.of(None)
    return made


def _check(value: Any, name: str, endpoint: str) -> None:
    """Refuse streams and nested calls, which would not be awaited."""
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        each, level = left.pop()
        if isinstance(each, HandleStream):
            raise TypeError(
                f"{endpoint}: expected a value for {name}, found a stream{_at(value, each)}: read its "
                "pieces and give them as a list ([piece async for piece in stream])"
            )
        if isinstance(each, HandleResponse):
            raise TypeError(
                f"{endpoint}: expected values in {name}, found a call that was not awaited within a "
                f"{type(value).__name__}{_at(value, each)}: await it first, or give it as an argument of its "
                "own"
            )
        if level < MAX_LEVELS:
            if isinstance(each, list | tuple | set | frozenset):
                if not _plain(each):
                    left += [(inner, level + 1) for inner in each]
            elif isinstance(each, dict):
                left += [(inner, level + 1) for inner in each.values()]
            elif dataclasses.is_dataclass(each) and not isinstance(each, type):
                left += [(getattr(each, field.name, None), level + 1) for field in dataclasses.fields(each)]


def _at(whole: Any, value: Any) -> str:
    path = path_of(whole, value)
    return f" at {path}" if path else ""


def _plain(values: Any) -> bool:
    """Whether all are numbers or texts, such as a long row of pixels: a fast path in C for the usual case."""
    return set(map(type, values)) <= _PLAIN


_PLAIN = {int, float, str, bool, bytes, type(None)}
