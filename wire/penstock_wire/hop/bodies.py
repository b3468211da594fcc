"""Bodies that cross the hop piece by piece: at most `frames.WINDOW` bytes of one are on the way or unread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_wire.framing.bodies import Allowance, PieceSender
from penstock_wire.framing.connection import Framed
from penstock_wire.hop import frames

_PIECE: Final = frames.PIECE_BYTES
_WINDOW: Final = frames.WINDOW
_pack = frames.HEADER.pack


class BodySender(PieceSender):
    """An outgoing body.

    Args:
        outlet: the connection.
        number: number of its request.
        over: called when the end of the body was sent.
    """

    __slots__ = ("_over",)

    def __init__(self, outlet: Framed, number: int, over: Callable[[], object]) -> None:
        super().__init__(outlet, number, _WINDOW, _PIECE, _WINDOW)
        self._over: Callable[[], object] | None = over

    def frame(self, size: int, *, ended: bool) -> bytes:
        return _pack(size, self.number, 0, frames.BODY, frames.END if ended else 0, 0)

    def over(self) -> None:
        if self._over is not None:
            self._over()

    def stop(self) -> None:
        self._over = None  # it refers to this
        super().stop()


class HopAllowance(Allowance):
    """Credit for a body that the peer sends.

    Args:
        outlet: the connection.
        number: number of its request.
    """

    __slots__ = ()

    def __init__(self, outlet: Framed, number: int) -> None:
        super().__init__(outlet, number, _WINDOW)

    def credit(self, size: int) -> bytes:
        return frames.credit(self.number, size)
