"""Answers scrapes in the form that a client asks for: Prometheus' text or OpenMetrics, plain or gzip."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from penstock_wire.headers import Headers, get
from penstock_wire.http import Response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from penstock_wire.http.memory import MemoryBound

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The type of Prometheus' text format."""


def exposition(metrics: Collector, headers: Headers) -> Response:
    """Return all metrics in the format that a request's `accept` prefers; Prometheus' text if it has none.

    Args:
        metrics: what is shown.
        headers: the request's fields.
    """
    from prometheus_client.exposition import (
        choose_encoder,
    )  # costs 3 MB: only what is scraped has it

    encode, kind = choose_encoder(_value(headers, b"accept"))
    body = encode(metrics)
    compressed = takes_gzip(headers)
    return Response(200, fields(kind, compressed=compressed), pack(body) if compressed else body)


def memory_families(prefix: str, memory: MemoryBound) -> Iterator[Metric]:
    """Yield the metrics of the memory that all connections keep.

    Args:
        prefix: of their names.
        memory: bounds it.
    """
    from prometheus_client import core

    yield core.GaugeMetricFamily(
        f"{prefix}kept_bytes",
        "What all connections keep: bodies, heads and answers on their way.",
        value=memory.kept(),
    )
    yield core.GaugeMetricFamily(
        f"{prefix}kept_bytes_limit", "Beyond it connections give way.", value=memory.most
    )
    yield core.CounterMetricFamily(
        f"{prefix}connections_gave_way",
        "Connections that kept most when all kept too much, and were answered 503 or ended.",
        value=memory.gave_way,
    )


def takes_gzip(headers: Headers) -> bool:
    """Whether a request's `accept-encoding` names gzip, with a weight that is not 0 (RFC 9110, 12.5.3)."""
    for part in _value(headers, b"accept-encoding").lower().split(","):
        name, _, weight = part.replace(" ", "").partition(";q=")
        if name == "gzip":
            return weight.strip("0.") != "" or not weight
    return False


def pack(text: bytes) -> bytes:
    """Compress a page, for a fifth of its bytes at little time of the event loop."""
    return gzip.compress(text, compresslevel=1, mtime=0)


def fields(kind: str, *, compressed: bool) -> Headers:
    """Return the fields of a page.

    Args:
        kind: its media type.
        compressed: whether it is gzip.
    """
    headers = ((b"content-type", kind.encode()), (b"vary", b"accept, accept-encoding"))
    return (*headers, (b"content-encoding", b"gzip")) if compressed else headers


def _value(headers: Headers, name: bytes) -> str:
    return (get(headers, name) or b"").decode("latin-1")
