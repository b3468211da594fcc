"""Decides which requests are alike: makes the keys of queues, and the header fields that a batch forwards.

There are three kinds of fields. Fields that a model can act upon, credentials among them (`is_key_field` and
the policy's `batchKeyHeaders`), are part of the key, so a batch has one set of them. Fields that concern one
request's body or connection (`OF_ONE_REQUEST`, `x-penstock-*`) reach the model only with a request that has
its batch to itself. All others are forwarded if they are equal across the batch. The deepest of a batch's
call chains is forwarded; a chain that stands alone (`wire.call_chain`) is part of the key.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from operator import itemgetter

from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.request import QueuedRequest
from penstock_wire.call_chain import deepest, stands_alone
from penstock_wire.control.settings import Batching
from penstock_wire.headers import (
    ATTEMPT,
    CALL_CHAIN,
    HELD,
    INFERENCE_HEADER_LENGTH,
    PREFIX,
    REQUEST_ID,
    RETRY,
    STICKY,
    TIMEOUT_MS,
    TO_MODEL,
    UNREAD,
    Headers,
    get,
    is_key_field,
    timeout_ms,
)
from penstock_wire.http import Request

_CALLER_FIELDS = frozenset(
    {
        b"baggage",
        b"forwarded",
        b"host",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    }
)
"""Fields that describe a caller: a model that refuses a batch without them does not refuse it for that."""
OF_ONE_REQUEST = (
    b"accept-encoding",  # a batch's answer must be readable here
    b"content-",
    b"digest",
    b"expect",
    b"idempotency-key",
    b"if-",
    INFERENCE_HEADER_LENGTH,
    b"range",
    b"repr-digest",
    b"x-idempotency-key",
    PREFIX,
)
"""Beginnings of the names of fields that concern one request's body, answer or connection."""
MAX_REQUEST_IDS_BYTES = 4096
"""Maximum bytes of request ids that a batch sends to the model; further ids are left out."""
MAX_READS = 64
"""Requests' fields of which the values are remembered: a client's are mostly the same object each time."""
MAX_NAMES, MAX_NAME_BYTES = 1024, 64
"""Field names of which the role is remembered, and the bytes of each: clients choose them."""
KEYS_BYTES = 4 * 1024 * 1024
"""Bytes of the keys that are remembered; above it, keys that are not in use are forgotten."""
KEY_BYTES = 1024
"""Bytes of a key beside its values."""
LARGE_BYTES = 16 * 1024
"""A key of more bytes is remembered only while it is in use."""

_name = itemgetter(0)
_KEY, _SHARED, _ID, _TIMEOUT, _LEVEL, _SHARE, _STICKY, _CHAIN = 1, 2, 4, 8, 16, 32, 64, 128
_RETRY, _HELD = 256, 512


class RequestFields:
    """The values that a request's header fields hold; see `Keys.read`."""

    __slots__ = (
        "fields",
        "headers",
        "held",
        "level",
        "request_id",
        "retry",
        "share",
        "shared",
        "sticky",
        "timeout_ms",
        "unread",
    )

    fields: Headers
    headers: Headers
    shared: Headers

    def __init__(self, level: int) -> None:
        self.request_id: bytes | None = None
        self.timeout_ms: int | None = None
        self.level = level
        self.share = b""
        self.sticky = False
        """Whether the request is bound to this pod (by its key, mostly), so that it is not handed back."""
        self.retry = False
        """Whether a pod has counted it as an arrival before."""
        self.unread = False
        """Whether that pod has counted it as one item."""
        self.held = False
        """Whether a router held it for a pod."""

    def of_client(self) -> RequestFields:
        """The same, without what only a router may say."""
        own = RequestFields(self.level)
        own.fields, own.shared, own.share = self.fields, self.shared, self.share
        own.request_id, own.timeout_ms = self.request_id, self.timeout_ms
        return own


class Keys:
    """Reads header fields under a policy, and makes keys, one object for equal values.

    Args:
        key_fields: whether keys are made at all; else only fields about one request are read.
        batching: the policy.
        used: keys that are in use.
    """

    def __init__(self, *, key_fields: bool, batching: Batching, used: Collection[BatchKey] = ()) -> None:
        self._key_fields = key_fields
        self._used = used
        self._bytes, self._most_bytes = 0, KEYS_BYTES
        self._known: dict[tuple[str, str, Headers, Hashable], BatchKey] = {}
        self.apply(batching)

    def apply(self, batching: Batching) -> None:
        """Use another policy from now on."""
        roles: dict[bytes, int] = {REQUEST_ID: _ID, TIMEOUT_MS: _TIMEOUT, STICKY: _STICKY}
        roles[RETRY], roles[HELD] = _RETRY, _HELD
        roles[CALL_CHAIN] = _CHAIN if self._key_fields else 0

        def add(name: bytes, role: int) -> None:
            roles[name] = roles.get(name, self._role(name)) | role

        for name in {name.lower().encode() for name in batching.batch_key_headers}:
            roles[name] = roles.get(name, 0) & ~_SHARED | _KEY
        self._levels = batching.priority.levels
        self._level = min(batching.priority.default, self._levels)
        if self._levels > 1:
            add(batching.priority.header.lower().encode(), _LEVEL)
        if batching.fairness is not None:
            add(batching.fairness.header.lower().encode(), _SHARE)
        self._roles = roles
        self._shared: Headers | None = None
        self._shared_fields = RequestFields(self._level)
        self._reads: dict[int, RequestFields] = {}  # by the `id` of what was read, which is kept
        self._latest: BatchKey | None = None

    def _role(self, name: bytes) -> int:
        """The role of a field that the policy does not name."""
        if not self._key_fields:
            return 0
        if is_key_field(name):
            return _KEY
        return 0 if name.startswith(OF_ONE_REQUEST) else _SHARED

    def _learn(self, name: bytes) -> int:
        """As `_role`; remember it."""
        role = self._role(name)
        if len(self._roles) < MAX_NAMES and len(name) <= MAX_NAME_BYTES:
            self._roles[name] = role
        return role

    def read(self, headers: Headers) -> RequestFields:
        """Sort a request's fields in one pass; values of one name stay in order.

        Requests with the very same fields (`head_cache`) get the same object.
        """
        known = self._reads.get(id(headers))
        if known is not None and known.headers is headers:
            return known
        read = RequestFields(self._level)
        read.headers = headers
        roles = self._roles
        key: list[tuple[bytes, bytes]] = []
        shared: list[tuple[bytes, bytes]] = []
        for field in headers:
            role = roles.get(field[0])
            if role is None:
                role = self._learn(field[0])
            if role == _SHARED:
                shared.append(field)
            elif role == _KEY:
                key.append(field)
            elif role:
                if role & _KEY:
                    key.append(field)
                elif role & _SHARED:
                    shared.append(field)
                elif role & _CHAIN:
                    (key if stands_alone(field[1]) else shared).append(field)
                if role & _ID and read.request_id is None:
                    read.request_id = field[1]
                if role & _TIMEOUT and read.timeout_ms is None:
                    read.timeout_ms = timeout_ms((field,))
                if role & _LEVEL:
                    read.level = self._clamp(field[1])
                if role & _SHARE:
                    read.share = field[1]
                if role & _STICKY:
                    read.sticky = True
                if role & _RETRY:
                    read.retry, read.unread = True, field[1] == UNREAD
                if role & _HELD:
                    read.held = True
        if len(key) > 1:
            key.sort(key=_name)
        read.fields = tuple(key)
        read.shared = _joined(shared)
        if len(self._reads) >= MAX_READS:
            self._reads.clear()
        self._reads[id(headers)] = read
        return read

    def read_of(self, request: Request) -> RequestFields:
        """As `read`, for all of a request's fields; fields that requests share are sorted once for all."""
        shared = request.shared
        if shared is None:
            return self.read(request.headers)
        if shared is not self._shared:
            self._shared, self._shared_fields = shared, self.read(shared)
        base = self._shared_fields
        read = RequestFields(base.level)
        read.fields, read.shared, read.share = base.fields, base.shared, base.share
        read.sticky, read.retry, read.held, read.unread = base.sticky, base.retry, base.held, base.unread
        read.request_id, read.timeout_ms = base.request_id, base.timeout_ms
        roles = self._roles
        for field in request.headers[len(shared) :]:
            role = roles.get(field[0])
            if role is None:
                role = self._learn(field[0])
            if role == _ID:
                if read.request_id is None:
                    read.request_id = field[1]
            elif role == _TIMEOUT:
                if read.timeout_ms is None:
                    read.timeout_ms = timeout_ms((field,))
            elif role == _RETRY:
                read.retry, read.unread = True, field[1] == UNREAD
            elif role == _HELD:
                read.held = True
            elif role:
                return self.read(request.headers)
        return read

    def key(
        self, method: str, target: str, fields: Headers, parameters: Hashable, share: bytes = b""
    ) -> BatchKey:
        """The key of these values; the same object as long as it is remembered or in use.

        Args:
            method: the method.
            target: path and query.
            fields: the fields that are part of the key.
            parameters: the protocol's parameters.
            share: the sender; a sender of bad requests has a key of its own for a while.
        """
        key = self._key(method, target, fields, parameters)
        return key if key.faults is None or not share else key.faults.key_of(share, key)

    def _key(self, method: str, target: str, fields: Headers, parameters: Hashable) -> BatchKey:
        key = self._latest
        if (
            key is not None
            and key.fields is fields
            and key.target == target
            and key.method == method
            and key.parameters == parameters
        ):
            return key
        values = (method, target, fields, parameters)
        key = self._known.get(values)
        if key is None:
            size = _size(values)
            if self._bytes + size > self._most_bytes:
                self._forget()
            key = self._known[values] = BatchKey(method, target, fields, parameters)
            key.large = size > LARGE_BYTES
            self._bytes += size
        self._latest = key
        return key

    def _forget(self) -> None:
        """Forget the keys that are not in use, and of which no bad requests are remembered."""
        self._known = {
            values: key for values, key in self._known.items() if key in self._used or key.faults is not None
        }
        self._bytes = sum(map(_size, self._known))
        self._most_bytes = max(KEYS_BYTES, 2 * self._bytes)

    def rekey(self, work: QueuedRequest) -> None:
        """Give a queued request the key, level and share that it has under the present policy."""
        read = self.read(work.request.headers)
        work.shared, work.level, work.share = read.shared, read.level, read.share
        key = work.key
        if key.lone:
            work.key = BatchKey(key.method, key.target, read.fields, key.parameters, lone=True)
        else:
            work.key = self.key(key.method, key.target, read.fields, key.parameters, read.share)

    def _clamp(self, value: bytes) -> int:
        """The level that a field names, limited to existing levels; the default if it is not a number."""
        value = value.strip()
        if not value.isdigit() or len(value) > 6:
            return self._level
        return min(max(int(value), 1), self._levels)


def _size(values: object) -> int:
    """About how many bytes a key of these values takes."""
    size, rest = KEY_BYTES, [values]
    while rest:
        value = rest.pop()
        if isinstance(value, tuple):
            rest.extend(value)
            size += 64
        elif isinstance(value, (bytes, str)):
            size += len(value)
    return size


def lone_fields(request: Request, request_id: bytes, timeout: float) -> Headers:
    """Return the fields that a request without a batch, or alone in its batch, sends to the model.

    Args:
        request: the request.
        request_id: its id.
        timeout: seconds that remain.
    """
    kept = [
        field
        for field in request.headers
        if field[0] != REQUEST_ID and (not field[0].startswith(PREFIX) or field[0] in TO_MODEL)
    ]
    return (*kept, (REQUEST_ID, request_id), time_left(timeout))


def batch_fields(works: Sequence[QueuedRequest], described: Headers) -> Headers:
    """Return the fields that a batch of several requests (or parts) sends to the model, except the time left.

    Args:
        works: the requests, in the order of their items; all of one key.
        described: the fields that describe the body; they replace those of the requests.
    """
    fields = works[0].key.fields
    if described:
        names = {name for name, _ in described}
        fields = (*[field for field in fields if field[0] not in names], *described)
    return (*fields, *_equal(works), (REQUEST_ID, _request_ids(works)))


def time_left(timeout: float) -> tuple[bytes, bytes]:
    """Return the field with the milliseconds that remain until the latest deadline.

    Args:
        timeout: the same in seconds.
    """
    return (TIMEOUT_MS, b"%d" % max(1, timeout * 1000))


def attempt_field(attempt: int) -> tuple[bytes, bytes]:
    """Return the field that marks a request as a further run of items that the model has had before."""
    return (ATTEMPT, b"%d" % attempt)


def _equal(works: Sequence[QueuedRequest]) -> Headers:
    first = works[0].shared
    common: set[tuple[bytes, bytes]] | None = None
    for work in works:
        shared = work.shared
        if shared is first:
            continue
        if common is None:
            if shared == first:
                continue
            common = set(first)
        common.intersection_update(shared)
    if common is None:
        return first
    fields = tuple([field for field in first if field in common and field[0] != CALL_CHAIN])
    chains = [chain for work in works if (chain := get(work.shared, CALL_CHAIN)) is not None]
    # NB: even if not all requests have one: calls that go round in a circle may share each of their batches
    # with requests that are not part of the circle.
    return (*fields, (CALL_CHAIN, deepest(chains))) if chains else fields


def left_out(works: Sequence[QueuedRequest]) -> list[str]:
    """Return the names of the fields that a batch of these requests did not send, since they differ."""
    common = set(works[0].shared)
    names: set[bytes] = set()
    for work in works:
        common.intersection_update(work.shared)
        names.update([name for name, _ in work.shared])
    names.difference_update(_CALLER_FIELDS, [name for name, _ in common])
    return [name.decode("latin-1") for name in sorted(names)]


def _joined(fields: list[tuple[bytes, bytes]]) -> Headers:
    """The fields with one line for each name (RFC 9110 section 5.3), so that a set of them has each whole."""
    values: dict[bytes, bytes] = {}
    for name, value in fields:
        if name not in values:
            values[name] = value
        elif name != CALL_CHAIN:  # a longer chain may stand alone
            values[name] = b"%b, %b" % (values[name], value)
    return tuple(fields) if len(values) == len(fields) else tuple(values.items())


def _request_ids(works: Sequence[QueuedRequest]) -> bytes:
    """The ids of a batch, separated by commas; a comma within an id is written %2C."""
    joined = b",".join([work.request_id for work in works])
    if len(joined) <= MAX_REQUEST_IDS_BYTES and joined.count(b",") == len(works) - 1:
        return joined
    ids: list[bytes] = []
    room = MAX_REQUEST_IDS_BYTES
    for work in works:
        request_id = work.request_id.replace(b",", b"%2C")
        room -= len(request_id) + 1
        if room < 0:
            break
        ids.append(request_id)
    return b",".join(ids)
