"""Shares by weight, and the better of two pods."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_router.choice.load_balancing import WeightedSelector, two_of

WEIGHTS = st.lists(st.integers(0, 1_000_000), min_size=1, max_size=8).filter(any)


def draw(weights: dict[str, int], seed: int = 0) -> WeightedSelector:
    made = WeightedSelector(random.Random(seed))
    made.set_weights(weights)
    return made


def better_of_two(names: list[str], load: Callable[[str], float], source: random.Random) -> str:
    """As `Pods.pick` does among several."""
    first, other = two_of(len(names), source)
    return names[first] if load(names[first]) <= load(names[other]) else names[other]


def named(weights: list[int]) -> dict[str, int]:
    return {f"b{index}": weight for index, weight in enumerate(weights)}


def worst_window(drawn: list[str | None], name: str, share: float) -> float:
    """How far the backend's count in any window, of any length, is from its share."""
    lag = lowest = highest = worst = 0.0
    for choice in drawn:
        lag += share - (choice == name)
        worst = max(worst, lag - lowest, highest - lag)
        lowest, highest = min(lowest, lag), max(highest, lag)
    return worst


@given(weights=WEIGHTS, seed=st.integers(0, 2**32))
@example(weights=[1] * 8, seed=0)
@example(weights=[1_000_000, 1, 1, 1], seed=1)
@example(weights=[90, 10], seed=2)
@settings(max_examples=60, deadline=None)
def test_in_any_window_each_backend_is_within_two_of_its_share(weights: list[int], seed: int) -> None:
    backends = named(weights)
    chooser = draw(backends, seed)
    drawn = [chooser.next() for _ in range(3000)]
    for name, weight in backends.items():
        assert worst_window(drawn, name, weight / sum(weights)) <= 2


@pytest.mark.parametrize("weights", [[90, 10], [1, 1, 1], [997, 2, 1], [5, 0, 95], [1_000_000, 1]])
def test_of_ten_thousand_requests_each_has_its_share_within_two(weights: list[int]) -> None:
    backends = named(weights)
    for seed in range(5):
        chooser = draw(backends, seed)
        counts = Counter(chooser.next() for _ in range(10_000))
        for name, weight in backends.items():
            assert abs(counts[name] - 10_000 * weight / sum(weights)) <= 2
            assert weight or not counts[name]


def test_no_backend_has_a_weight() -> None:
    assert draw({}).next() is None
    assert draw({"a": 0}).next() is None


def test_a_single_backend_gets_all() -> None:
    chooser = draw({"a": 3, "b": 0})
    assert {chooser.next() for _ in range(100)} == {"a"}


@given(
    changes=st.lists(
        st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any), min_size=2, max_size=6
    ),
    steps=st.lists(st.integers(0, 40), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_a_changed_weight_takes_effect_at_once(changes: list[list[int]], steps: list[int], seed: int) -> None:
    chooser = WeightedSelector(random.Random(seed))
    for weights, count in zip(changes, steps, strict=False):
        backends = named(weights)
        chooser.set_weights(backends)
        drawn = [chooser.next() for _ in range(count + 100)]
        for name, weight in backends.items():
            assert weight or name not in drawn
            # A change may bring together what several were owed, so one more than without any.
            assert worst_window(drawn, name, weight / sum(weights)) <= 3


def test_who_is_owed_something_gets_it_however_often_weights_change() -> None:
    """Changes of a neighbour's weight do not start the small one's wait anew."""
    chooser = WeightedSelector(random.Random(7))
    counts: Counter[str | None] = Counter()
    expected = 0.0
    for turn in range(400):
        big = 98 + turn % 2
        chooser.set_weights({"big": big, "other": 100 - big, "small": 1})
        counts.update(chooser.next() for _ in range(5))
        expected += 5 / 101
    assert abs(counts["small"] - expected) <= 3


def test_a_backend_raised_from_zero_gets_its_share_from_then_on_and_no_more() -> None:
    chooser = draw({"a": 1, "b": 0})
    for _ in range(1000):
        chooser.next()
    chooser.set_weights({"a": 1, "b": 1})
    counts = Counter(chooser.next() for _ in range(100))
    assert abs(counts["b"] - 50) <= 2


def test_equal_backends_come_in_no_fixed_order() -> None:
    """A client that alternates two kinds of request does not send each kind to one backend."""
    chooser = draw({"a": 1, "b": 1}, seed=3)
    even = Counter(chooser.next() if turn % 2 == 0 else chooser.next() and None for turn in range(2000))
    assert min(even["a"], even["b"]) > 300


@pytest.mark.parametrize(("weight", "kinds"), [(10, 10), (20, 5), (25, 4), (1, 100), (50, 2), (90, 10)])
def test_of_two_each_gets_all_kinds_of_a_client_that_sends_them_in_turn(weight: int, kinds: int) -> None:
    """Whatever the period: what a release compares are requests of one mix."""
    chooser = draw({"old": 100 - weight, "new": weight}, seed=3)
    count = 2000 * kinds * 100 // weight // 10
    got = Counter(number % kinds for number in range(count) if chooser.next() == "new")
    assert len(got) == kinds
    assert max(got.values()) < 1.5 * min(got.values())


def test_routers_do_not_march_in_step() -> None:
    starts = set()
    for seed in range(20):
        chooser = draw({"a": 9, "b": 1}, seed)
        starts.add([chooser.next() for _ in range(10)].index("b"))
    assert len(starts) > 3


def load_of(loads: dict[str, int]):  # type: ignore[no-untyped-def]
    return lambda pod: (0, float(loads[pod]))


def test_the_less_loaded_of_two_is_chosen() -> None:
    source = random.Random(1)
    assert {better_of_two(["x", "y"], load_of({"x": 3, "y": 2}), source) for _ in range(50)} == {"y"}


def test_the_most_loaded_of_three_is_never_chosen_and_no_other_is_left_out() -> None:
    source = random.Random(1)
    load = load_of({"x": 1, "y": 2, "z": 9})
    chosen = Counter(better_of_two(["x", "y", "z"], load, source) for _ in range(600))
    assert chosen["z"] == 0
    assert chosen["y"] > 100


def test_equals_share() -> None:
    source = random.Random(1)
    load = load_of(dict.fromkeys("wxyz", 0))
    chosen = Counter(better_of_two(list("wxyz"), load, source) for _ in range(4000))
    assert min(chosen.values()) > 800


def test_balls_thrown_by_two_choices_lie_flat() -> None:
    """With one choice the fullest of 64 bins of 64 balls each would hold about 90."""
    source = random.Random(5)
    loads = {f"p{index}": 0 for index in range(64)}
    for _ in range(64 * 64):
        loads[better_of_two(list(loads), load_of(loads), source)] += 1
    assert max(loads.values()) <= 68
