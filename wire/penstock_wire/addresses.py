"""Addresses of both families: binding, writing, and a peer's plain form.

`::` stands for every address of the machine, IPv6 and IPv4: a pod has either or both, which is known only
when it runs. If the kernel has no IPv6, `0.0.0.0` takes its place.
"""

from __future__ import annotations

import errno
import socket

ANY = "::"
_UNABLE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
"""Errors of a kernel without IPv6 when a process listens on `::`."""
_MAPPED = "::ffff:"


def bind_any(port: int, *, backlog: int, reuse_port: bool = False) -> socket.socket:
    """Listen on all addresses, IPv6 and IPv4.

    Args:
        port: port to bind, 0 for any.
        backlog: connections that can wait to be accepted.
        reuse_port: as SO_REUSEPORT.

    Raises:
        OSError: the port cannot be bound.
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
    """Return `HOST:PORT`, with brackets around an IPv6 address (RFC 3986 section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """Return a peer's plain address: an IPv6 socket has IPv4 as `::ffff:192.0.2.1` (RFC 4291, 2.5.5.2)."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host
