"""Heads that came before: the same bytes mean the same, so they need not be read again.

Most clients send the same head with each of their requests, and those of one program are alike; so are the
answers of one service. What the parser and the checks behind it have made of such a head is kept by its
bytes. Only heads are kept that do not end their connection and whose whole message came in one piece, so that
nothing depends on what the parser has seen before.

Where heads are all different (each with a request id), looking is in vain: after some misses it rests.
"""

from __future__ import annotations

from typing import Final

from penstock_wire.headers import Headers

MAX_HEADS: Final = 256
"""Heads kept at most; when there are more, all are forgotten."""
MAX_HEAD_BYTES: Final = 2048
"""Longer heads are not kept."""
MAX_FIELDS: Final = 48
"""Nor are those with more fields: two hundred short ones take ten times their bytes (`FIELD_BYTES`)."""
MISSES: Final = 256
"""Looks in vain, beyond three for each that was not, before it rests."""
REST: Final = 16_384
"""Messages for which it rests."""
FIELD_BYTES: Final = 128
"""Bytes that a field takes beside those of its name and value: a tuple and two objects."""
_END: Final = b"\r\n\r\n"
_KEEPS: Final = frozenset({b"keep-alive", b"Keep-Alive"})


class CachedHead:
    """A head as it was read.

    Args:
        fields: the end-to-end fields.
        length: bytes of the body behind it.
    """

    __slots__ = ("fields", "length", "raw", "size")

    def __init__(self, fields: Headers, length: int) -> None:
        self.fields = fields
        self.length = length
        self.raw = b"\r\n"
        """Its bytes, once it is kept; until then some that begin no message."""
        self.size = 0
        """Bytes of memory that it takes, about, once it is kept."""


class RequestHead(CachedHead):
    """The head of a request; other members as in `CachedHead`.

    Args:
        method: the method.
        target: path and query.
    """

    __slots__ = ("method", "plain", "target")

    def __init__(self, method: str, target: str, fields: Headers, length: int) -> None:
        super().__init__(fields, length)
        self.method = method
        self.target = target
        self.plain = method != "HEAD"


class ResponseHead(CachedHead):
    """The head of an answer to another method than HEAD; other members as in `CachedHead`.

    Args:
        status: from 200 to 299.
    """

    __slots__ = ("status",)

    def __init__(self, status: int, fields: Headers, length: int) -> None:
        super().__init__(fields, length)
        self.status = status


class HeadCache:
    """The heads that came to one listener, or of the answers that came to one client: never both."""

    __slots__ = ("_credit", "_heads", "_rest")

    def __init__(self) -> None:
        self._heads: dict[bytes, CachedHead] = {}
        self._credit = MISSES
        self._rest = 0

    def __len__(self) -> int:
        return len(self._heads)

    def awake(self) -> bool:
        """Whether it is worth while to look for the next head; asked once for each message."""
        if self._credit > 0:
            return True
        self._rest += 1
        if self._rest >= REST:
            self._rest = 0
            self._credit = MISSES
        return False

    def find(self, data: bytes, last: CachedHead | None) -> CachedHead | None:
        """The head of a whole message.

        Args:
            data: what was received where a message may begin.
            last: the head that came last on the same connection, which is likely to come again.

        Returns:
            The head, where `data` is it and its body, to the last byte; else None.
        """
        if last is not None and len(data) - len(last.raw) == last.length and data.startswith(last.raw):
            return last
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
        if not 4 <= end <= MAX_HEAD_BYTES or len(data) - end != head.length or len(head.fields) > MAX_FIELDS:
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        head.raw = data[:end]
        head.size = end + FIELD_BYTES * len(head.fields)
        self._heads[head.raw] = head


class KnownAnswers:
    """What one connection of a client takes from a cache of answers' heads, and puts there.

    Args:
        cache: of all its connections.
    """

    __slots__ = ("_cache", "_last", "_learning")

    def __init__(self, cache: HeadCache) -> None:
        self._cache = cache
        self._last: ResponseHead | None = None  # that came again
        self._learning = False

    def find(self, data: bytes) -> ResponseHead | None:
        """The head of a whole answer that came before; see `HeadCache.find`.

        Args:
            data: what was received where an answer may begin.
        """
        self._learning = self._cache.awake()
        if not self._learning:
            return None
        head = self._cache.find(data, self._last)
        if not isinstance(head, ResponseHead):
            return None
        self._last = head
        return head

    def learn(
        self,
        data: bytes,
        status: int,
        length: int | None,
        framing: list[tuple[bytes, bytes]],
        fields: list[tuple[bytes, bytes]],
    ) -> None:
        """Keep the head of an answer that the parser has read, where it was looked for before.

        Args:
            data: what was received, in one piece.
            status: from 200 to 299.
            length: bytes of its body; None where its head does not say.
            framing: its fields that concern the connection.
            fields: its other fields.
        """
        if not self._learning or length is None or status == 204:
            return
        for name, value in framing:
            if name != b"content-length" and (name != b"connection" or value not in _KEEPS):
                return
        self._cache.learn(data, ResponseHead(status, tuple(fields), length))
