"""The edge to user code, which can raise anything and whose exceptions can have any message.

A panic of a Rust library (PyO3) is a BaseException, as are SystemExit and GeneratorExit. Past this edge
everything but KeyboardInterrupt and a cancellation of ours is an Exception, so that no call stays without an
answer, and no call ends the process.
"""

from __future__ import annotations

import asyncio
import importlib
import traceback
from pathlib import Path
from types import TracebackType

from penstock import request_ids
from penstock.errors import Panic
from penstock_wire.process import log
from penstock_wire.words import cut


class UserCode:
    """A context in which user code is called or awaited; what it raises leaves as an Exception."""

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception | KeyboardInterrupt):
            return
        if isinstance(error, asyncio.CancelledError) and _cancelled():
            return
        raise as_exception(error)


USER_CODE = UserCode()
_BEFORE = (f"{Path(__file__).parent}/", str(importlib.__file__), "<frozen ")
"""How the names of files begin that call user code: this package, and what imports."""


def as_exception(error: BaseException) -> Exception:
    """An exception that was raised or returned, as an Exception."""
    if isinstance(error, Exception):
        return error
    panic = Panic(described(error))
    panic.__cause__ = error
    return panic


def kind_of(error: BaseException) -> str:
    """The name of an exception's type."""
    return type(_raised(error)).__name__


def text_of(error: BaseException) -> str:
    """The message of an exception as text that has a UTF-8 form, also if `str` raises."""
    try:
        with USER_CODE:
            return str(error).encode("utf-8", "replace").decode()
    except Exception:
        return "<str() failed>"


def described(error: BaseException) -> str:
    """Describe an exception: its type and its message, cut to a limit."""
    text = cut(text_of(_raised(error)), 500)
    return f"{kind_of(error)}: {text}" if text else kind_of(error)


def trace_of(error: BaseException) -> str:
    """The traceback of an exception from user code on; all of it if there is none of user code."""
    raised = _raised(error)
    trace = raised.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_BEFORE):
        trace = trace.tb_next
    if trace is None and not isinstance(raised, SyntaxError):  # which names the place by itself
        trace = raised.__traceback__
    return "".join(traceback.format_exception(type(raised), raised, trace))


def log_raised(message: str, error: BaseException) -> None:
    """Log an exception of user code, with its traceback and the ids of the requests."""
    log(
        message,
        level="error",
        error=kind_of(error),
        traceback="".join(traceback.format_exception(error)),
        **request_ids.logged(),
    )


def _raised(error: BaseException) -> BaseException:
    """The exception that user code raised."""
    return error.__cause__ if isinstance(error, Panic) and error.__cause__ is not None else error


def _cancelled() -> bool:
    """Whether the running task was cancelled; False in a thread, which cannot be."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is None or task.cancelling() > 0
