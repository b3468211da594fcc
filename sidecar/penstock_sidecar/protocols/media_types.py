"""Decides by a request's header fields whether its body may be JSON that a protocol reads."""

from __future__ import annotations

from penstock_wire.headers import INFERENCE_HEADER_LENGTH, Headers

CONTENT_TYPE = b"content-type"
HEADER_LENGTH = INFERENCE_HEADER_LENGTH
CLOUD_EVENT = b"ce-specversion"
"""Marks the other `ce-*` fields as those of a CloudEvent, and the body as its data (binary mode)."""
_JSON = b"application/json"
_TYPE, _CODING, _FOREIGN, _LENGTH = 1, 2, 3, 4
_OFTEN_JSON = frozenset(
    {
        # Types that clients send for any body: `curl -d`; `fetch` of a string; aiohttp of bytes and
        # tritonclient.aio.
        b"application/x-www-form-urlencoded",
        b"text/plain",
        b"application/octet-stream",
    }
)


class BodyFields:
    """Reads header fields that describe a body.

    It remembers the fields that it read last: a client's requests often have the very same object (see
    `head_cache`).

    Args:
        foreign: fields that mark a body as not of the protocol, whatever its content type.
    """

    __slots__ = ("_fields", "_headers", "_lengths", "_may_be_json", "_roles")

    def __init__(self, *foreign: bytes) -> None:
        self._roles = {CONTENT_TYPE: _TYPE, b"content-encoding": _CODING, **dict.fromkeys(foreign, _FOREIGN)}
        self._roles.setdefault(HEADER_LENGTH, _LENGTH)
        self._lengths: list[bytes] = []
        self._headers: Headers | None = None
        self._may_be_json = False
        self._fields: Headers | None = None

    def may_be_json(self, headers: Headers) -> bool:
        """Whether a body may be JSON of the protocol.

        It may not if the fields name another media type or a content coding, or one of `foreign` is there.

        Args:
            headers: the request's fields.
        """
        if headers is not self._headers:
            self._read(headers)
        return self._may_be_json

    def lengths(self, headers: Headers) -> list[bytes]:
        """The lengths of the JSON before binary data, as they are named: one, or none, if all is right."""
        if headers is not self._headers:
            self._read(headers)
        return self._lengths

    def of_json(self, headers: Headers) -> Headers | None:
        """The fields with a JSON content type; None if they have one already.

        Args:
            headers: the fields of a request whose body is JSON.
        """
        if headers is not self._headers:
            self._read(headers)
        return self._fields

    def _read(self, headers: Headers) -> None:
        may_be = True
        names_json = False
        lengths: list[bytes] = []
        roles = self._roles
        for name, value in headers:
            role = roles.get(name)
            if role is None:
                continue
            if role == _LENGTH:
                lengths.append(value)
            elif role == _TYPE:
                media = value if value == _JSON else value.partition(b";")[0].strip().lower()
                if media == _JSON or media == b"text/json" or media.endswith(b"+json"):
                    names_json = True
                elif media not in _OFTEN_JSON:
                    may_be = False
            elif role == _FOREIGN or value.strip().lower() not in (b"", b"identity"):
                may_be = False
        self._headers = headers
        self._may_be_json = may_be
        self._lengths = lengths
        self._fields = None
        if may_be and not names_json:
            others = [field for field in headers if field[0] != CONTENT_TYPE]
            self._fields = (*others, (CONTENT_TYPE, _JSON))
