"""How many requests share a batch where bad ones keep coming. Pure.

A batch that fails costs its search (`bisection`). The larger a batch, the more its requests share the time
that any run of the model takes, and the likelier one of them is bad. With a share p of bad requests, and
batches whose time hardly depends on their size, about 1/√p requests a batch are the cheapest (Dorfman, The
detection of defective members of large populations, Annals of Mathematical Statistics 14, 1943). Here the
expected time of the search that is really made decides, with the model's own times: the renewal-reward
quotient of the time that a group takes and the requests that it resolves. At worst each request runs alone,
as without batching; so all searches together never take more of the model's time than that.

The observed share of bad requests is an exponentially weighted mean over the latest `WINDOW` requests: of
each queue's key, and, where a header names who sends, of each sender that sends bad ones. A sender whose
share is well above that of the others, and large enough to make batches smaller, gets batches of its own
until it is not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

from penstock_sidecar.queue.request import Key, Slice

WINDOW = 128
"""Requests over which the share of bad ones is observed."""
FORGET = 1 / (32 * WINDOW)
"""A share of bad requests below which none is remembered: some 450 good requests after a single bad one."""
SENDER_WINDOW = 32
"""Requests of one sender over which its share of bad ones is observed."""
APART = 2.0
"""How many times the share of bad requests among all a sender has that gets batches of its own."""
MAX_SENDERS = 64
"""Senders of bad requests that are remembered of each key; beyond, the one not seen for longest goes."""

_NAME_BYTES = 32

Seconds = Callable[[int], float | None]
"""What the model takes for a batch of so many items; None where that is not known."""


def cost(rate: float, requests: int, seconds: Callable[[int], float]) -> float:
    """The model's expected time for each request that gets its own outcome.

    Args:
        rate: the share of bad requests, 0 to 1.
        requests: requests in a batch.
        seconds: what a batch of so many requests takes.
    """
    good = 1.0 - rate
    fails = 1.0 - good**requests
    if fails <= 0.0:
        return seconds(requests) / requests
    time, resolved = _search(good, requests, seconds)
    return (seconds(requests) + fails * time) / ((1.0 - fails) * requests + fails * resolved)


def _search(good: float, suspects: int, seconds: Callable[[int], float]) -> tuple[float, float]:
    """Of suspects that hold a bad request: seconds until it is found, and requests resolved by then."""
    sizes = {suspects}
    for _ in range(suspects.bit_length()):
        sizes |= {half for size in sizes for half in ((size + 1) // 2, size // 2) if half > 1}
    expected = {1: (0.0, 1.0)}
    for size in sorted(sizes - {1}):
        first = (size + 1) // 2
        there = (1.0 - good**first) / (1.0 - good**size)
        time, resolved = expected[first]
        other, others = expected[size - first]
        if size - first == 1:
            other = seconds(1)  # known to be bad without a run, and run for its own answer
        expected[size] = (
            seconds(first) + there * time + (1.0 - there) * other,
            there * resolved + (1.0 - there) * (first + others),
        )
    return expected[suspects]


def best(rate: float, most: int, seconds: Callable[[int], float]) -> int:
    """Requests of the batch that costs the model the least time for each; `most` at most.

    Args:
        rate: the share of bad requests, 0 to 1.
        most: requests of a batch at most, at least 1.
        seconds: what a batch of so many requests takes.
    """
    if rate <= 0.0:
        return most
    known: dict[int, float] = {}

    def once(requests: int) -> float:
        if requests not in known:
            known[requests] = seconds(requests)
        return known[requests]

    found, least = most, cost(rate, most, once)
    size = most
    while size > 1:
        size = size * 3 // 4
        expected = cost(rate, size, once)
        if expected < least:
            found, least = size, expected
    return found


class Faults:
    """The bad requests of one key, or of one sender's within it.

    Args:
        rate: the share of bad ones to begin with.
        size: items of a request, on average, to begin with.
        parent: of a sender's: those of the key that it shares with others.
        sender: whose they are, by `_name`; empty for a key's own.

    `at` is when they were noted last, `limit` is how many items its batches hold at most; `rate` the share of
    bad requests. `key` is the queue that a sender's requests are put into while it gets batches of its own.
    """

    __slots__ = ("_size", "at", "key", "limit", "parent", "rate", "sender", "senders", "window")

    def __init__(
        self, rate: float = 0.0, size: float = 1.0, parent: Faults | None = None, sender: bytes = b""
    ) -> None:
        self.rate = rate
        self._size = size
        self.parent = parent
        self.sender = sender
        self.window = WINDOW if parent is None else SENDER_WINDOW
        self.at = 0.0
        self.limit = 1 << 30
        self.key: Key | None = None
        self.senders: OrderedDict[bytes, Faults] = OrderedDict()

    def key_of(self, sender: bytes, key: Key) -> Key:
        """The queue of a request: its sender's own while that has batches of its own, else the given one."""
        theirs = self.senders.get(_name(sender)) if self.senders else None
        return key if theirs is None or theirs.key is None else theirs.key

    def requests(self, found: int, resolved: int, most: int, seconds: Seconds) -> int:
        """Requests of which nothing is known to run together in a search.

        Args:
            found: bad requests that the search has found already.
            resolved: requests that it has resolved.
            most: items of a batch at most.
            seconds: what a batch of so many items takes.
        """
        rate = max(self.rate, found / max(resolved, WINDOW // 4))
        return best(min(1.0, rate), max(1, int(most / self._size)), self._by_requests(seconds))

    def note(self, parts: Sequence[Slice], bad: int, most: int, seconds: Seconds) -> None:
        """Take in a batch that was resolved.

        Args:
            parts: its requests.
            bad: how many of them are bad.
            most: items of a batch at most, by its policy.
            seconds: what a batch of so many items takes.
        """
        count = len(parts)
        keep = (1.0 - 1.0 / self.window) ** count
        self._size = keep * self._size + (1.0 - keep) * sum([part.size for part in parts]) / count
        self.rate = keep * self.rate + (1.0 - keep) * min(1.0, bad / count)
        if self.rate < FORGET:
            self.rate = 0.0
        group = best(self.rate, max(1, int(most / self._size)), self._by_requests(seconds))
        self.limit = most if group * self._size >= most - self._size else max(1, int(group * self._size))

    def note_senders(
        self, parts: Sequence[Slice], bad: Collection[Slice], most: int, seconds: Seconds
    ) -> list[tuple[bytes, Faults]]:
        """Take in who sent what of a batch in which several senders had a part.

        Args:
            parts: its requests.
            bad: those of them that are bad.
            most: items of a batch at most, by its policy.
            seconds: what a batch of so many items takes.

        Returns:
            The senders that get batches of their own from now on.
        """
        senders = self.senders
        mine: dict[bytes, list[Slice]] = {}
        for part in parts:
            sender = part.work.share
            if sender and (part in bad or _name(sender) in senders):
                mine.setdefault(sender, []).append(part)
        parted: list[tuple[bytes, Faults]] = []
        for sender, theirs in mine.items():
            name = _name(sender)
            faults = senders.get(name)
            if faults is None:
                faults = senders[name] = Faults(0.0, self._size, self, name)
                if len(senders) > MAX_SENDERS:
                    senders.popitem(last=False)
            senders.move_to_end(name)
            faults.note(theirs, sum([part in bad for part in theirs]), most, seconds)
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

    def forget(self, key: Key) -> None:
        """A key's bad requests are forgotten, and its senders share batches again.

        Args:
            key: the key.
        """
        key.faults = None
        for theirs in self.senders.values():
            theirs.key = None

    @property
    def over(self) -> bool:
        """A sender with batches of its own does not need them any more."""
        parent = self.parent
        return parent is not None and (self.rate <= parent.rate or not self.rate)

    def rejoin(self) -> None:
        """A sender shares batches again."""
        self.key = None
        if self.parent is not None and not self.rate:
            self.parent.senders.pop(self.sender, None)

    def _by_requests(self, seconds: Seconds) -> Callable[[int], float]:
        size = self._size

        def by_requests(requests: int) -> float:
            # Where nothing is known yet, a batch is taken to last as long whatever it holds.
            return seconds(max(1, round(requests * size))) or 1.0

        return by_requests


def _name(sender: bytes) -> bytes:
    """What a sender is remembered by, which is short whatever a client puts into its header."""
    return sender if len(sender) <= _NAME_BYTES else blake2b(sender, digest_size=_NAME_BYTES).digest()
