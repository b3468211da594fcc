"""What dropping, refusing and the guards are for: the sidecar's decisions against a simulated model.

The numbers of docs/explanation/batching.md, come from these cases.
"""

from __future__ import annotations

import random

import pytest

from tests.support.worlds.simulation import Case, Result, affine, run

pytestmark = pytest.mark.long

BASE, ITEM, SIZE = 0.020, 0.001, 32
FULL = BASE + ITEM * SIZE
CAPACITY = SIZE / FULL
OBJECTIVE = 2 * FULL + 0.050
SECONDS = 20.0

WAYS: dict[str, dict[str, object]] = {
    "nothing": {"drop": "none", "admit": False},
    "shrink": {"drop": "shrink", "admit": False},
    "drop": {"admit": False},
    "drop and refuse": {},
}


def loaded(load: float, way: str, **more: object) -> tuple[Result, float]:
    """A load as a share of capacity; the result, and goodput as a share of what could be served."""
    fields = {"objective": OBJECTIVE, "timeout": OBJECTIVE, "jitter": 0.05} | WAYS[way] | more
    result = run(Case(model=affine(BASE, ITEM), rate=load * CAPACITY, seconds=SECONDS, **fields))  # type: ignore[arg-type]
    return result, result.good / min(result.arrived, CAPACITY * SECONDS)


@pytest.mark.parametrize("load", [0.25, 0.6, 0.9, 1.1, 1.3, 1.5])
def test_goodput_at_each_load_is_what_could_be_served(load: float):
    assert loaded(load, "drop and refuse")[1] >= 0.95


@pytest.mark.parametrize("load", [1.1, 1.3, 1.5])
def test_without_dropping_overload_serves_the_dead(load: float):
    """And batches that shrink so that the oldest keeps its deadline serve fewer and fewer."""
    assert loaded(load, "nothing")[1] <= 0.15
    assert loaded(load, "shrink")[1] <= 0.20


@pytest.mark.parametrize("load", [0.6, 0.9, 1.1, 1.3, 1.5])
def test_refusing_on_arrival_costs_at_most_a_fiftieth(load: float):
    assert loaded(load, "drop and refuse")[1] >= loaded(load, "drop")[1] - 0.02


@pytest.mark.parametrize(
    ("load", "refused"), [(0.6, 0.002), (0.7, 0.010), (0.8, 0.035), (0.9, 0.090)], ids=lambda it: f"{it:.1%}"
)
def test_below_capacity_few_are_refused_and_those_admitted_are_answered(load: float, refused: float):
    """With an objective of 1.5 batches; by forecasts of full ones 0.3, 2.3, 6.5 and 12 % were refused."""
    most = 28 / (0.1 + 0.02 * 28)
    case = Case(model=affine(0.1, 0.02), rate=load * most, seconds=200.0, objective=1.0, jitter=0.1)
    result = run(case)
    assert result.refused + result.full <= refused * result.arrived
    assert result.dropped + result.late <= 0.006 * result.arrived


@pytest.mark.parametrize("load", [1.1, 1.3, 1.5])
def test_most_refusals_are_on_arrival(load: float):
    assert loaded(load, "drop and refuse")[0].on_arrival >= 0.8


@pytest.mark.parametrize("slots", [2, 4])
def test_goodput_with_several_slots(slots: int):
    result = run(
        Case(
            model=affine(BASE, ITEM),
            rate=1.5 * slots * CAPACITY,
            seconds=10.0,
            slots=slots,
            objective=OBJECTIVE,
            timeout=OBJECTIVE,
            jitter=0.05,
        )
    )
    assert result.good / (slots * CAPACITY * 10.0) >= 0.95
    assert result.on_arrival >= 0.8


@pytest.mark.parametrize(("factor", "least"), [(1.3, 0.6), (1.6, 0.75), (2.0, 0.95)])
def test_a_tight_objective_makes_smaller_batches(factor: float, least: float):
    """An objective of less than two full batches' time costs capacity, but not all of it."""
    objective = factor * FULL
    assert loaded(1.5, "drop and refuse", objective=objective, timeout=objective)[1] >= least


# What lies between two batches of a real sidecar: its own work, and other processes on its core.
BETWEEN: dict[str, dict[str, float]] = {
    "little": {"ours": 0.001},
    "much": {"ours": 0.010},
    "now and then": {"ours": 0.002, "stalls": 0.1, "stall": 0.040},
    "seldom, but long": {"ours": 0.002, "stalls": 0.01, "stall": 0.200},
}


@pytest.mark.parametrize(("load", "slots"), [(0.9, 1), (1.1, 1), (1.3, 1), (1.5, 1), (1.1, 4), (1.5, 4)])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_what_lies_between_batches_is_in_the_forecast(load: float, slots: int, between: dict[str, float]):
    """Goodput is what the slots really can, and those who are taken in are answered."""
    cycle = FULL + between["ours"] + between.get("stalls", 0.0) * between.get("stall", 0.0)
    able = slots * SIZE / cycle
    fields = {"objective": OBJECTIVE, "timeout": OBJECTIVE, "jitter": 0.05, "slots": slots} | between
    result = run(Case(model=affine(BASE, ITEM), rate=load * able, seconds=10.0, **fields))  # type: ignore[arg-type]
    assert result.good >= 0.95 * min(result.arrived, able * 10.0)
    assert result.dropped + result.late <= 0.07 * result.arrived
    if load >= 1.3:
        assert result.on_arrival >= 0.8


@pytest.mark.parametrize("load", [1.1, 1.5])
@pytest.mark.parametrize(
    ("share", "stall", "least"), [(0.02, 0.2, 0.6), (0.06, 0.2, 0.4), (0.1, 0.08, 0.5), (0.1, 0.03, 0.9)]
)
def test_batches_that_stall_now_and_then_do_not_make_all_others_small(
    load: float, share: float, stall: float, least: float
):
    """Stalls of any batch, whatever its size; with the p95 of few samples less than a fifth would be left."""
    chance = random.Random(1)

    def model(_: float, items: int) -> float:
        return BASE + ITEM * items + (stall if chance.random() < share else 0.0)

    able = SIZE / (FULL + share * stall)
    result = run(
        Case(model=model, rate=load * able, seconds=10.0, objective=OBJECTIVE, timeout=30.0, jitter=0.05)
    )
    assert result.good >= least * able * 10.0


def test_a_client_that_waits_longer_than_the_objective_is_dropped_at_the_objective():
    result, goodput = loaded(1.5, "drop and refuse", timeout=30.0)
    assert goodput >= 0.95
    assert result.late <= 0.01 * result.arrived


@pytest.mark.parametrize(
    ("expiring", "run_head", "least", "most"),
    [(False, False, 0.0, 0.0), (True, False, 0.94, 1.0), (False, True, 0.97, 1.0), (True, True, 0.97, 1.0)],
    ids=["no guard", "samples expire", "the last is run", "both"],
)
def test_one_slow_start_does_not_lock_a_healthy_model_out(
    *, expiring: bool, run_head: bool, least: float, most: float
):
    """The first batch takes 3 s, all others 20 ms, the objective is 250 ms: 300 s of it."""
    case = Case(
        model=lambda begun, items: (3.0 if begun < 1.0 else BASE) + ITEM * items,
        rate=50.0,
        seconds=300.0,
        objective=0.25,
        timeout=0.25,
        expiring=expiring,
        run_head=run_head,
    )
    assert least <= run(case).served <= most
