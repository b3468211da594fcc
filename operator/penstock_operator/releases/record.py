"""What a verdict carries from one interval to the next, as the JSON text in `verdicts[].state`.

A text of another form, of another metric or another threshold, or none: the evidence begins afresh.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Annotated

import msgspec

from penstock_operator.api.strategy import ReleaseMetric
from penstock_operator.releases.margins import FAIL_CAP, PASS_CAP, QUANTILE
from penstock_operator.releases.scatter import JOINED, KEPT
from penstock_operator.releases.sequential import FALLS, NOTHING, RISES, advance, log_sum

MOST_BYTES = 1024

Count = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Square = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Log = Annotated[float, msgspec.Meta(ge=NOTHING, le=FAIL_CAP)]


class Trial(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One hypothesis pair: that the candidate is bad, and that it is not.

    Args:
        looks: intervals that have been bet on.
        worse: logarithms of the money on its being bad, one for each of RISES; empty before the first.
        fine: of the money on its not being bad, one for each of FALLS.
        requests: recent requests of the candidate.
        bad: of those, the bad ones.
        refused: of those, refusals by Penstock.
        expected: bad ones that the stable's rates in the same intervals give.
        failures: intervals above a threshold so far.
        edge: the bucket that the bad ones are counted from.
        squares: see `scatter.scattered`, of late.
        expected_squares: what independent bad ones give.
    """

    looks: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    worse: list[Log] = []
    fine: list[Log] = []
    requests: Count = 0.0
    bad: Count = 0.0
    refused: Count = 0.0
    expected: Count = 0.0
    failures: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0
    edge: Annotated[int, msgspec.Meta(ge=-1, le=1000)] = -1
    squares: list[Square] = []
    expected_squares: Square = 0.0

    def __post_init__(self) -> None:
        """Refuse, in ValueError, another number of bets than this version makes."""
        if len(self.worse) not in (0, len(RISES)) or len(self.fine) not in (0, len(FALLS)):
            msg = f"expected {len(RISES)} and {len(FALLS)} bets, found {len(self.worse)} and {len(self.fine)}"
            raise ValueError(msg)
        if len(self.squares) not in (0, len(JOINED)):
            msg = f"expected {len(JOINED)} sums of squares, found {len(self.squares)}"
            raise ValueError(msg)

    def scatter(self, squares: Sequence[float], expected: float) -> None:
        """Take up how the bad ones of an interval scatter, before it is bet on."""
        before = self.squares or [0.0] * len(squares)
        self.squares = [_short(KEPT * old + new) for old, new in zip(before, squares, strict=True)]
        self.expected_squares = _short(KEPT * self.expected_squares + expected)

    def bet(self, worse: Sequence[float], fine: Sequence[float]) -> None:
        """Take up the e-values of an interval, whose bad ones count as many as there are events."""
        one = self.together
        self.worse = advance(
            self.worse or [NOTHING] * len(RISES), [gain / one for gain in worse], self.looks, FAIL_CAP
        )
        self.fine = advance(
            self.fine or [NOTHING] * len(FALLS), [gain / one for gain in fine], self.looks, PASS_CAP
        )
        self.looks += 1

    @property
    def together(self) -> float:
        """How many bad ones count as one, of late."""
        return max(1.0, max(self.squares) / self.expected_squares) if self.expected_squares else 1.0

    @property
    def against(self) -> float:
        """Logarithm of the evidence that the candidate is bad."""
        return log_sum(self.worse or [NOTHING])

    @property
    def in_favour(self) -> float:
        """Logarithm of the evidence that it is not."""
        return log_sum(self.fine or [NOTHING])


class Evidence(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """All that a verdict carries.

    Args:
        of: which metric it is about.
        stable: the test against the stable.
        threshold: the test against a threshold.
        seconds: recent answers of the stable by bucket of latency.
    """

    of: str
    stable: Trial = msgspec.field(default_factory=Trial)
    threshold: Trial = msgspec.field(default_factory=Trial)
    seconds: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=10**15)]], msgspec.Meta(max_length=64)] = []


def _short(value: float) -> float:
    """A number that takes few characters in the state."""
    return float(f"{value:.3g}")


_DECODER = msgspec.json.Decoder(Evidence)


def key(metric: ReleaseMetric, edges: int = 0) -> str:
    """What a state is about: another metric, threshold, query or number of buckets has another."""
    parts = (metric.name, metric.quantile or QUANTILE, metric.threshold, metric.query, edges)
    return f"{metric.name} {zlib.crc32(repr(parts).encode()):08x}"


def read(text: str, of: str) -> Evidence:
    """The evidence in a state; without any, if the text is not such a state."""
    evidence = _decoded(text)
    return evidence if evidence is not None and evidence.of == of else Evidence(of=of)


def about(text: str) -> str:
    """The `key` that a state is of; empty if the text is not a state."""
    evidence = _decoded(text)
    return "" if evidence is None else evidence.of


def write(evidence: Evidence) -> str:
    """A state's text."""
    return msgspec.json.encode(evidence).decode()


def _decoded(text: str) -> Evidence | None:
    try:
        return _DECODER.decode(text) if len(text) <= MOST_BYTES else None
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None  # another version's, or somebody's edit
