"""A peer that ends without a word: its node lost power, or the network to it.

No FIN and no RST comes then, and TCP alone gives up after a quarter of an hour. Two looks find it sooner.
Where nothing is under way on a connection, the kernel probes once a second (keep-alive). Where something is,
there are no probes: then it counts how long nothing has come while sent data is not acknowledged.

It is the peer's kernel that answers both, so a process that computes for an hour, or is stopped, is not
silent. Nor is one that reads nothing: a closed window leaves nothing unacknowledged, so TCP_USER_TIMEOUT,
which would end that too, is not what is used here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import select
import socket
import struct

PROBE_SECONDS = 1
_ERRORS = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
_UNACKNOWLEDGED_AT, _LAST_ACK_AT = 24, 56
"""Where in `struct tcp_info` (linux/tcp.h) they stand."""
_CLOSED = 7
"""TCP_CLOSE (linux/tcp_states.h), the state that a reset leaves."""
_ABLE = all(hasattr(socket, name) for name in ("TCP_INFO", "TCP_KEEPIDLE"))


@dataclasses.dataclass(frozen=True, slots=True)
class TcpSigns:
    """What the kernel knows of a connection's peer.

    Args:
        heard_ago: seconds since anything came from its kernel.
        unacknowledged: segments that were sent and not acknowledged.
    """

    heard_ago: float = 0.0
    unacknowledged: int = 0


def probe(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Let the kernel end a connection on which nothing is under way and probes were not answered for so long.

    Args:
        transport: of TCP; on a system that cannot do this, nothing is changed.
        seconds: how long the peer may be silent; one second more goes by before the first probe.
    """
    if not _ABLE:
        return
    of: socket.socket = transport.get_extra_info("socket")
    of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, round(seconds / PROBE_SECONDS)))


def look(transport: asyncio.BaseTransport) -> TcpSigns:
    """Ask the kernel for signs of life; on a system without them, all is well."""
    of: socket.socket | None = transport.get_extra_info("socket")
    if of is None or not _ABLE:
        return TcpSigns()
    info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_AT + 4)
    (unacknowledged,) = struct.unpack_from("=I", info, _UNACKNOWLEDGED_AT)
    (milliseconds,) = struct.unpack_from("=I", info, _LAST_ACK_AT)
    return TcpSigns(milliseconds / 1000, unacknowledged)


def was_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has reset a connection that it had closed before.

    Who reads the connection meets the orderly end first; only the kernel's state shows the reset. False on
    a system that does not show it.
    """
    of: socket.socket | None = transport.get_extra_info("socket")
    if of is None or not _ABLE:
        return False
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED


def is_silence(error: BaseException | None) -> bool:
    """Whether a connection ended because no answer came; a refusal or a reset is an answer."""
    return isinstance(error, OSError) and error.errno in _ERRORS


def nothing_waits(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has said nothing, not even its end, that the loop has not handed over yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return not poll.poll(0)
