"""Which requests say that their body is JSON."""

from __future__ import annotations

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers

_JSON_LIKE = frozenset(
    {
        b"application/json",
        b"text/json",
        b"text/plain",
        # What `curl -d` says of any body; KServe and TensorFlow Serving take it for JSON too.
        b"application/x-www-form-urlencoded",
    }
)


def check_json(headers: Headers, *more: bytes) -> None:
    """Check that a body is JSON by what its fields say, if they say anything.

    Args:
        headers: the request's fields.
        more: media types that are taken, too.

    Raises:
        PenstockError: `bad_media_type`: another media type, or a content encoding.
    """
    for name, value in headers:
        if name == b"content-type":
            if value in _JSON_LIKE:
                continue
            media = value.partition(b";")[0].strip().lower()
            if media not in _JSON_LIKE and media not in more and not media.endswith(b"+json"):
                raise PenstockError(
                    Reason.BAD_MEDIA_TYPE,
                    f"content-type: expected application/json, found {media.decode('latin-1')[:100]}",
                )
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise PenstockError(
                Reason.BAD_MEDIA_TYPE,
                f"content-encoding: expected none, found {value.decode('latin-1')[:100]}",
            )
