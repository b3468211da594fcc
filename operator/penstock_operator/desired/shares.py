"""The current shares of a split: those of its spec or, with a strategy, those of its release's step."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_operator.api import TrafficSplit
from penstock_operator.api.match import Match
from penstock_operator.api.mirror_compare import MirrorCompare
from penstock_operator.api.strategy import ReleaseState
from penstock_operator.api.trafficsplit import SplitMirror


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A backend's share of an endpoint, and the rules that give it requests regardless of shares.

    Args:
        match: rules of the requests that it gets regardless of shares.
    """

    name: str
    weight: int
    match: tuple[Match, ...] = ()


def release_of(split: TrafficSplit) -> ReleaseState | None:
    """The release that a split's strategy has begun, from its status; None before its first step.

    A status of another pair of backends, or one without a strategy, belongs to a release that is over.
    """
    strategy, state = split.spec.strategy, split.status.release
    if strategy is None or state is None:
        return None
    same = (state.stable, state.candidate) == (strategy.stable, strategy.candidate)
    return state if same else None


def weights_of(split: TrafficSplit) -> tuple[Weight, ...]:
    """The current shares of a split: those of its spec or, with a strategy, those of its release."""
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
    """The percentage of the requests that are copied to the candidate of a split's release.

    It is 0 if the candidate gets requests of its own: no router sends a backend both.
    """
    state = release_of(split)
    if state is None or state.weight or has_rules(split):
        return 0
    return state.mirror


def has_rules(split: TrafficSplit) -> bool:
    """Whether the candidate gets requests by `match`, regardless of its weight."""
    strategy = split.spec.strategy
    return any(
        strategy is not None and share.name == strategy.candidate and share.match
        for share in split.spec.backends
    )


def mirrors_of(split: TrafficSplit) -> tuple[SplitMirror, ...]:
    """The backends that get copies: a split's mirrors, and its candidate in a step with `mirror`."""
    percent, strategy = mirrored_percent(split), split.spec.strategy
    if strategy is None or not percent:
        return split.spec.mirrors
    compare = strategy.analysis.compare or MirrorCompare()
    return (*split.spec.mirrors, SplitMirror(name=strategy.candidate, percent=percent, compare=compare))
