"""The types of a method's exception: a handle's caller can catch it as if the method ran in its own process.

A problem document names the exception's classes; the caller takes the first of them that its process has
loaded. Nothing is imported or unpickled.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from penstock.errors import UpstreamError

MEMBER = "exception"
"""The member of a problem document with the names of the classes."""
MOST = 16
"""The most classes that are named."""
_OWN = {"penstock", "penstock_wire", "penstock_sidecar"}


def names_of(error: BaseException) -> list[str]:
    """The names of an exception's classes, such as `builtins:KeyError`, the nearest first; not of ours."""
    kinds = [each for each in type(error).__mro__ if _can_be_raised(each)]
    names = [f"{each.__module__}:{each.__qualname__}" for each in kinds[:MOST]]
    return [name for name in names if name.isprintable() and len(name) <= 256]


def member_of(error: BaseException) -> dict[str, list[str]]:
    """The member of a problem document with the names of an exception's classes; empty for none."""
    names = names_of(error)
    return {MEMBER: names} if names else {}


def kind_named(names: object) -> type[UpstreamError]:
    """The class of the error for an exception's names: an UpstreamError, and the first that this process has.

    Args:
        names: those of `names_of`, as they came; what is not a list of such names is ignored.
    """
    for name in names[:MOST] if isinstance(names, list) else ():
        module, _, path = str(name).partition(":")
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            # NB: without getattr, by which a name that was sent could run a module's `__getattr__`.
            found = getattr(found, "__dict__", {}).get(part)
        if isinstance(found, type) and _can_be_raised(found):
            return _joined(found)
    return UpstreamError


def _can_be_raised(kind: type) -> bool:
    """Whether a caller can get it: not Exception itself, nor one that ends the caller's own iteration."""
    return (
        issubclass(kind, Exception)
        and kind is not Exception
        and not issubclass(kind, StopIteration | StopAsyncIteration)
        and str(kind.__module__).partition(".")[0] not in _OWN
    )


@functools.lru_cache(256)
def _joined(raised: type) -> type[UpstreamError]:
    """An UpstreamError that is of this class, too; UpstreamError if the class does not permit it."""
    members = {"__module__": UpstreamError.__module__, "__reduce__": _reduce}
    try:
        kind = type(f"UpstreamError[{raised.__name__}]", (UpstreamError, raised), members)
        kind("")
    except Exception:  # such as an ExceptionGroup, or a class with its own `__new__`
        return UpstreamError
    return kind


def _reduce(error: Any) -> Any:
    return _again, (type(error).__bases__[1], error.args), error.__dict__


def _again(raised: type, args: tuple[Any, ...]) -> UpstreamError:
    """Make a pickled error again."""
    return _joined(raised)(*args)
