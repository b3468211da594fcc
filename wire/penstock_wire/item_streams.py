"""Streams as answers to single items of a batch: how a request asks for them, and their names on the wire.

A client asks by its `accept`. A sidecar that can split a batch's streams asks the model server, by
`x-penstock-item-streams: 1`, for one answer that holds them all: docs/protocols.md has its form.
"""

from __future__ import annotations

from penstock_wire.headers import Headers

ITEM_STREAMS_TYPE = b"application/vnd.penstock.item-streams+json"
"""The media type of an answer to a batch with a stream for each of its items."""
EVENTS = b"text/event-stream"
NDJSON = b"application/x-ndjson"


def stream_type(headers: Headers) -> bytes | None:
    """Return the kind of stream that a request asks for, the first in its `accept`; None if it asks for none.

    Args:
        headers: the request's fields.
    """
    for name, value in headers:
        if name != b"accept":
            continue
        for part in value.lower().split(b","):
            media, _, parameters = part.partition(b";")
            media = media.strip()
            if media in (EVENTS, NDJSON) and parameters.replace(b" ", b"") not in (b"q=0", b"q=0.0"):
                return media
    return None
