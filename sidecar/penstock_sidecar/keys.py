"""Which requests are alike: the key of a queue, and the header fields a batch sends on.

Three kinds of fields: those a model may act upon (`KEY_FIELDS` and the policy's `batchKeyHeaders`) are part
of the key, so a batch has one set of them; those that only describe the caller (`SHARED_FIELDS`) are
forwarded where they are equal across the batch; all others reach the model only with a request that has its
batch to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from penstock_sidecar.work import Work
from penstock_wire.headers import METHOD, PREFIX, REQUEST_ID, TIMEOUT_MS, Headers
from penstock_wire.http import Request

KEY_FIELDS = frozenset(
    {b"accept", b"accept-language", b"authorization", b"content-language", b"content-type", b"cookie", METHOD}
)
SHARED_FIELDS = frozenset(
    {
        b"baggage",
        b"forwarded",
        b"host",
        b"origin",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    }
)
MAX_REQUEST_IDS_BYTES = 4096
"""Request ids of a batch that are told to the model at most; those beyond are left out."""

_name = itemgetter(0)


def key_names(batch_key_headers: Iterable[str]) -> frozenset[bytes]:
    """The names of the fields that are part of the key under a policy."""
    return KEY_FIELDS | {name.lower().encode() for name in batch_key_headers}


def sort_fields(headers: Headers, names: Collection[bytes]) -> tuple[Headers, Headers]:
    """The fields of the key, sorted by name (the values of one name stay in order), and the shared ones.

    Args:
        headers: the request's fields.
        names: what `key_names` returned.
    """
    key: list[tuple[bytes, bytes]] = []
    shared: list[tuple[bytes, bytes]] = []
    for field in headers:
        if field[0] in names:
            key.append(field)
        elif field[0] in SHARED_FIELDS:
            shared.append(field)
    key.sort(key=_name)
    return tuple(key), tuple(shared)


def rekey(work: Work, names: Collection[bytes]) -> None:
    """Give a queued request the key it has under another policy."""
    fields, work.shared = sort_fields(work.request.headers, names)
    work.key = work.key._replace(fields=fields)


def lone_fields(request: Request, request_id: str, timeout: float) -> Headers:
    """What a request that has its batch to itself, or none at all, sends to the model.

    Args:
        request: what came in.
        request_id: its id.
        timeout: seconds that remain.
    """
    kept = [
        field
        for field in request.headers
        if field[0] != REQUEST_ID and (not field[0].startswith(PREFIX) or field[0] == METHOD)
    ]
    return (*kept, *_ours(request_id.encode(), timeout))


def batch_fields(works: Sequence[Work], timeout: float) -> Headers:
    """What a batch of several requests (or parts of requests) sends to the model.

    Args:
        works: the requests, in the order of their items; all of one key.
        timeout: seconds that remain to the latest deadline.
    """
    fields = works[0].key.fields
    if not any(name == b"content-type" for name, _ in fields):
        fields = (*fields, (b"content-type", b"application/json"))
    return (*fields, *_equal(works), *_ours(_request_ids(works), timeout))


def _ours(request_id: bytes, timeout: float) -> Headers:
    return ((REQUEST_ID, request_id), (TIMEOUT_MS, b"%d" % max(1, timeout * 1000)))


def _equal(works: Sequence[Work]) -> Headers:
    first = works[0].shared
    if all(work.shared == first for work in works):
        return first
    names = {name for name, _ in first}
    for work in works[1:]:
        names = {name for name in names if _values(work.shared, name) == _values(first, name)}
    return tuple(field for field in first if field[0] in names)


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _request_ids(works: Sequence[Work]) -> bytes:
    ids: list[str] = []
    room = MAX_REQUEST_IDS_BYTES
    for work in works:
        room -= len(work.request_id) + 1
        if room < 0:
            break
        ids.append(work.request_id)
    return ",".join(ids).encode()
