"""Counts requests: the interface for the code that answers them."""

from __future__ import annotations

from typing import Protocol

from penstock_wire.errors import Reason


class RequestObserver(Protocol):
    """Counts requests by their end."""

    def arrived(self, items: int) -> None:
        """A request with so many items could be read; one where it was refused unread."""
        ...

    def ended(self, status: int, reason: Reason | None, items: int, said: str = "") -> None:
        """A request ended.

        Args:
            status: status of its answer.
            reason: why, where the answer is an error of ours.
            items: its items, 0 where it could not be read.
            said: why, where the answer is an error of the model's (`model_answers.model_reason`).
        """
        ...
