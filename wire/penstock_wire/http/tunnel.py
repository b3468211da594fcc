"""Carries bytes between two connections that have switched protocols, for a router or a sidecar."""

from __future__ import annotations

import asyncio

from penstock_wire.http import Tunnel

IDLE_SECONDS = 600.0
"""Default time without a byte either way after which a tunnel is closed."""


class TunnelIdle(Exception):
    """No byte went either way for too long."""


class _Watch:
    """Ends a tunnel's two halves when no byte has gone either way for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)
        self.halves: list[asyncio.Task[None]] = []
        self.idle = False

    def data_passed(self) -> None:
        """Note that bytes have passed."""
        self._heard = self._loop.time()

    def stop(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look(self) -> None:
        # NB: one timer for all pieces since it was set: a busy tunnel has thousands of pieces a second.
        left = self._heard + self._seconds - self._loop.time()
        if left > 0.0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self.idle = True
        for half in self.halves:
            half.cancel()


async def join(tunnel: Tunnel, other: Tunnel, idle: float) -> None:
    """Carry bytes both ways until both sides have ended; each half ends by itself.

    Args:
        tunnel: a side.
        other: the other.
        idle: seconds without a byte either way after which both are closed.

    Raises:
        TunnelIdle, ClientGone, UpstreamError: nothing came, or a side is gone; both are closed then, as they
            are when this is cancelled.
    """
    watch = _Watch(idle)
    back = asyncio.get_running_loop().create_task(_carry(other, tunnel, watch))
    try:
        forth = asyncio.get_running_loop().create_task(_carry(tunnel, other, watch))
        watch.halves = [forth, back]
        try:
            done, _ = await asyncio.wait({forth, back}, return_when=asyncio.FIRST_EXCEPTION)
            if watch.idle:
                raise TunnelIdle(f"nothing went either way for {idle:.0f} s")
            for task in done:
                task.result()
        finally:
            await _stop(forth)
    except BaseException:  # a cancellation too: neither side can stay open
        tunnel.abort()
        other.abort()
        raise
    finally:
        watch.stop()
        await _stop(back)


async def _carry(source: Tunnel, sink: Tunnel, watch: _Watch) -> None:
    while data := await source.read():
        watch.data_passed()
        await sink.write(data)
        watch.data_passed()
    sink.end()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # mark it as retrieved: it was handled above
