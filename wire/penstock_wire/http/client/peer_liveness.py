"""Detects a peer that ends without closing: its node lost power, or the network to it.

Then no FIN and no RST comes, and TCP alone gives up after a quarter of an hour. Two checks find it sooner. If
nothing is under way on a connection, the kernel probes once a second (keep-alive). If something is, it does
not probe: then the time counts in which nothing has come while sent data is unacknowledged.

Both are answered by the peer's kernel, so a process that computes for an hour, or is stopped, is not silent.
Nor is a process that reads nothing: a closed window leaves nothing unacknowledged. TCP_USER_TIMEOUT would end
such a connection, too, so it is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import termios

from penstock_wire.http import ConnectionLost, RequestUnread

PROBE_SECONDS = 1
_ERRORS = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
_UNACKNOWLEDGED_AT, _LAST_ACK_AT = 24, 56
"""Offsets of the two in `struct tcp_info` (linux/tcp.h)."""
_CLOSED = 7
"""TCP_CLOSE (linux/tcp_states.h), the state after a reset."""
_POLLRDHUP = getattr(select, "POLLRDHUP", 0)
_READ_BYTES = 256 * 1024
_ABLE = all(hasattr(socket, name) for name in ("TCP_INFO", "TCP_KEEPIDLE"))


@dataclasses.dataclass(frozen=True, slots=True)
class TcpSigns:
    """The kernel's data on a connection's peer.

    Args:
        heard_ago: seconds since anything came from its kernel.
        unacknowledged: segments that were sent and not acknowledged.
    """

    heard_ago: float = 0.0
    unacknowledged: int = 0


def probe(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Make the kernel end a connection if nothing is under way and probes get no reply for some time.

    Args:
        transport: of TCP; on a system without this feature, nothing is changed.
        seconds: how long the peer can be silent; one second more passes before the first probe.
    """
    if not _ABLE:
        return
    of: socket.socket = transport.get_extra_info("socket")
    of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    of.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, round(seconds / PROBE_SECONDS)))


def look(transport: asyncio.BaseTransport) -> TcpSigns:
    """Ask the kernel for signs of life; on a system without them, report a live peer."""
    of: socket.socket | None = transport.get_extra_info("socket")
    if of is None or not _ABLE:
        return TcpSigns()
    info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_AT + 4)
    (unacknowledged,) = struct.unpack_from("=I", info, _UNACKNOWLEDGED_AT)
    (milliseconds,) = struct.unpack_from("=I", info, _LAST_ACK_AT)
    return TcpSigns(milliseconds / 1000, unacknowledged)


def was_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has reset a connection that it had closed before.

    A reader of the connection sees the orderly end first; only the kernel's state shows the reset. False on a
    system that does not show it.
    """
    of: socket.socket | None = transport.get_extra_info("socket")
    if of is None or not _ABLE:
        return False
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED


def is_silence(error: BaseException | None) -> bool:
    """Whether a connection ended because nothing came back; a refusal or a reset would be a response."""
    return isinstance(error, OSError) and error.errno in _ERRORS


def nothing_waits(transport: asyncio.BaseTransport) -> bool:
    """Whether nothing of the peer, not even its end, waits for the loop to deliver it.

    NB: False for a closed transport. If its making was cancelled, uvloop closes it, calls no
    `connection_lost`, and `is_closing` is False.
    """
    return _poll(transport, select.POLLIN) == 0


def has_left(transport: asyncio.BaseTransport, *, half: bool) -> bool:
    """Whether the peer's end has come, though bytes before it are unread.

    NB: its orderly end does not come while its kernel still has to send and the window is closed.

    Args:
        transport: of TCP; on a system that does not show it, only a reset is seen.
        half: the peer may end its half and go on listening; only a reset counts.
    """
    ends = select.POLLERR if half else select.POLLERR | _POLLRDHUP
    events = _poll(transport, _POLLRDHUP)
    return events is not None and events & ends != 0


def _poll(transport: asyncio.BaseTransport, events: int) -> int | None:
    """What the kernel shows of some events, and of an error; None for a closed transport."""
    of: socket.socket | None = transport.get_extra_info("socket")  # none, where TLS has just ended
    descriptor = -1 if of is None else of.fileno()
    if descriptor < 0:
        return None
    poll = select.poll()
    poll.register(descriptor, events)
    shown = poll.poll(0)
    return shown[0][1] if shown else 0


def ended_early(where: str, *, unread: bool) -> ConnectionLost:
    """Make the error of a connection that ended before a complete answer.

    Args:
        where: host and port of the peer.
        unread: it was a kept one and was reset before the first byte of an answer. A kernel resets a
            connection if its socket is closed with bytes unread, or before they came. A server that reads a
            request and then ends leaves an orderly end.
    """
    if unread:
        return RequestUnread(f"{where} closed the connection before it had read the request")
    return ConnectionLost(f"the connection to {where} ended before a complete answer")


def undelivered(transport: asyncio.BaseTransport, error: Exception | None) -> list[bytes]:
    """Take what has come from the peer and its transport, ended by an error, has not delivered.

    A transport that cannot write is over: it reads no more. But a server that answers before it has read a
    request, and closes, has sent its answer before the reset that such a write meets. With TLS, nothing.
    """
    pieces: list[bytes] = []
    if error is None or transport.get_extra_info("sslcontext") is not None:
        return pieces
    with contextlib.suppress(OSError):  # at the latest when nothing is left
        while piece := os.read(transport.get_extra_info("socket").fileno(), _READ_BYTES):
            pieces.append(piece)
    return pieces


def untaken_bytes(transport: asyncio.WriteTransport) -> int:
    """Count the bytes that were sent and that the peer's kernel has not acknowledged (`SIOCOUTQ` in tcp(7)).

    The transport's own buffer does not show a slow reader: the kernel takes more from it when much of its
    own megabytes is free again. A peer that reads nothing closes its window, and no more is acknowledged.
    """
    waiting = bytearray(4)
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, waiting)
    return transport.get_write_buffer_size() + int.from_bytes(waiting, sys.byteorder)
