"""What the dispatcher expects of whatever sends the model requests that hold no items."""

from __future__ import annotations

from typing import Protocol

from penstock_wire.errors import PenstockError


class RequestPath(Protocol):
    """What sends the model, beside the batches, what holds no items (`passthrough.Passthrough`)."""

    @property
    def queued(self) -> int:
        """Requests that wait."""
        ...

    @property
    def ongoing(self) -> int:
        """Requests with the model."""
        ...

    async def idle(self) -> None:
        """Wait until there is nothing."""
        ...

    async def quiet(self) -> None:
        """Wait until nothing is with the model."""
        ...

    def pause(self) -> None:
        """Send nothing more."""
        ...

    def resume(self) -> None:
        """Send again."""
        ...

    def refuse(self, error: PenstockError | None) -> None:
        """Refuse new requests, or take them again."""
        ...

    def refuse_queued(self, error: PenstockError) -> int:
        """Refuse what is queued."""
        ...

    async def abort(self) -> None:
        """End all at once."""
        ...
