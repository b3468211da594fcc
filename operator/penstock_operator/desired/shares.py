"""What a split asks for now: the shares of its spec or, with a strategy, those of its release's step."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_operator.api import TrafficSplit
from penstock_operator.api.match import Match
from penstock_operator.api.mirror_compare import MirrorCompare
from penstock_operator.api.strategy import ReleaseState
from penstock_operator.api.trafficsplit import SplitMirror


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A backend's share of an endpoint, and the requests that are its own whatever the shares.

    Args:
        name: the backend's.
        weight: relative to the others'.
        match: rules of requests that are its own.
    """

    name: str
    weight: int
    match: tuple[Match, ...] = ()


def release_of(split: TrafficSplit) -> ReleaseState | None:
    """The release that a split's strategy has begun, as its status has it; None before its first step.

    What the status says of another pair of backends, or without a strategy, is over.

    Args:
        split: the split.
    """
    strategy, state = split.spec.strategy, split.status.release
    if strategy is None or state is None:
        return None
    same = (state.stable, state.candidate) == (strategy.stable, strategy.candidate)
    return state if same else None


def weights_of(split: TrafficSplit) -> tuple[Weight, ...]:
    """The shares that a split asks for now: those of its spec or, with a strategy, those of its release.

    Args:
        split: the split.
    """
    strategy, state = split.spec.strategy, release_of(split)
    if strategy is None:
        return tuple(
            Weight(name=share.name, weight=share.weight, match=share.match) for share in split.spec.backends
        )
    percent = state.weight if state is not None else 0
    released = {strategy.stable: 100 - percent, strategy.candidate: percent}
    return tuple(
        Weight(name=share.name, weight=released.get(share.name, 0), match=share.match)
        for share in split.spec.backends
    )


def mirrored_percent(split: TrafficSplit) -> int:
    """Percent of the requests that are copied to the candidate of a split's release.

    None are where it gets requests of its own: no router sends a backend both.

    Args:
        split: the split.
    """
    state = release_of(split)
    if state is None or state.weight or has_rules(split):
        return 0
    return state.mirror


def has_rules(split: TrafficSplit) -> bool:
    """Whether requests are the candidate's by `match`, whatever its weight.

    Args:
        split: the split.
    """
    strategy = split.spec.strategy
    return any(
        strategy is not None and share.name == strategy.candidate and share.match
        for share in split.spec.backends
    )


def mirrors_of(split: TrafficSplit) -> tuple[SplitMirror, ...]:
    """Who gets copies: the mirrors of a split, and the candidate of its release in a step with `mirror`.

    Args:
        split: the split.
    """
    percent, strategy = mirrored_percent(split), split.spec.strategy
    if strategy is None or not percent:
        return split.spec.mirrors
    compare = strategy.analysis.compare or MirrorCompare()
    return (*split.spec.mirrors, SplitMirror(name=strategy.candidate, percent=percent, compare=compare))
