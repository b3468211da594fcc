"""Heads that came before: the same bytes mean the same, so they need not be read again.

Most clients send the same head with each of their requests, and those of one program are alike. What the
parser and the checks behind it have made of such a head is kept by its bytes. Only heads are kept that say
nothing about their connection and whose whole request came in one piece, so that nothing depends on what the
parser has seen before.

Where heads are all different (each with a request id), looking is in vain: after some misses it rests.
"""

from __future__ import annotations

from penstock_wire.headers import Headers

MAX_HEADS = 256
"""Heads kept at most; when there are more, all are forgotten."""
MAX_HEAD_BYTES = 2048
"""Longer heads are not kept."""
MISSES = 256
"""Looks in vain, beyond three for each that was not, before it rests."""
REST = 16_384
"""Requests for which it rests."""
_END = b"\r\n\r\n"


class CachedHead:
    """A head as it was read.

    Args:
        method: the method.
        target: path and query.
        fields: the header fields for the service.
        length: bytes of the body behind it.
    """

    __slots__ = ("fields", "length", "method", "plain", "target")

    def __init__(self, method: str, target: str, fields: Headers, length: int) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.length = length
        self.plain = method != "HEAD"


class HeadCache:
    """The heads that came to one listener."""

    __slots__ = ("_credit", "_heads", "_rest")

    def __init__(self) -> None:
        self._heads: dict[bytes, CachedHead] = {}
        self._credit = MISSES
        self._rest = 0

    def __len__(self) -> int:
        return len(self._heads)

    def awake(self) -> bool:
        """Whether it is worth while to look for the next head; asked once for each request."""
        if self._credit > 0:
            return True
        self._rest += 1
        if self._rest >= REST:
            self._rest = 0
            self._credit = MISSES
        return False

    def find(self, data: bytes) -> CachedHead | None:
        """The head of a whole request.

        Args:
            data: what was received where a request may begin.

        Returns:
            The head, where `data` is it and its body, to the last byte; else None.
        """
        end = data.find(_END) + 4
        known = self._heads.get(data[:end]) if 4 <= end <= MAX_HEAD_BYTES else None
        if known is not None and len(data) - end == known.length:
            if self._credit < MISSES:
                self._credit += 3
            return known
        self._credit -= 1
        return None

    def learn(self, data: bytes, head: CachedHead) -> None:
        """Keep a head that the parser has read.

        Args:
            data: what was received.
            head: what was read of it last; kept only if it is all of `data`, its body included.
        """
        end = data.find(_END) + 4
        if not 4 <= end <= MAX_HEAD_BYTES or len(data) - end != head.length:
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[data[:end]] = head
