"""Sends requests with the same key to the same backend and pod: weighted rendezvous hashing. Pure.

Each backend (or pod) has a score for each key; the one with the best score gets the key's requests. So all
routers choose alike, without communication and after each restart, and a key moves only if it must: the keys
of a lost pod go to the others in equal parts, a new pod takes its share from each, and new weights move just
the difference (D. Thaler, C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM
Transactions on Networking 6, 1998; with weights as in J. Resch, "New Hashing Algorithms for Data Storage",
SNIA 2015: the score is the time until the first event of a Poisson process whose rate is the weight,
-ln(u) / weight, and the earliest wins, which has the probability weight / sum of weights).

A key and a name are hashed once each, by BLAKE2b; a few multiplications of 30-bit words combine the two:
compiled code needs an object for each product of longer words.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final

_WORD: Final = 0x3FFFFFFF
_FIRST: Final = 0x1B873593
_SECOND: Final = 0x165667B1
"""Odd factors below 2^29."""


class Hashed:
    """A key, or the name of a backend or a pod, as two words of 30 bits."""

    __slots__ = ("high", "low")

    def __init__(self, text: bytes) -> None:
        digest = hashlib.blake2b(text, digest_size=8).digest()
        self.high = int.from_bytes(digest[:4], "big") & _WORD
        self.low = int.from_bytes(digest[4:], "big") & _WORD


def score(key: Hashed, name: Hashed) -> int:
    """A pseudo-random 30-bit number that depends on nothing but this key and this name.

    Args:
        name: the backend's or the pod's.
    """
    return mixed(mixed(key.high ^ name.high) ^ key.low ^ name.low)


def mixed(number: int) -> int:
    """Map 30 bits to 30 bits, one to one, so that each bit of the result depends on all bits."""
    number ^= number >> 15
    number = number * _FIRST & _WORD
    number ^= number >> 14
    number = number * _SECOND & _WORD
    number ^= number >> 13
    number = number * _FIRST & _WORD
    return number ^ number >> 15


class WeightedChoice:
    """Chooses a backend by key and weight; remembers the hashes of their names."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, Hashed] = {}

    def of(self, key: Hashed, weights: Mapping[str, int]) -> str | None:
        """The backend of a key; None if no backend has a weight."""
        if len(weights) < 2:
            return next(iter(weights), None)
        best: str | None = None
        earliest = 0.0
        for name, weight in weights.items():
            time = -math.log((score(key, self._name(name)) + 0.5) / 1073741824.0) / weight
            if best is None or time < earliest or (time == earliest and name < best):
                best, earliest = name, time
        return best

    def _name(self, name: str) -> Hashed:
        hashed = self._names.get(name)
        if hashed is None:
            hashed = self._names[name] = Hashed(name.encode())
        return hashed
