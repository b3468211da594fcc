"""Finds free ports for children, and checks the user's port."""

from __future__ import annotations

import errno
import random
import socket
from collections import deque

HOST = "127.0.0.1"


class PortTaken(Exception):
    """The user's port cannot be listened on; the message has a way out."""


_LISTENED = range(20_000, 32_000)
"""Ports below the range for outgoing connections (Linux, macOS): a free one is not taken by chance before the
child listens on it."""

_given: deque[int] = deque(maxlen=1000)
"""Ports that were returned recently: their children possibly do not listen yet."""


def free_port() -> int:
    """Return a free port, another one each time.

    If it is taken all the same, the child reports that and does not become ready.
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
    """Check that it is possible to listen on a port.

    Raises:
        PortTaken: it is not possible.
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
