"""Streams as answers to single items of a batch: how a request asks for them, and their names on the wire.

A client asks by its `accept`. A sidecar that can split a batch's streams asks the model server, by
`x-penstock-item-streams: 1`, for one answer that holds them all: docs/protocols.md has its form.
"""

from __future__ import annotations

import re

from penstock_wire.headers import Headers

ITEM_STREAMS_TYPE = b"application/vnd.penstock.item-streams+json"
"""The media type of an answer to a batch with a stream for each of its items."""
EVENTS = b"text/event-stream"
NDJSON = b"application/x-ndjson"


_QUALITY = re.compile(rb"; *q *= *(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?) *(?:;|$)")
_JSON_RANGES = (b"application/json", b"application/*", b"*/*")
"""What can say how much a client wants JSON, the most specific first."""


def stream_type(headers: Headers) -> bytes | None:
    """Return the kind of stream that a request asks for; None if it names none, or wants JSON more than each.

    The qualities in its `accept` decide (RFC 9110 section 12.5.1), and between equal ones the order.

    Args:
        headers: the request's fields.
    """
    accept = b",".join([value for name, value in headers if name == b"accept"]).lower()
    if EVENTS not in accept and NDJSON not in accept:
        return None
    qualities: dict[bytes, float] = {}
    for part in accept.split(b","):
        quality = _QUALITY.search(part)
        qualities.setdefault(part.partition(b";")[0].strip(), float(quality[1]) if quality else 1.0)
    json = next((qualities[each] for each in _JSON_RANGES if each in qualities), 0.0)
    wanted = [each for each, quality in qualities.items() if each in (EVENTS, NDJSON) and quality >= json]
    kind = max(wanted, key=qualities.__getitem__, default=None)
    return kind if kind is not None and qualities[kind] else None
