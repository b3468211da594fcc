"""Gives each request its `x-request-id`: the client's, or a new one."""

from __future__ import annotations

import os
from typing import Final

from penstock_wire.contract import REQUEST_ID

_LAST_DIGITS: Final = [b"%02x" % number for number in range(256)]


class RequestIds:
    """Makes the ids of one process's requests."""

    __slots__ = ("_block", "_number", "_prefix")

    def __init__(self) -> None:
        # An id can be guessable: it is not a secret, and opens nothing. A random part separates the ids of
        # two processes, a number those of one.
        self._prefix = os.urandom(8).hex().encode()
        self._number = 0
        self._block = b""  # an id without its last two digits

    def of(self, sent: bytes | None) -> bytes:
        """Return the id that a client sent, or a new one if it sent none or an invalid one.

        Args:
            sent: the value of its `x-request-id`, None for none.
        """
        if sent is not None and REQUEST_ID.fullmatch(sent) is not None:
            return sent
        self._number += 1
        last = self._number & 0xFF
        if not (last and self._block):
            self._block = b"%b%014x" % (self._prefix, self._number >> 8)
        return self._block + _LAST_DIGITS[last]
