"""Answers of HTTP as the status of a call, and a model's status as an answer of HTTP. Pure.

An error of ours has its reason, and where it is known the path, what was expected and what was found, as an
`ErrorInfo`; the time until a retry makes sense as a `RetryInfo` and as the trailer `grpc-retry-pushback-ms`
(gRFC A6). Sources: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md,
https://github.com/googleapis/googleapis, google/rpc/error_details.proto.
"""

from __future__ import annotations

import base64
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from penstock_wire.errors import Reason
from penstock_wire.headers import REASON, Headers, get
from penstock_wire.http import Response
from penstock_wire.http2 import protobuf
from penstock_wire.http2.head import literal

GRPC_STATUS: Final = b"grpc-status"

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
ABORTED: Final = 10
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16

_BY_STATUS: Final = {
    400: INVALID_ARGUMENT, 401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: NOT_FOUND, 405:
    UNIMPLEMENTED, 408: DEADLINE_EXCEEDED, 409: ABORTED, 412: ABORTED, 413: RESOURCE_EXHAUSTED, 414:
    INVALID_ARGUMENT, 415: INVALID_ARGUMENT, 422: INVALID_ARGUMENT, 429: RESOURCE_EXHAUSTED, 431:
    RESOURCE_EXHAUSTED, 499: CANCELLED, 500: INTERNAL, 501: UNIMPLEMENTED, 502: UNAVAILABLE, 503:
    UNAVAILABLE, 504: DEADLINE_EXCEEDED,
}  # fmt: skip
_OF_HTTP: Final = {
    CANCELLED: 499, UNKNOWN: 500, INVALID_ARGUMENT: 400, DEADLINE_EXCEEDED: 504, NOT_FOUND: 404, 6: 409,
    PERMISSION_DENIED: 403, RESOURCE_EXHAUSTED: 429, 9: 400, ABORTED: 409, 11: 400, UNIMPLEMENTED: 501,
    INTERNAL: 500, UNAVAILABLE: 503, 15: 500, UNAUTHENTICATED: 401,
}  # fmt: skip
"""The status over HTTP of each that is an error (https://cloud.google.com/apis/design/errors). NB: 500 means
that one request of a batch can be the cause: servers end a call UNKNOWN or INTERNAL if its method raises."""
_TOO_LARGE: Final = ("larger than max", "exceeds maximum size", "exceeds the maximum")
"""What servers (C++, Python, Go, Java, .NET) say of a message above their limit; half a batch may fit."""
_HEAD_TOO_LARGE: Final = "metadata size exceeds"
"""What servers of gRPC's core (C++, Python) say of metadata above theirs, which the ids of a batch can be."""
_BY_REASON: Final = {
    Reason.QUEUE_FULL.value: RESOURCE_EXHAUSTED,
    Reason.COLD_START_FULL.value: RESOURCE_EXHAUSTED,
    Reason.NO_MEMORY.value: RESOURCE_EXHAUSTED,
    Reason.BAD_ANSWER.value: INTERNAL,
    Reason.BATCH_FAILED.value: INTERNAL,
}
_DOMAIN: Final = "penstock.dev"
_ANY: Final = "type.googleapis.com/google.rpc."
_LONGEST: Final = 1000
"""Most bytes of a message: clients take heads of 8 KiB, and an encoded byte has three."""
_LONGEST_FACT: Final = 256


def trailers(code: int, text: str, details: bytes = b"", retry_after: float = 0.0) -> bytes:
    """Render the fields that end a call.

    Args:
        code: its status.
        text: for people; empty for a call that went well.
        details: `google.protobuf.Any` fields of a `google.rpc.Status`.
        retry_after: seconds until a retry makes sense; 0 = unknown.
    """
    block = literal(GRPC_STATUS, b"%d" % code)
    text = text.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore").strip()
    if text:
        block += literal(b"grpc-message", _percent(text))
    if details:
        whole = protobuf.number(1, code) + protobuf.string(2, text) + details
        block += literal(b"grpc-status-details-bin", base64.b64encode(whole).rstrip(b"="))
    if retry_after:
        block += literal(b"grpc-retry-pushback-ms", b"%d" % (retry_after * 1000))
    return block


def of_response(response: Response) -> bytes:
    """Render the trailers for an answer that is not 2xx."""
    status = response.status
    document: dict[str, Any] = {}
    try:
        read = msgspec.json.decode(response.body)
        if isinstance(read, dict):
            document = read
    except (ValueError, RecursionError):  # as of msgspec, and of text that is not UTF-8
        pass
    reason = (get(response.headers, REASON) or b"").decode("latin-1")
    code = _BY_REASON.get(reason, 0)
    if not code:
        code = code_of(response.headers)
    if code <= 0:
        code = _BY_STATUS.get(status, UNKNOWN)
    text = (
        document.get("detail") or document.get("error") or response.body[:_LONGEST].decode("utf-8", "replace")
    )
    details = b""
    if reason:
        facts = {
            name: str(value)[:_LONGEST_FACT]
            for name, value in document.items()
            if name in ("path", "expected", "found", "request_id", "backend", "pod")
        }
        details = error_info(reason, facts)
    wait = (get(response.headers, b"retry-after") or b"").decode("latin-1")
    seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) <= 9 else 0.0
    if seconds and code in (UNAVAILABLE, RESOURCE_EXHAUSTED):
        details += _any("RetryInfo", protobuf.nested(1, protobuf.number(1, int(seconds))))
    return trailers(code, str(text) or f"status {status}", details, seconds)


def code_of(fields: Headers) -> int:
    """Return the status of a call by the fields of its answer, trailers included; -1 if they have none."""
    said = get(fields, GRPC_STATUS)
    if said is None:
        return -1
    return int(said) if said.isdigit() and len(said) < 3 and int(said) <= UNAUTHENTICATED else UNKNOWN


def to_http(code: int) -> int:
    """Return the status over HTTP of the same meaning."""
    return _OF_HTTP.get(code, 500) if code else 200


def to_response(code: int, fields: Headers) -> Response:
    """Make an answer over HTTP of a call's error.

    The status itself stays as a field, so that a client of gRPC gets the very same one.

    Args:
        code: the call's status, not `OK`.
        fields: all fields of its answer, trailers included.
    """
    text = unquote_to_bytes(get(fields, b"grpc-message") or b"").decode("utf-8", "replace")
    status = to_http(code)
    if code == RESOURCE_EXHAUSTED and any(words in text for words in _TOO_LARGE):
        status = 413
    elif code == RESOURCE_EXHAUSTED and _HEAD_TOO_LARGE in text:
        status = 431
    elif code == CANCELLED:  # by the model: its client has not left
        status = 503
    headers = [(b"content-type", b"application/json"), (GRPC_STATUS, b"%d" % code)]
    pushback = get(fields, b"grpc-retry-pushback-ms") or b""
    if pushback.isdigit() and len(pushback) <= 9:
        headers.append((b"retry-after", b"%d" % -(-int(pushback) // 1000)))
    return Response(status, tuple(headers), msgspec.json.encode({"error": text}))


def error_info(reason: str, facts: dict[str, str]) -> bytes:
    """Render an `ErrorInfo` as a detail of a `google.rpc.Status`.

    Args:
        reason: why, as in `errors.Reason`.
        facts: what is known.
    """
    entries = [
        protobuf.nested(3, protobuf.string(1, name) + protobuf.string(2, value))
        for name, value in facts.items()
    ]
    return _any("ErrorInfo", protobuf.string(1, reason) + protobuf.string(2, _DOMAIN) + b"".join(entries))


def _any(name: str, message: bytes) -> bytes:
    return protobuf.nested(3, protobuf.string(1, _ANY + name) + protobuf.nested(2, message))


def _percent(text: str) -> bytes:
    """Encode a message for a header field (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md)."""
    data = text.encode()
    if data.isascii() and text.isprintable() and b"%" not in data:
        return data
    return b"".join([bytes([byte]) if 32 <= byte < 127 and byte != 37 else b"%%%02X" % byte for byte in data])
