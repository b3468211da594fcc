"""The decorators by which compiled modules describe their classes; no dependency is needed to run as Python.

mypyc compiles some modules of the wire and the sidecar if a build can do so (`compile_modules.py`). Their
classes are then closed: a subclass in Python needs `@mypyc_attr(allow_interpreted_subclasses=True)` at the
base, and a class that only Python can make, such as a subclass of `str`, needs `native_class=False`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
    from mypy_extensions import trait as trait
else:
    from collections.abc import Callable

    _T = TypeVar("_T")

    def mypyc_attr(**_: object) -> Callable[[_T], _T]:
        """Leave the class as it is: only mypyc reads the decorator."""
        return lambda kept: kept

    def trait(kept: _T) -> _T:
        """Leave a class of which another one inherits beside its base as it is."""
        return kept
