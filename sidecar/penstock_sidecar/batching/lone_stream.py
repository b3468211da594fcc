"""Passes the model's stream to a request that is alone in its batch, as it comes, byte for byte.

The model never waits for the client: one that leaves too much unread is disconnected, and the slot is free.
"""

from __future__ import annotations

import asyncio

from penstock_sidecar.batching.client_stream import ClientStream, too_slow
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import UpstreamAnswer, UpstreamError


class LoneStream:
    """One streamed answer.

    Args:
        answer: the model's.
    """

    def __init__(self, answer: UpstreamAnswer) -> None:
        self._answer = answer
        self._reading: asyncio.Task[object] | None = None
        self._left = False
        self.client = ClientStream(self._leave)

    async def run(self) -> Reason | None:
        """Read the model's stream to its end; returns why the client's was cut, None if it was not."""
        self._reading = asyncio.current_task()
        client = self.client
        try:
            while data := await self._answer.stream.read():
                if not client.put(data):
                    client.cut(too_slow())
                    return Reason.SLOW_READER
            client.end()
        except UpstreamError as error:
            client.cut(PenstockError(Reason.BAD_ANSWER, f"the model's stream: {error}"))
            return Reason.BAD_ANSWER
        except asyncio.CancelledError:
            client.cut(PenstockError(Reason.BAD_ANSWER, "the sidecar was stopped"))
            if not self._left or self._reading is None or self._reading.uncancel():
                raise
            return Reason.CLIENT_GONE
        finally:
            self._reading = None
            self._answer.abort()
        return None

    def _leave(self) -> None:
        """Stop reading: the client went away, or has all."""
        if self._reading is not None and not self._left:
            self._left = True
            self._reading.cancel()
