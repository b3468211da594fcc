"""A peer that ends without a word: its node lost power, or the network to it.

No FIN and no RST comes then, and TCP alone gives up after a quarter of an hour. So the kernel is asked to end
a connection sooner: what was sent and not acknowledged for so long ends it (TCP_USER_TIMEOUT, RFC 5482), and
one on which nothing is under way is probed once a second (keep-alive). It is the peer's kernel that answers
both, so a process that computes for an hour, or is stopped, is not silent.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct

PROBE_SECONDS = 1
_ERRORS = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
_LAST_ACK_AT = 56
"""Where in `struct tcp_info` (linux/tcp.h) the milliseconds since the last segment from the peer stand."""


def watch(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Let the kernel end a connection whose peer has been silent for so long.

    Args:
        transport: of TCP; on a system that cannot do this, nothing is changed.
        seconds: how long the peer may be silent.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    of: socket.socket = transport.get_extra_info("socket")
    of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def is_silence(error: BaseException | None) -> bool:
    """Whether a connection ended because nobody answered; a refusal or a reset is an answer."""
    return isinstance(error, OSError) and error.errno in _ERRORS


def heard_ago(transport: asyncio.BaseTransport) -> float:
    """Seconds since anything came from the peer's kernel; 0 where the system does not tell."""
    of: socket.socket | None = transport.get_extra_info("socket")
    if of is None or not hasattr(socket, "TCP_INFO"):
        return 0.0
    info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_AT + 4)
    milliseconds: int = struct.unpack_from("=I", info, _LAST_ACK_AT)[0]
    return milliseconds / 1000
