"""Which pods are named to go before replicas fall."""

from __future__ import annotations

import random

import pytest

from penstock_operator.autoscaling.victims import MOST, Candidate, name_victims


def pods(*loads: int | None, costs: dict[int, int] | None = None) -> list[Candidate]:
    """Pods `0`, `1`, … of these loads."""
    return [
        Candidate(name=str(number), load=load, cost=(costs or {}).get(number, 0))
        for number, load in enumerate(loads)
    ]


@pytest.mark.parametrize(
    ("there", "leaving", "expected"),
    [
        pytest.param(pods(5, 0, 9), 1, {"1": "-1"}, id="the least busy"),
        pytest.param(pods(5, 0, 9, 7), 3, {"2": "1"}, id="who stays, where that takes fewer writes"),
        pytest.param(pods(5, None, 9), 1, {"0": "-1"}, id="unknown is not little"),
        pytest.param(pods(0, 0, 9, costs={1: -1}), 1, {}, id="of equals, one that is marked"),
        pytest.param(pods(5, 0, 9, costs={0: -1}), 1, {"0": None, "1": "-1"}, id="a mark that is too old"),
        pytest.param(pods(5, 0, costs={1: 1}), 1, {"1": "-1"}, id="a user's own, too"),
        pytest.param(
            pods(5, 0, 1, 2, costs={2: 1}), 3, {"2": None, "0": "1"}, id="a user's own, of one that goes"
        ),
        pytest.param(pods(5, 0, 9), 0, {}, id="none goes"),
        pytest.param(pods(5, 0, 9), -2, {}, id="more are to come"),
        pytest.param(pods(5, 0, 9), 3, {}, id="all go"),
    ],
)
def test_as_few_pods_as_possible_are_marked(
    there: list[Candidate], leaving: int, expected: dict[str, str | None]
) -> None:
    assert name_victims(there, leaving) == expected


def after(there: list[Candidate], written: dict[str, str | None]) -> dict[str, int]:
    return {pod.name: int(written[pod.name] or 0) if pod.name in written else pod.cost for pod in there}


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_marked_already_the_least_busy_go(seed: int) -> None:
    """Each pod that is to go costs less than each that is to stay."""
    draw = random.Random(seed)
    there = [
        Candidate(name=str(number), load=draw.choice([None, *range(12)]), cost=draw.choice([-1, 0, 0, 1, 7]))
        for number in range(draw.randint(2, 12))
    ]
    leaving = draw.randint(1, len(there) - 1)
    costs = after(there, name_victims(there, leaving))
    ranked = sorted(there, key=lambda pod: costs[pod.name])
    going, staying = ranked[:leaving], ranked[leaving:]
    assert costs[going[-1].name] < costs[staying[0].name]
    busy = [99 if pod.load is None else pod.load for pod in ranked]
    assert max(busy[:leaving]) <= min(busy[leaving:])


def test_the_writes_for_one_decrease_are_bounded() -> None:
    there = pods(*range(1000))
    assert list(name_victims(there, 500)) == [str(number) for number in range(MOST)]
    assert list(name_victims(there, 501)) == [str(number) for number in range(999, 999 - MOST, -1)]
