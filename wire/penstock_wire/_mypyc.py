"""What modules that are compiled must say of their classes, without a dependency where they run as Python.

Some modules of the wire and the sidecar are compiled by mypyc where a build can (`compile_modules.py`). There
their classes are closed: a subclass written in Python needs `@mypyc_attr(allow_interpreted_subclasses=True)`
at the base, and a class that only Python can make, as one that inherits from `str`, `native_class=False`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    from collections.abc import Callable

    _T = TypeVar("_T")

    def mypyc_attr(**_: object) -> Callable[[_T], _T]:
        """Leave the class as it is: mypyc alone reads it."""
        return lambda kept: kept
