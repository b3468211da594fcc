"""From which work on larger batches are dearer, and when none are believed to be."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.estimators.thrifty_work import dearer_beyond

BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def points(time: Callable[[float], float], seed: int, noise: float = 0.05) -> list[tuple[float, float]]:
    """Batches of unequal work, one of 50 of which stalls."""
    draw = random.Random(seed)
    works = [draw.lognormvariate(2.3, 0.6) for _ in range(200)]
    stalls = [5.0 if draw.random() < 0.02 else 1.0 for _ in works]
    return [
        (work, time(work) * draw.lognormvariate(0.0, noise) * each)
        for work, each in zip(works, stalls, strict=True)
    ]


def cached(dearer: float) -> Callable[[float], float]:
    return lambda work: 3e-4 + 1e-3 * work * (dearer if work > 8 else 1.0)


@pytest.mark.parametrize("dearer", [1.2, 1.5])
def test_batches_beyond_a_cores_cache_are_dearer(dearer: float):
    for seed in range(50):
        assert dearer_beyond(points(cached(dearer), seed), BOUNDS) in (6, 8)


@pytest.mark.parametrize(("a", "noise"), [(20e-3, 0.05), (5e-4, 0.05), (0.0, 0.05), (0.0, 0.2)])
def test_where_larger_batches_are_no_dearer_nothing_limits_them(a: float, noise: float):
    """Of a model with a time for any batch, and of one whose time is in proportion, or says little."""
    found = [dearer_beyond(points(lambda work: a + 1e-3 * work, seed, noise), BOUNDS) for seed in range(100)]
    assert sum(limit < math.inf for limit in found) <= 1


def test_a_few_batches_show_nothing():
    assert dearer_beyond([], BOUNDS) == math.inf
    assert dearer_beyond([(0.0, 1.0)] * 50, BOUNDS) == math.inf
    few = points(cached(1.5), 1)
    assert dearer_beyond([point for point in few if point[0] < 8], BOUNDS) == math.inf
    assert dearer_beyond(few[:12], BOUNDS) == math.inf


class Server:
    """A server that pads: 10 µs for a unit of padded length, half as much again beyond a cache."""

    def __init__(self) -> None:
        self.model, self.now, self.draw = LatencyModel(), 100.0, random.Random(3)

    def answer(self, count: int, *, most: float = 1e9) -> None:
        """Answer batches of several lengths, no larger than a padded length."""
        for _ in range(count):
            longest = round(min(512.0, 20 + self.draw.expovariate(1 / 100)))
            items = min(self.draw.randint(1, 32), max(1, int(most // longest)))
            padded = items * longest
            seconds = 3e-4 + padded * 1e-5 * (1.5 if padded > 1000 else 1.0)
            self.now += 0.05
            self.model.observe(self.now, "/m", items, seconds, items * longest, longest)
            self.model.predict(self.now, "/m", 1)

    @property
    def limit(self) -> float:
        """The most padded length of a batch."""
        formula = self.model.formula("/m")
        assert formula is not None
        assert formula.pads
        return formula.thrifty / formula.of(1, 1, 1)


def test_the_limit_stays_in_its_unit_and_rises_until_larger_batches_are_dear_again():
    server = Server()
    server.answer(200)
    first = server.limit
    assert 600 <= first <= 1300
    server.answer(900, most=0.8 * first)
    assert 1.05 * first < server.limit <= 2 * first, "dear ones are forgotten, so it rises, but slowly"
    server.answer(200)
    assert 600 <= server.limit <= 1300


def test_it_limits_what_a_batch_is_expected_to_hold():
    """As an objective does, and below one of its own."""
    server = Server()
    server.answer(200)
    assert server.limit < math.inf
    formula = server.model.formula("/m")
    assert formula is not None
    pace = ModelPace(32)
    pace.latency_model = server.model
    now = server.now
    assert (pace.work(now, "/m"), pace.size(now, "/m")) == (formula.thrifty, max(1, int(formula.thrifty)))
    pace.apply(limit=32, objective=60.0)
    assert pace.work(now, "/m") == formula.thrifty
    pace.apply(limit=32, objective=9e-3)
    assert pace.work(now, "/m") < formula.thrifty
    pace.apply(limit=32, objective=None)
    assert (pace.work(now, "/other"), pace.size(now, "/other")) == (math.inf, 32)
