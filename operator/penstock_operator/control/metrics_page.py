"""The page of /metrics: made at most once a second for all clients, and sent to a few at a time.

With 1000 backends it has 1.2 MB and takes 17 to 30 ms of the event loop that also answers the probes. A
client that requests it repeatedly, or does not read it, must not use the time or memory that others need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock_operator.clock import Clock
from penstock_operator.control.rate_limit import RateLimit
from penstock_operator.errors import ReportRefused
from penstock_wire.exposition import TEXT, fields, pack, takes_gzip
from penstock_wire.headers import Headers
from penstock_wire.http import ClientGone, Response

MADE_EVERY = 1.0
"""Seconds for which a page is reused."""

BURST = 10.0
PER_SECOND = 2.0
"""Pages that an address gets at once, and each second after that."""

MAX_PAGES = 8
"""The most pages that are being sent; each can be from another second."""

MAX_PAGES_PER_ADDRESS = 2
"""The most of these to one address."""

PAGE_SECONDS = 10.0
"""Seconds that a client has to read a page; Prometheus allows as long for a scrape by default."""

PIECE = 64 * 1024
"""Bytes that are written at once; the next ones follow when the client has read these."""


class MetricsPage:
    """Serves the metrics."""

    def __init__(self, make: Callable[[], bytes], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._limit = RateLimit(clock, burst=BURST, per_second=PER_SECOND)
        self._text = b""
        self._packed = b""  # the same, once a client has asked for it
        self._made_at = float("-inf")
        self._sending: Counter[str] = Counter()

    @property
    def sending(self) -> int:
        """How many pages are being sent now."""
        return self._sending.total()

    def answer(self, address: str, headers: Headers = ()) -> Response:
        """Answer with the page, which counts as being sent until the client has read it or is gone.

        Raises:
            ReportRefused: it scrapes too often, or too many pages are being sent.
        """
        if self._sending[address] >= MAX_PAGES_PER_ADDRESS:
            raise ReportRefused(
                429,
                "too_often",
                f"expected at most {MAX_PAGES_PER_ADDRESS} scrapes of an address at a time",
            )
        if self.sending >= MAX_PAGES:
            raise ReportRefused(503, "no_room", f"{MAX_PAGES} scrapes are being answered; wait")
        if not self._limit.take(address):
            raise ReportRefused(
                429, "too_often", f"expected at most {PER_SECOND:.0f} scrapes of an address a second"
            )
        now = self._clock.time()
        if now >= self._made_at + MADE_EVERY:
            self._text, self._packed = self._make(), b""
            self._made_at = self._clock.time()
        self._sending[address] += 1
        page, compressed = self._text, takes_gzip(headers)
        if compressed:
            page = self._packed = self._packed or pack(page)
        stream = _Sending(page, self._clock, lambda: self._sent(address))
        return Response(200, fields(TEXT, compressed=compressed), stream=stream, length=len(page))

    def _sent(self, address: str) -> None:
        self._sending[address] -= 1
        if not self._sending[address]:
            del self._sending[address]


class _Sending:
    """A page on its way to one client, as the stream of an answer.

    Args:
        ended: called once when it has been read, or its client is gone.
    """

    def __init__(self, text: bytes, clock: Clock, ended: Callable[[], None]) -> None:
        self._text = text
        self._clock = clock
        self._ended: Callable[[], None] | None = ended
        self._at = 0
        self._until = clock.time() + PAGE_SECONDS

    def __aiter__(self) -> _Sending:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece; called when the client has read the one before."""
        piece = self._text[self._at : self._at + PIECE]
        self._at += len(piece)
        if not piece:
            raise StopAsyncIteration
        if self._clock.time() > self._until:
            raise ClientGone("a page was not taken in time")
        return piece

    async def aclose(self) -> None:
        """End the sending: the page has been read, or its client is gone."""
        ended, self._ended = self._ended, None
        self._text = b""
        if ended is not None:
            ended()
