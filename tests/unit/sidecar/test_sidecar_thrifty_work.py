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


def batches(time: Callable[[float], float], seed: int, noise: float = 0.05) -> list[tuple[int, float, float]]:
    """Batches of unequal work, one of 50 of which stalls."""
    draw = random.Random(seed)
    works = [draw.lognormvariate(2.3, 0.6) for _ in range(200)]
    stalls = [5.0 if draw.random() < 0.02 else 1.0 for _ in works]
    return [
        (2, work, time(work) * draw.lognormvariate(0.0, noise) * each)
        for work, each in zip(works, stalls, strict=True)
    ]


def cached(dearer: float) -> Callable[[float], float]:
    return lambda work: 3e-4 + 1e-3 * work * (dearer if work > 8 else 1.0)


@pytest.mark.parametrize("dearer", [1.2, 1.5])
def test_batches_beyond_a_cores_cache_are_dearer(dearer: float):
    for seed in range(50):
        assert dearer_beyond(batches(cached(dearer), seed), BOUNDS) in (6, 8)


@pytest.mark.parametrize(("a", "noise"), [(20e-3, 0.05), (5e-4, 0.05), (0.0, 0.05), (0.0, 0.2)])
def test_where_larger_batches_are_no_dearer_nothing_limits_them(a: float, noise: float):
    """Of a model with a time for any batch, and of one whose time is in proportion, or says little."""
    found = [dearer_beyond(batches(lambda work: a + 1e-3 * work, seed, noise), BOUNDS) for seed in range(100)]
    assert sum(limit < math.inf for limit in found) <= 1


@pytest.mark.parametrize("spell", [5, 20, 60])
def test_slow_spells_in_which_batches_are_large_are_no_evidence(spell: int):
    """Their queue makes batches large, from their second on until after their end, as 100 others are not."""
    draw, some = random.Random(spell), []
    for n in range(200):
        work = draw.uniform(8, 32) if 1 <= n % (3 * spell) <= spell else draw.uniform(1, 4)
        slow = 4.0 if n % (3 * spell) < spell else 1.0
        some.append((2, work, slow * 1e-3 * work * draw.lognormvariate(0.0, 0.05)))
    assert dearer_beyond(some, BOUNDS) == math.inf


def test_single_items_are_no_evidence_since_they_cannot_be_smaller_batches():
    some = batches(cached(1.5), 1)
    assert dearer_beyond(some, BOUNDS) < math.inf
    alone = [(1 if work > 8 else 2, work, seconds) for _, work, seconds in some]
    assert dearer_beyond(alone, BOUNDS) == math.inf


def test_a_few_batches_show_nothing():
    assert dearer_beyond([], BOUNDS) == math.inf
    assert dearer_beyond([(2, 0.0, 1.0)] * 50, BOUNDS) == math.inf
    few = batches(cached(1.5), 1)
    assert dearer_beyond([batch for batch in few if batch[1] < 8], BOUNDS) == math.inf
    assert dearer_beyond(few[:12], BOUNDS) == math.inf


class Server:
    """A server that pads: 10 µs for a unit of padded length, half as much again beyond a cache."""

    def __init__(self, *, alone: bool = True) -> None:
        self.model, self.now, self.draw = LatencyModel(), 100.0, random.Random(3)
        self.model.alone = alone

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
    server.answer(500, most=0.8 * first)
    assert 1.5 * first < server.limit <= 4 * first, "dear ones are forgotten after 10 s of 25: 5 % a second"
    server.answer(200)
    assert 600 <= server.limit <= 1300


def test_batches_that_share_a_processor_limit_nothing_until_all_that_is_known_is_of_one_at_a_time():
    server = Server(alone=False)
    server.answer(300)
    assert server.limit == math.inf
    server.model.alone = True
    server.answer(150)
    assert server.limit == math.inf
    server.answer(250)
    assert 600 <= server.limit <= 1300
    server.model.alone = False
    server.answer(200)
    assert server.limit == math.inf


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
    assert pace.work(now, "/m") == formula.thrifty
    formula.thrifty = 7.9
    assert (pace.work(now, "/m"), pace.size(now, "/m")) == (7.9, 7)
    formula.thrifty = 0.4
    assert (pace.work(now, "/m"), pace.size(now, "/m")) == (0.4, 1)
    formula.thrifty = 7.9
    pace.apply(limit=32, objective=None, slots=2)
    assert not pace.latency_model.alone
    pace.apply(limit=32, objective=60.0)
    assert pace.work(now, "/m") == formula.thrifty
    pace.apply(limit=32, objective=9e-3)
    assert pace.work(now, "/m") < formula.thrifty
    pace.apply(limit=32, objective=None)
    assert (pace.work(now, "/other"), pace.size(now, "/other")) == (math.inf, 32)
