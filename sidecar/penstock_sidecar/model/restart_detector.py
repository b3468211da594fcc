"""Detects that another process listens at the model's port, without sending it anything.

The kernel gives each socket a number (its cookie) that is unique until the machine restarts, and reports the
cookies of listening sockets within the network namespace, which the containers of a pod share. A restarted
process listens with another socket; a process that was merely slow, or ended a connection, keeps its socket.
If several sockets share the port (`SO_REUSEPORT`, one for each worker), all of them must have gone.

Protocol: sock_diag(7), `struct inet_diag_req_v2` and `struct inet_diag_msg` of linux/inet_diag.h.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import socket
import struct

_SOCK_DIAG = 4  # the netlink family; Python 3.11 has no name for it
_BY_FAMILY = 20
_REQUEST, _DUMP = 1, 0x300
_ERROR, _DONE = 2, 3
_LISTEN = 10
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port id
_ASKED = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, a bit for each state
_ADDRESSES = struct.Struct("!HH16s16s")  # source port, destination port, source, destination
_SOCKET = struct.Struct("=III")  # interface, cookie in two halves
_STATE = struct.Struct("=BBBB")  # family, state, timer, retransmissions
_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address that an IPv6 socket is bound to (RFC 4291 section 2.5.5.2)."""
_UNABLE = frozenset({errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP, errno.EAFNOSUPPORT})
"""Errors of a kernel without the family, or without sock_diag for TCP, when all sockets are requested."""
_RECEIVE = 64 * 1024

_Host = ipaddress.IPv4Address | ipaddress.IPv6Address


class ListenerIdentity:
    """The identity of the sockets that listen at an address of this network namespace.

    Args:
        host: a loopback address, or `localhost`. Any other may be elsewhere, so nothing is detected there.
        port: the TCP port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._port = port
        self._hosts: list[_Host] = []
        self._families: list[int] = [socket.AF_INET, socket.AF_INET6]
        for text in ("127.0.0.1", "::1") if host == "localhost" else (host,):
            try:
                address: _Host = ipaddress.ip_address(text)
            except ValueError:
                continue
            address = getattr(address, "ipv4_mapped", None) or address
            if address.is_loopback:
                self._hosts.append(address)
        self._sequence = itertools.count(1)
        self._socket: socket.socket | None = None
        self._known: frozenset[int] = frozenset()

    @property
    def known(self) -> bool:
        """Whether a listening socket has been seen."""
        return bool(self._known)

    def replaced(self) -> bool:
        """Whether all listening sockets are new, True once for each change; some 6 µs if nothing has changed.

        Returns:
            False, too, if nothing listens, `look` has seen nothing yet, or the kernel does not answer.
        """
        if not self._known or not self._known.isdisjoint(self._listeners(every=False)):
            return False
        return self.look()

    def look(self) -> bool:
        """As `replaced`, and note each socket that listens now; some 30 µs, more on a large machine."""
        now = self._listeners(every=True)
        if not now:
            return False
        before, self._known = self._known, now
        return bool(before) and before.isdisjoint(now)

    def forget(self) -> None:
        """Forget the known sockets: the model has gone, and the next listener is accepted as the model."""
        self._known = frozenset()

    def close(self) -> None:
        """Close the netlink socket; the next question opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _listeners(self, *, every: bool) -> frozenset[int]:
        """The cookies of all listening sockets (`every`), or only of the one that a connection would get."""
        try:
            return frozenset(
                cookie
                for host in self._hosts
                for family in (list(self._families) if every else (_family(host),))
                for cookie in self._ask(host, family, every=every)
            )
        except (OSError, AttributeError, struct.error):
            # NB: not Linux, or a sandbox with its own kernel, or an answer that was cut: nothing is known.
            self.close()
            return frozenset()

    def _ask(self, host: _Host, family: int, *, every: bool) -> list[int]:
        sequence = next(self._sequence) & 0xFFFFFFFF
        source = bytes(16) if every else host.packed.ljust(16, b"\0")
        asked = (
            _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
            + _ADDRESSES.pack(self._port, 0, source, bytes(16))
            + _SOCKET.pack(0, _NO_COOKIE, _NO_COOKIE)
        )
        flags = _REQUEST | _DUMP if every else _REQUEST
        if self._socket is None:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
            self._socket.settimeout(0)  # the kernel answers within `send`
        self._socket.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, flags, sequence, 0) + asked)
        cookies: list[int] = []
        while True:
            data = self._socket.recv(_RECEIVE)
            at = 0
            while at < len(data):
                length, kind, _, answered, _ = _HEADER.unpack_from(data, at)
                if answered != sequence or length < _HEADER.size:
                    raise OSError("expected the answer to what was asked")
                if kind in (_ERROR, _DONE):
                    self._check_end(data[at + _HEADER.size : at + length], family, every=every)
                    return cookies
                if _takes(data, at + _HEADER.size, host):
                    low, high = struct.unpack_from("=II", data, at + _COOKIE_AT)
                    cookies.append(low | high << 32)
                if not every:
                    return cookies
                at += (length + 3) & ~3

    def _check_end(self, answer: bytes, family: int, *, every: bool) -> None:
        """Raise OSError if the answer ended too early: `answer` begins with 0 or a negative error number."""
        number = -struct.unpack_from("=i", answer)[0] if len(answer) >= 4 else 0
        if every and number in _UNABLE:
            self._families.remove(family)  # each further question would make the kernel look for a module
        elif number not in (0, errno.ENOENT):  # ENOENT: nothing listens there
            raise OSError(number, "the kernel reported an error")


_COOKIE_AT = _HEADER.size + _STATE.size + _ADDRESSES.size + 4


def _family(host: _Host) -> int:
    return socket.AF_INET if host.version == 4 else socket.AF_INET6


def _takes(data: bytes, at: int, host: _Host) -> bool:
    """Whether the socket of this record listens at this address, or at all addresses."""
    family, state, _, _ = _STATE.unpack_from(data, at)
    _, _, source, _ = _ADDRESSES.unpack_from(data, at + _STATE.size)
    own = source[:4] if family == socket.AF_INET else source.removeprefix(_MAPPED)
    return state == _LISTEN and (own == host.packed or not any(own))
