"""Caches heads by their bytes: equal bytes have equal meaning, so they are parsed and checked once.

Most clients send the same head with each of their requests, and the heads of one program are alike; so are
the answers of one service. The result of parsing and checking a head is kept by its bytes. A head is kept
only if it does not end its connection and came in one piece, alone or with its whole message, so that nothing
depends on what the parser has seen before.

If heads are all different (each with a request id), lookups are useless: after some misses the cache rests.
"""

from __future__ import annotations

from typing import Final

from penstock_wire.headers import Headers
from penstock_wire.http.caches import Caches

MAX_HEADS: Final = 256
"""Most heads kept; at the limit all are dropped."""
MAX_HEAD_BYTES: Final = 2048
"""Longer heads are not kept."""
MAX_FIELDS: Final = 48
"""Heads with more fields are not kept: 200 short ones take ten times their bytes (`FIELD_BYTES`)."""
MISSES: Final = 256
"""Misses, beyond three for each hit, before the cache rests."""
REST: Final = 16_384
"""Number of messages for which it rests."""
FIELD_BYTES: Final = 128
"""Bytes of a field beside its name's and value's: a tuple and two objects."""
_END: Final = b"\r\n\r\n"
_KEEPS: Final = frozenset({b"keep-alive", b"Keep-Alive"})


class CachedHead:
    """A parsed head.

    Args:
        fields: the end-to-end fields.
        length: bytes of its body.
    """

    __slots__ = ("fields", "length", "raw", "size")

    def __init__(self, fields: Headers, length: int) -> None:
        self.fields = fields
        self.length = length
        self.raw = b"\r\n"
        """Its bytes once it is kept; until then bytes that begin no message."""
        self.size = 0
        """Approximate memory in bytes, once it is kept."""


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
    """The head of an answer to a method other than HEAD; other members as in `CachedHead`.

    Args:
        status: from 200 to 299.
    """

    __slots__ = ("status",)

    def __init__(self, status: int, fields: Headers, length: int) -> None:
        super().__init__(fields, length)
        self.status = status


class HeadCache:
    """The heads of one listener's requests, or of the answers to one client: never both.

    Args:
        caches: bounds it with others; None = it is bounded alone.
    """

    __slots__ = ("_caches", "_credit", "_heads", "_rest")

    def __init__(self, caches: Caches | None = None) -> None:
        self._caches = Caches() if caches is None else caches
        self._heads: dict[bytes, CachedHead] = {}
        self._credit = MISSES
        self._rest = 0

    def __len__(self) -> int:
        return len(self._heads)

    def awake(self) -> bool:
        """Whether to look up the next head; called once for each message."""
        if self._credit > 0:
            return True
        self._rest += 1
        if self._rest >= REST:
            self._rest = 0
            self._credit = MISSES
        return False

    def find(self, data: bytes, last: CachedHead | None) -> CachedHead | None:
        """Look up the head of a message.

        Args:
            data: received bytes at a place where a message can begin.
            last: the head that came last on the same connection, which is likely to come again.

        Returns:
            The head if `data` is exactly it, with its body or without (many clients send that in a piece of
            its own); else None.
        """
        if last is not None and len(data) - len(last.raw) == last.length and data.startswith(last.raw):
            return last
        end = data.find(_END) + 4
        known = self._heads.get(data[:end]) if 4 <= end <= MAX_HEAD_BYTES else None
        if known is not None and (len(data) == end or len(data) - end == known.length):
            if self._credit < MISSES:
                self._credit += 3
            return known
        self._credit -= 1
        return None

    def learn(self, data: bytes, head: CachedHead, *, whole: bool) -> None:
        """Keep a parsed head.

        Args:
            data: received bytes.
            head: the last head parsed from it; kept only if it and what came of its body are all of `data`.
            whole: its body came whole; else it is kept only if nothing of its body came.
        """
        end = data.find(_END) + 4
        behind = head.length if whole else 0
        if not 4 <= end <= MAX_HEAD_BYTES or len(data) - end != behind or len(head.fields) > MAX_FIELDS:
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
            self._caches.cleared(self._heads)
        head.raw = data[:end]
        head.size = end + FIELD_BYTES * len(head.fields)
        self._heads[head.raw] = head
        self._caches.grew(self._heads, head.size + end)  # as raw bytes, and as fields


class KnownAnswers:
    """One client connection's use of a cache of answers' heads.

    Args:
        cache: the cache of all connections of the client.
    """

    __slots__ = ("_cache", "_last", "_learning")

    def __init__(self, cache: HeadCache) -> None:
        self._cache = cache
        self._last: ResponseHead | None = None  # that came again
        self._learning = False

    def find(self, data: bytes) -> ResponseHead | None:
        """Look up the head of a whole answer; see `HeadCache.find`.

        Args:
            data: received bytes at a place where an answer can begin.
        """
        self._learning = self._cache.awake()
        if not self._learning:
            return None
        head = self._cache.find(data, self._last)
        if not isinstance(head, ResponseHead):
            return None
        self._last = head
        if len(data) - len(head.raw) != head.length:  # its body is to come
            self._learning = False
            return None
        return head

    def learn(
        self,
        data: bytes,
        status: int,
        length: int | None,
        framing: list[tuple[bytes, bytes]],
        fields: list[tuple[bytes, bytes]],
        *,
        whole: bool,
    ) -> None:
        """Keep the parsed head of an answer, if `find` has looked for it.

        Args:
            data: received bytes, in one piece.
            status: from 200 to 299.
            length: bytes of its body; None if its head has no length.
            framing: its fields that concern the connection.
            fields: its other fields.
            whole: its body came whole, see `HeadCache.learn`.
        """
        if not self._learning or length is None or status == 204:
            return
        for name, value in framing:
            if name != b"content-length" and (name != b"connection" or value not in _KEEPS):
                return
        self._cache.learn(data, ResponseHead(status, tuple(fields), length), whole=whole)
