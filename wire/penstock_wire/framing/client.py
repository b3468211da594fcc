"""A client's end of a connection of frames: many calls under way at once."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final, Protocol

from penstock_wire.addresses import join
from penstock_wire.framing.call import FramedCall
from penstock_wire.framing.connection import Framed
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectionLost,
    PeerSilent,
    RequestNotTaken,
    RequestUnread,
    UpstreamTimeout,
)
from penstock_wire.http.client.peer_liveness import is_silence, was_reset
from penstock_wire.timers import EarliestTimer

_LOOK_AGAIN: Final = 0.001
"""Least seconds between two looks at the deadlines."""


class ClientPool(Protocol):
    """The pool that a connection belongs to."""

    def leaves(self, connection: FramedClient) -> None:
        """Remove a connection that accepts no further request."""
        ...

    def forget(self, connection: FramedClient) -> None:
        """Remove a connection that has ended."""
        ...

    def silent(self, connection: FramedClient) -> None:
        """Take note that a connection ended because its peer's machine gave no sign of life."""
        ...


class FramedClient(Framed):
    """The client's end of one connection.

    Args:
        pool: the pool that it belongs to.
        key: host and port of the peer.
        loop: the running loop.
        transport: the connection.
        header_bytes: bytes of a frame's header.
    """

    def __init__(
        self,
        pool: ClientPool,
        key: tuple[str, int],
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        header_bytes: int,
    ) -> None:
        super().__init__(loop, transport, header_bytes)
        self.key = key
        self.where = join(*key)
        self.reusable = True
        self.idle_since = time.monotonic()
        self._pool = pool
        self._calls: dict[int, FramedCall] = {}
        self._number = 0  # of the last request
        self._timer = EarliestTimer(self._look, time.monotonic)

    # -- what each protocol does in its way -----------------------------------------------------------------

    def _cancel(self, call: FramedCall) -> None:
        """Ask the server to end its work on a call."""
        raise NotImplementedError

    def _is_unread(self, number: int) -> bool:
        """Whether the server has surely not read a request, when the connection ends."""
        raise NotImplementedError

    # -- calls ----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._calls)

    def kept(self) -> int:
        kept = self.transport.get_write_buffer_size() + self._out_bytes + self._held
        return kept + sum([call.kept() for call in self._calls.values()])

    def give_up(self, call: FramedCall, error: Exception) -> None:
        if self._calls.pop(call.number, None) is None:
            return
        if not self.transport.is_closing():
            self._cancel(call)
        call.deadline = math.inf
        self._rest()
        call.fail(error)

    # -- time -----------------------------------------------------------------------------------------------

    def expect_by(self, call: FramedCall, deadline: float) -> None:
        if call.number in self._calls:
            call.deadline = deadline
            self._timer.ring_at(deadline)

    def _look(self) -> None:
        now = time.monotonic()
        earliest = math.inf
        for call in list(self._calls.values()):
            deadline = call.deadline
            if deadline <= now:
                what = "nothing more" if call.answered else "no answer"
                self.give_up(call, UpstreamTimeout(f"{what} of {self.where} in time"))
            elif deadline < earliest:
                earliest = deadline
        if earliest != math.inf:
            self._timer.ring_at(max(earliest, now + _LOOK_AGAIN))

    # -- the end --------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Note that a call is over; close when the last one is and no more may come."""
        if not self._calls:
            self.idle_since = time.monotonic()
            if not self.reusable:
                self._close()

    def _close(self) -> None:
        self.ended = True
        if not self.transport.is_closing():
            self._flush()
            self.transport.close()

    def _is_left(self, last: int) -> None:
        """Fail the calls behind the last that the server accepts, and send no further ones here."""
        self.reusable = False
        self._pool.leaves(self)
        for call in [call for number, call in self._calls.items() if number > last]:
            del self._calls[call.number]
            call.fail(RequestNotTaken(f"{self.where} ended the connection before it had read the request"))
        self._rest()

    def retire(self) -> None:
        """Send no further requests here; close after the last answer."""
        self.reusable = False
        self._rest()

    def end(self) -> None:
        """Close now; calls under way fail."""
        self.fail(ConnectionLost(f"the connection to {self.where} was closed here"))

    def fail(self, error: Exception) -> None:
        """End the connection; its calls fail with an error, but those not executed fail as unread."""
        self.ended = True
        self.reusable = False
        calls, self._calls = self._calls, {}
        for number, call in calls.items():
            call.deadline = math.inf
            if self._is_unread(number):
                why = f"{self.where} closed the connection before it had read the request"
                call.fail(RequestUnread(why))
            else:
                call.fail(error)
        self._timer.cancel()
        if isinstance(error, AnswerUnreadable):
            self.transport.close()  # after sending the reason
        else:
            self.transport.abort()

    def eof_received(self) -> bool:
        self._lost(reset=was_reset(self.transport))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.forget(self)
        if is_silence(error):
            self.fail(PeerSilent(f"{self.where} gave no sign of life before a complete answer: {error}"))
            self._pool.silent(self)
        else:
            self._lost(reset=isinstance(error, (ConnectionResetError, BrokenPipeError)))

    def _lost(self, *, reset: bool) -> None:
        """Fail all calls: the connection has ended.

        Args:
            reset: the peer's kernel reset it.
        """
        self.fail(ConnectionLost(f"the connection to {self.where} ended before a complete answer"))
