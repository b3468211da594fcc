"""Pages of metrics: each client gets the form that it asks for."""

from __future__ import annotations

import gzip

import pytest
from prometheus_client import CollectorRegistry, Counter

from penstock_wire.exposition import exposition
from penstock_wire.headers import get

PROMETHEUS = (
    b"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    b"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
"""What Prometheus 3 sends."""


@pytest.mark.parametrize(
    ("accept", "encoding", "kind", "compressed"),
    [
        (b"", b"", b"text/plain", False),
        (b"*/*", b"gzip, deflate", b"text/plain", True),
        (b"application/openmetrics-text", b"identity", b"application/openmetrics-text", False),
        (
            b"application/openmetrics-text; version=1.0.0",
            b"br;q=1.0, GZIP;q=0.5",
            b"application/openmetrics-text",
            True,
        ),
        (PROMETHEUS, b"gzip", b"application/openmetrics-text", True),
        (b"text/plain", b"gzip;q=0", b"text/plain", False),
        (b"text/plain", b"gzip; q=0.000, *", b"text/plain", False),
    ],
)
def test_the_form_is_the_clients_choice(
    accept: bytes, encoding: bytes, kind: bytes, compressed: bool
) -> None:
    registry = CollectorRegistry()
    Counter("things", "Counted.", registry=registry).inc(3)
    answer = exposition(registry, ((b"accept", accept), (b"accept-encoding", encoding)))
    assert (get(answer.headers, b"content-type") or b"").startswith(kind + b"; ")
    assert get(answer.headers, b"content-encoding") == (b"gzip" if compressed else None)
    text = gzip.decompress(answer.body) if compressed else answer.body
    assert b"\nthings_total 3.0\n" in text
    assert text.endswith(b"# EOF\n") is (kind == b"application/openmetrics-text")
