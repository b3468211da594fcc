"""The value that ends one stream of a batch."""

from __future__ import annotations

from typing import Final, final


@final
class End:
    """The type of `END`, of which there is one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "penstock.END"

    def __reduce__(self) -> str:
        return "END"


END: Final = End()
"""In a step of a generator: the request of this slot has its whole answer."""
