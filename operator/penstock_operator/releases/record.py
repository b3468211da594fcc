"""The evidence that a verdict carries from one interval to the next, as JSON text in `verdicts[].state`.

If the text is absent, has another form, or is of another metric or threshold, the evidence begins afresh.
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
    """Evidence on a pair of hypotheses: that the candidate is bad, and that it is not.

    Args:
        worse: logarithms of the money on its being bad, one for each of RISES; empty before the first.
        fine: logarithms of the money on its not being bad, one for each of FALLS.
        refused: the bad requests that Penstock refused.
        expected: bad requests to expect by the stable's rates in the same intervals.
        edge: index of the pair of bounds by which slow answers are counted; -1 before the first interval.
        squares: the first result of `scatter.scattered`, of recent intervals.
        expected_squares: the second result, for independent bad requests.
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
        """Raise ValueError if the number of bets is not this version's."""
        if len(self.worse) not in (0, len(RISES)) or len(self.fine) not in (0, len(FALLS)):
            msg = f"expected {len(RISES)} and {len(FALLS)} bets, found {len(self.worse)} and {len(self.fine)}"
            raise ValueError(msg)
        if len(self.squares) not in (0, len(JOINED)):
            msg = f"expected {len(JOINED)} sums of squares, found {len(self.squares)}"
            raise ValueError(msg)

    def scatter(self, squares: Sequence[float], expected: float) -> None:
        """Add the scatter of an interval's bad requests, before the interval is bet on."""
        before = self.squares or [0.0] * len(squares)
        self.squares = [_short(KEPT * old + new) for old, new in zip(before, squares, strict=True)]
        self.expected_squares = _short(KEPT * self.expected_squares + expected)

    def bet(self, worse: Sequence[float], fine: Sequence[float]) -> None:
        """Add the e-values of an interval; the bad requests of one event count as one."""
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
        """How many bad requests count as one, by recent intervals."""
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
    """The evidence that a verdict carries.

    Args:
        of: the `key` of its metric.
        seconds: recent answers of the stable by bucket of latency.
    """

    of: str
    stable: Trial = msgspec.field(default_factory=Trial)
    threshold: Trial = msgspec.field(default_factory=Trial)
    seconds: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=10**15)]], msgspec.Meta(max_length=64)] = []


def _short(value: float) -> float:
    """Round a number, so that it takes few characters in the state."""
    return float(f"{value:.3g}")


_DECODER = msgspec.json.Decoder(Evidence)


def key(metric: ReleaseMetric, edges: int = 0) -> str:
    """The key of a state's metric; it differs by metric, quantile, threshold, query and number of buckets."""
    parts = (metric.name, metric.quantile or QUANTILE, metric.threshold, metric.query, edges)
    return f"{metric.name} {zlib.crc32(repr(parts).encode()):08x}"


def read(text: str, of: str) -> Evidence:
    """Read the evidence in a state; it is empty if the text is not a state with the key `of`."""
    evidence = _decoded(text)
    return evidence if evidence is not None and evidence.of == of else Evidence(of=of)


def about(text: str) -> str:
    """The `key` of a state; empty if the text is not a state."""
    evidence = _decoded(text)
    return "" if evidence is None else evidence.of


def write(evidence: Evidence) -> str:
    """Encode evidence as a state's text."""
    return msgspec.json.encode(evidence).decode()


def _decoded(text: str) -> Evidence | None:
    try:
        return _DECODER.decode(text) if len(text) <= MOST_BYTES else None
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None  # of another version, or edited by a user
