"""Header names that Penstock gives a meaning to, and what may be forwarded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Headers = tuple[tuple[bytes, bytes], ...]
"""Header fields in the order received; names in lower case."""

REQUEST_ID: Final = b"x-request-id"
TIMEOUT_MS: Final = b"x-penstock-timeout-ms"
IDLE_MS: Final = b"x-penstock-idle-ms"
"""How long an answer may pause between two pieces, and a tunnel be without a byte; a router says it."""
PRIORITY: Final = b"x-penstock-priority"
SHARD_KEY: Final = b"x-penstock-shard-key"
"""Requests with the same value go to the same backend and pod."""
STICKY: Final = b"x-penstock-sticky"
"""A router says it of a request that has come to this pod by its key, and of a copy for a mirror: it is not
to be handed back."""
RETRY: Final = b"x-penstock-retry"
"""Set by a router on a request that a pod has refused or handed back, and so has counted as an arrival."""
METHOD: Final = b"x-penstock-method"
MODEL_ID: Final = b"x-penstock-model-id"
"""Which of a server's models a request is for: it shares a batch with such alone, and a pod where it can."""
CALL_CHAIN: Final = b"x-penstock-call-chain"
"""The endpoints that handles have called on the way to this request (`call_chain`)."""
QUEUE: Final = b"x-penstock-queue"
NOT_ADMITTED: Final = b"x-penstock-not-admitted"
REASON: Final = b"x-penstock-reason"
ATTEMPT: Final = b"x-penstock-attempt"
ITEM_ANSWERS: Final = b"x-penstock-item-answers"
ITEM_STREAMS: Final = b"x-penstock-item-streams"
MIRROR: Final = b"x-penstock-mirror"
"""Marks a copy of a request whose answer no client gets; a router says it."""
DRAIN: Final = b"x-penstock-drain"
RECONFIGURE: Final = b"x-penstock-reconfigure"
"""What shows a model server that it is its own sidecar that reconfigures it."""
BATCH_LIMIT: Final = b"x-penstock-batch-limit"
"""With each probe of a model's ready path: items that a batch holds at most now."""
CANCELLABLE: Final = b"x-penstock-cancellable"
"""Of a model's ready path: which calls end at once when their connection is closed (`method_names`)."""
CONFIG: Final = b"x-penstock-config"
"""Names a userConfig: sent with it, and returned by the model's ready path while it is the one in force."""
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
SERVER_TIMING: Final = b"server-timing"

PREFIX: Final = b"x-penstock-"

IN_VALUES: Final = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])
"""What a field's value may hold (RFC 9110 section 5.5): no control character but HTAB; DEL (7F) is one."""

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 section 7.6.1: fields that concern one connection and are never forwarded."""

PER_CONNECTION: Final = HOP_BY_HOP | {b"content-length"}
"""Those, and the length of the body, which is framed anew on each connection."""

_LONGEST_MS: Final = 10**12

KEY_FIELDS: Final = frozenset(
    {
        b"accept",
        b"accept-language",
        b"authorization",
        b"content-language",
        b"content-type",
        b"cookie",
        b"origin",
        METHOD,
        MODEL_ID,
    }
)
"""Fields that a model may act upon: requests that differ in one share no batch."""

TO_MODEL: Final = frozenset({METHOD, MODEL_ID, CALL_CHAIN})
"""The `x-penstock-*` fields of a client that a model gets."""

FROM_CLIENT: Final = frozenset({METHOD, MODEL_ID, SHARD_KEY, TIMEOUT_MS, PRIORITY, CALL_CHAIN})
"""The `x-penstock-*` fields that a client may send; the edge drops the others."""


def get(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a field, or None.

    Args:
        headers: the fields.
        name: the field's name in lower case.
    """
    for key, value in headers:
        if key == name:
            return value
    return None


def without(headers: Headers, names: Iterable[bytes]) -> Headers:
    """The fields whose names are not among `names` (lower case)."""
    dropped = frozenset(names)
    return tuple(field for field in headers if field[0] not in dropped)


def end_to_end(headers: Headers) -> Headers:
    """What may be forwarded: no hop-by-hop field, none that `Connection` names, no length."""
    named: set[bytes] = set()
    for key, value in headers:
        if key == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return tuple(field for field in headers if field[0] not in PER_CONNECTION and field[0] not in named)


def timeout_ms(headers: Headers) -> int | None:
    """The client's remaining time in milliseconds; None where it sent none, -1 where it cannot be read.

    Who sends what cannot be read means to be answered in some time: it is refused (`errors.bad_timeout`).
    """
    return milliseconds(headers, TIMEOUT_MS)


def milliseconds(headers: Headers, name: bytes) -> int | None:
    """The value of a field that says a time; None where it is not there, -1 where it cannot be read.

    Args:
        headers: the fields.
        name: the field's name in lower case.
    """
    value = get(headers, name)
    if value is None:
        return None
    if not value.isdigit():
        return -1
    return int(value) if len(value) <= 12 else _LONGEST_MS
