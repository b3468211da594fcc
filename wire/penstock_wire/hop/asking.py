"""Asks a sidecar for a hop by an HTTP/1.1 upgrade on a separate connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from penstock_wire.addresses import join
from penstock_wire.hop import frames
from penstock_wire.hop.client import HopClient, HopPool
from penstock_wire.http import ConnectFailed, NotAdmitted, NotCarried, UpstreamError
from penstock_wire.process import log

ASK_SECONDS = 5.0
"""For connecting and for the answer to the upgrade."""
ASK_AGAIN_SECONDS = 60.0
"""How long a server that refused the upgrade is not asked again."""
MEET_SECONDS = 1.0
"""The same for a server that refused or dropped the connection, is closing, or ended a hop."""
_MAX_HEAD_BYTES = 8192
_ASK = b"OPTIONS * HTTP/1.1\r\nhost: %b\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n"
_SWITCHES = b"HTTP/1.1 101 "
_END_OF_HEAD = b"\r\n\r\n"


class NoHop:
    """A server makes none.

    Args:
        seconds: until it can be asked again.
        error: of a request that only a hop could carry.
    """

    __slots__ = ("error", "seconds")

    def __init__(self, seconds: float, error: UpstreamError) -> None:
        self.seconds = seconds
        self.error = error


async def ask(pool: HopPool, key: tuple[str, int], made: Callable[[HopClient], object]) -> HopClient | NoHop:
    """Return a hop to a server, or why it makes none.

    Args:
        pool: the pool that the hop will belong to.
        key: host and port of the server.
        made: called with the hop before it takes its first frame and before this returns.
    """
    loop = asyncio.get_running_loop()
    asked = _Asked(pool, key, loop, made)
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await loop.create_connection(lambda: cast("asyncio.Protocol", asked), *key)
            hop = await asked.answer
    except (OSError, TimeoutError) as error:
        asked.give_up()
        why = ConnectFailed(f"cannot make a hop to {join(*key)}: {error!r}")
        return NoHop(MEET_SECONDS, why)
    except BaseException:
        asked.give_up()
        raise
    if hop is None:
        if asked.closing:
            return NoHop(MEET_SECONDS, NotAdmitted(f"{join(*key)} is closing, and makes no hop"))
        log("no hop, requests go over HTTP/1.1", server=join(*key))
        never = f"expected a server that makes hops, which alone carry gRPC calls, found {join(*key)}"
        return NoHop(ASK_AGAIN_SECONDS, NotCarried(never))
    return hop


class _Asked:
    """A connection on which a server was asked for a hop; an `asyncio.Protocol`."""

    def __init__(
        self,
        pool: HopPool,
        key: tuple[str, int],
        loop: asyncio.AbstractEventLoop,
        made: Callable[[HopClient], object],
    ) -> None:
        self.answer: asyncio.Future[HopClient | None] = loop.create_future()
        self._made = made
        self._pool = pool
        self._key = key
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._hop: HopClient | None = None
        self.closing = False  # the server closes its connections
        self._received = b""

    def give_up(self) -> None:
        """Close the connection: the answer is no longer wanted.

        NB: its hop may be in use already, and a loop that was cancelled does not always report its end.
        """
        self.answer.cancel()
        if self._hop is not None:
            self._pool.forget(self._hop)
            self._hop.end()
        elif self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_ASK % (join(*self._key).encode("latin-1"), frames.PROTOCOL))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(_END_OF_HEAD)
        transport = self._transport
        if self.answer.done() or transport is None or (not end and len(head) <= _MAX_HEAD_BYTES):
            return
        if not (end and _agrees(head)):
            self.closing = b"\r\nconnection: close" in head.lower()
            self.answer.set_result(None)
            transport.abort()
            return
        self._hop = hop = HopClient(self._pool, self._key, self._loop, transport)
        transport.set_protocol(cast("asyncio.Protocol", hop))
        self._made(hop)
        self.answer.set_result(hop)
        if rest:
            hop.data_received(rest)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectionResetError())


def _agrees(head: bytes) -> bool:
    """Whether the head of an answer switches to this version of the hop's protocol."""
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    named = [value.strip().lower() for name, _, value in lines if name.lower() == b"upgrade"]
    return head.startswith(_SWITCHES) and named == [frames.PROTOCOL]
