"""Ports of this machine: one that is free for a child, and whether the user's is."""

from __future__ import annotations

import errno
import random
import socket
from collections import deque

HOST = "127.0.0.1"


class PortTaken(Exception):
    """The port that the user named cannot be listened on; the text says what to do."""


_LISTENED = range(20_000, 32_000)
"""Ports below those from which a kernel takes the ones of outgoing connections (Linux, macOS): what is free
among these does not become taken by chance before the child listens."""

_given: deque[int] = deque(maxlen=1000)
"""Ports that were given lately: who was given one may not listen on it yet."""


def free_port() -> int:
    """A port on which nobody listens, and another one each time.

    A child that finds it taken all the same says so and is not ready.
    """
    for port in [*(port for port in random.sample(_LISTENED, 50) if port not in _given), 0]:
        with socket.socket() as tried:
            try:
                tried.bind((HOST, port))
            except OSError:
                continue
            _given.append(int(tried.getsockname()[1]))
            return _given[-1]
    raise PortTaken(f"expected a free port of {HOST}, found none")


def check(port: int) -> None:
    """Find out whether a port can be listened on.

    Raises:
        PortTaken: it cannot.
    """
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
            tried.listen()
        except OSError as error:
            way_out = f"--port {free_port()} is free, --port 0 takes any"
            if error.errno == errno.EADDRINUSE:
                text = f"expected port {port} of {HOST} to be free, found it taken: {way_out}"
            else:
                text = f"expected to listen on port {port} of {HOST}, found {error.strerror}: {way_out}"
            raise PortTaken(text) from None
