"""Ports of 127.0.0.1 that stay free until the program that gets one uses it."""

from __future__ import annotations

import collections
import random
import socket

import pytest

MOST = 64
"""Ports that are kept at once: more than a test asks for."""

_kept: collections.deque[socket.socket] = collections.deque()


def free_port() -> int:
    """A port on which no process listens, and which the kernel does not give to another meanwhile.

    It is bound and not listened on: a connection to it is refused, and who binds it by its number may, as all
    servers here do with SO_REUSEADDR, also one after another.
    """
    if len(_kept) >= MOST:
        _kept.popleft().close()
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    return int(kept.getsockname()[1])


def free_host(port: int) -> str:
    """An address of this machine's loopback network whose `port` is free (kept as in `free_port`).

    Args:
        port: the port that is to be free there.
    """
    for _ in range(100):
        # NB: chance from the system: tests that run beside each other may be seeded alike.
        host = "127." + ".".join(str(random.SystemRandom().randint(1, 254)) for _ in range(3))
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            kept.bind((host, port))
        except OSError:
            kept.close()
            continue
        if len(_kept) >= MOST:
            _kept.popleft().close()
        _kept.append(kept)
        return host
    raise OSError(f"expected a loopback address whose port {port} is free, found none in 100 tries")


def needs_ipv6() -> None:
    """Skip the test where nothing can listen on ::1."""
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine does not have IPv6: {error}")
