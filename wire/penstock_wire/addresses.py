"""Addresses of both families: what to listen on, what a peer is called, how both are written.

`::` stands for every address of the machine, of IPv6 and of IPv4: a pod has one of either, or both, and which
it is shows only when it runs. Where the kernel knows no IPv6 it is `0.0.0.0`.
"""

from __future__ import annotations

import errno
import socket

ANY = "::"
_UNABLE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
"""What a kernel without IPv6 says to who wants to listen on `::`."""
_MAPPED = "::ffff:"


def bind_any(port: int, *, backlog: int, reuse_port: bool = False) -> socket.socket:
    """Listen on all addresses, of IPv6 and of IPv4.

    Args:
        port: port to bind, 0 for any.
        backlog: connections that may wait to be accepted.
        reuse_port: as SO_REUSEPORT.

    Raises:
        OSError: it cannot be bound.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                (ANY, port),
                family=socket.AF_INET6,
                dualstack_ipv6=True,
                backlog=backlog,
                reuse_port=reuse_port,
            )
        except OSError as error:
            if error.errno not in _UNABLE:
                raise
    return socket.create_server(("0.0.0.0", port), backlog=backlog, reuse_port=reuse_port)


def join(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address (RFC 3986 section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """A peer's own address: on an IPv6 socket, IPv4 is `::ffff:192.0.2.1` (RFC 4291 section 2.5.5.2)."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host
