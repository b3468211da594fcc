"""Streams as answers to the single items of a batch: who asks for them, and how they are named on the wire.

A client asks by its `accept`. A sidecar that can split the streams of a batch asks the model server for one
answer that holds them all, by `x-penstock-item-streams: 1`: docs/protocols.md has its form.
"""

from __future__ import annotations

from penstock_wire.headers import Headers

ITEM_STREAMS_TYPE = b"application/vnd.penstock.item-streams+json"
"""The media type of an answer to a batch that holds a stream for each of its items."""
EVENTS = b"text/event-stream"
NDJSON = b"application/x-ndjson"


def stream_type(headers: Headers) -> bytes | None:
    """The kind of stream that a request asks for, the first one in its `accept`; None where it asks for none.

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
