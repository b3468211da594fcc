"""The value that ends one stream of a batch."""

from __future__ import annotations

from typing import Final, final


@final
class End:
    """The type of `END`, its only instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "penstock.END"

    def __reduce__(self) -> str:
        return "END"


END: Final = End()
"""Yielded in a slot of a generator's step: the answer to the request in this slot is complete."""
