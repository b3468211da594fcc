"""Which header fields part requests: those in which the sidecar's requests of one batch do not differ."""

from __future__ import annotations

from penstock_sidecar.queue.batch_key import KEY_FIELDS
from penstock_wire.headers import Headers


def key_fields(fields: Headers) -> Headers:
    """Those of a request's fields that all requests of its batch have, sorted by name."""
    return tuple(sorted(field for field in fields if field[0] in KEY_FIELDS))
