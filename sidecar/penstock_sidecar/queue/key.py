"""The key of a queue: what its requests have in common, and which of them were bad lately. Pure.

The observed share of bad requests is an exponentially weighted mean over the latest `WINDOW` requests of
each key and, if a header names the sender, of each sender of bad requests. If a sender's share is well above
that of the others, and large enough to make batches smaller, the sender gets batches of its own meanwhile.
`group_size` derives the size of batches from that share.

Where each request fails alone, the model may be broken: requests run one by one until one is answered, and
the failures count for nobody if they were many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b

from penstock_sidecar.queue.group_size import best
from penstock_wire.headers import METHOD, Headers, get
from penstock_wire.item_streams import stream_type

WINDOW = 128
"""Requests over which the share of bad ones is observed."""
FORGET = 1 / (32 * WINDOW)
"""A share of bad requests below this counts as 0: some 450 good requests after a single bad one."""
SENDER_WINDOW = 32
"""Requests of one sender over which its share of bad requests is observed."""
BROKEN = 32
"""So many requests in a row, of a key or a sender, that failed alone are not their senders' fault: the model
is broken, and what they were is forgotten when it answers again."""
APART = 2.0
"""A sender gets batches of its own if its share of bad requests is at least this many times that of all."""
MAX_SENDERS = 64
"""Senders of bad requests that are remembered for each key; one more drops the least recent one."""

_NAME_BYTES = 32

Seconds = Callable[[int], float | None]
"""The model's time for a batch of so many items; None if it is not known."""


class BatchKey:
    """All that must be equal for two requests to share a batch, as raw bytes.

    Only `batch_key.Keys` makes keys, one object for equal values: they compare and hash by identity.

    Args:
        method: the method.
        target: path and query.
        fields: the header fields that a model may act upon, sorted by name.
        parameters: the protocol's parameters, which are sent once for a batch.
        lone: the request does not share its batch; the key belongs to this request alone.

    Attributes:
        cls: the class whose service curve applies: the path, and the method that is called there.
        faults: the bad requests of this key; None if there were none lately.
        large: nothing is remembered of it beyond its requests: its values take much memory.
        streamed: whether its clients accept a stream.
    """

    __slots__ = ("cls", "faults", "fields", "large", "lone", "method", "parameters", "streamed", "target")

    def __init__(
        self, method: str, target: str, fields: Headers, parameters: Hashable, *, lone: bool = False
    ) -> None:
        self.method = method
        self.target = target
        self.cls = class_of(target, fields)
        self.faults: Faults | None = None
        self.fields = fields
        self.parameters = parameters
        self.large = False
        self.lone = lone
        self.streamed = stream_type(fields) is not None

    def __repr__(self) -> str:
        return repr((self.method, self.target, self.fields, self.parameters, self.lone))


def class_of(target: str, fields: Headers) -> str:
    """The class whose service curve applies to a request: its path, and the method that is called there."""
    named = get(fields, METHOD)
    path = target.partition("?")[0]
    return path if named is None else f"{path} {named.decode('latin-1')}"


class Faults:
    """The bad requests of one key, or of one sender within a key.

    Args:
        rate: the initial share of bad requests.
        size: the initial mean of a request's items.
        parent: for a sender: the bad requests of the key that it shares with others.
        sender: the sender, by `_name`; empty for a key.

    Attributes:
        at: when a batch was last counted.
        key: for a sender: the queue of its requests while it gets batches of its own.
        limit: maximum items of a batch.
        rate: the share of bad requests.
    """

    __slots__ = (
        "_before",
        "_failing",
        "_size",
        "at",
        "key",
        "limit",
        "parent",
        "rate",
        "sender",
        "senders",
        "window",
    )

    def __init__(
        self, rate: float = 0.0, size: float = 1.0, parent: Faults | None = None, sender: bytes = b""
    ) -> None:
        self.rate = rate
        self._size = size
        self._failing = 0  # requests that have failed alone since one was answered
        self._before = rate  # the rate before the first of them
        self.parent = parent
        self.sender = sender
        self.window = WINDOW if parent is None else SENDER_WINDOW
        self.at = 0.0
        self.limit = 1 << 30
        self.key: BatchKey | None = None
        self.senders: OrderedDict[bytes, Faults] = OrderedDict()

    def key_of(self, sender: bytes, key: BatchKey) -> BatchKey:
        """Return the key of the queue for a sender's request: the sender's own if it has one, else `key`."""
        theirs = self.senders.get(_name(sender)) if self.senders else None
        return key if theirs is None or theirs.key is None else theirs.key

    def requests(self, failed: int, resolved: int, most: int, seconds: Seconds) -> int:
        """How many untried requests a search runs together.

        Args:
            failed: bad requests that the search has found already.
            resolved: requests that the search has resolved.
            most: maximum items of a batch.
            seconds: the model's time for a batch.
        """
        if failed and failed == resolved:
            return 1  # perhaps it is the model that is broken, and there is nobody to search for
        rate = max(self.rate, failed / max(resolved, WINDOW // 4))
        return best(min(1.0, rate), max(1, int(most / self._size)), self._by_requests(seconds))

    def note(self, sizes: Sequence[int], bad: int, most: int, seconds: Seconds) -> None:
        """Count the requests of a batch that was resolved.

        Args:
            sizes: the items of each request.
            bad: how many of the requests are bad.
            most: maximum items of a batch, by its policy.
            seconds: the model's time for a batch.
        """
        count = len(sizes)
        if bad >= count:
            if not self._failing:
                self._before = self.rate
            self._failing += count
        else:
            if self._failing >= BROKEN:
                self.rate = self._before
            self._failing = 0
        keep = (1.0 - 1.0 / self.window) ** count
        self._size = keep * self._size + (1.0 - keep) * sum(sizes) / count
        self.rate = keep * self.rate + (1.0 - keep) * min(1.0, bad / count)
        if self.rate < FORGET:
            self.rate = 0.0
        group = best(self.rate, max(1, int(most / self._size)), self._by_requests(seconds))
        self.limit = most if group * self._size >= most - self._size else max(1, int(group * self._size))
        if self._failing > 1:
            self.limit = 1  # until one is answered, a search would only find each of them

    def note_senders(
        self, requests: Sequence[tuple[bytes, int, bool]], most: int, seconds: Seconds
    ) -> list[tuple[bytes, Faults]]:
        """Count the requests of a batch by their senders.

        Args:
            requests: the sender, the number of items, and whether it is bad, for each request.
            most: maximum items of a batch, by its policy.
            seconds: the model's time for a batch.

        Returns:
            The senders that get batches of their own from now on.
        """
        senders = self.senders
        mine: dict[bytes, list[tuple[int, bool]]] = {}
        for sender, items, bad in requests:
            if sender and (bad or _name(sender) in senders):
                mine.setdefault(sender, []).append((items, bad))
        parted: list[tuple[bytes, Faults]] = []
        for sender, theirs in mine.items():
            name = _name(sender)
            faults = senders.get(name)
            if faults is None:
                faults = senders[name] = Faults(0.0, self._size, self, name)
                if len(senders) > MAX_SENDERS:
                    senders.popitem(last=False)
            senders.move_to_end(name)
            faults.note([items for items, _ in theirs], sum([bad for _, bad in theirs]), most, seconds)
            if not faults.rate:
                del senders[name]
            elif (
                faults.key is None
                and faults.rate > 1.0 / SENDER_WINDOW  # more than one lately
                and faults.rate >= APART * self.rate
                and faults.limit < most
            ):
                parted.append((sender, faults))
        return parted

    def forget(self, key: BatchKey) -> None:
        """Forget a key's bad requests; its senders share batches again."""
        key.faults = None
        for theirs in self.senders.values():
            theirs.key = None

    @property
    def over(self) -> bool:
        """Whether a sender no longer needs batches of its own."""
        parent = self.parent
        return parent is not None and (self.rate <= parent.rate or not self.rate)

    def rejoin(self) -> None:
        """Let the sender share batches again."""
        self.key = None
        if self.parent is not None and not self.rate:
            self.parent.senders.pop(self.sender, None)

    def _by_requests(self, seconds: Seconds) -> Callable[[int], float]:
        size = self._size

        def by_requests(requests: int) -> float:
            # Before the first measurement, assume that the size of a batch does not affect its time.
            return seconds(max(1, round(requests * size))) or 1.0

        return by_requests


def _name(sender: bytes) -> bytes:
    """The name under which a sender is remembered: short, whatever the client's header holds."""
    return sender if len(sender) <= _NAME_BYTES else blake2b(sender, digest_size=_NAME_BYTES).digest()
