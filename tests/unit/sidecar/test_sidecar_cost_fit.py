"""Which formula explains the times of batches of unequal items, and when the number of items stays."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from penstock_sidecar.estimators import cost_fit
from penstock_sidecar.estimators.cost_fit import LEAST_SAMPLES, BatchSample, choose
from penstock_sidecar.estimators.latency_model import HORIZON, TRIAL_EVERY, TRIAL_SELDOM, LatencyModel
from penstock_sidecar.estimators.robust_line import fit_line
from penstock_sidecar.work import WorkFormula

Time = Callable[[Sequence[int]], float]

TIMES: dict[str, Time] = {
    "padded": lambda c: 0.02 + 20e-6 * len(c) * max(c),
    "sum": lambda c: 0.02 + 20e-6 * sum(c),
    "both, and each item": lambda c: 0.02 + 10e-6 * sum(c) + 10e-6 * len(c) * max(c) + 2e-4 * len(c),
    "attention": lambda c: 0.02 + 5e-6 * len(c) * max(c) + 2e-8 * len(c) * max(c) ** 2,
}
BY_NUMBER: dict[str, Time] = {
    "number": lambda c: 0.02 + 3e-3 * len(c),
    "constant": lambda c: 0.02,
}


def batches(seed: int, count: int = 200, size: int | None = 32) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [min(512, max(1, round(draw.lognormvariate(4.8, 1.0)))) for _ in range(size or draw.randint(1, 32))]
        for _ in range(count)
    ]


def samples(
    time: Time, given: Sequence[Sequence[int]], *, stalls: float = 0.0, seed: int = 1
) -> list[BatchSample]:
    """What the model has answered, with 5 % of noise, some of it ten times as late."""
    draw = random.Random(seed)
    return [
        (
            float(number),
            len(costs),
            time(costs) * draw.lognormvariate(0.0, 0.05) * (10.0 if draw.random() < stalls else 1.0),
            sum(costs),
            max(costs),
        )
        for number, costs in enumerate(given)
    ]


@pytest.mark.parametrize("stalls", [0.0, 0.1])
@pytest.mark.parametrize("time", TIMES.values(), ids=TIMES)
def test_work_is_in_proportion_to_the_time_of_batches_never_seen(time: Time, stalls: float):
    """And the mean item has a work of 1, so that work can be compared with numbers of items."""
    given = batches(1, size=None)
    formula = choose(samples(time, given, stalls=stalls), None)
    assert formula is not None

    def work(costs: Sequence[int]) -> float:
        return formula.of(len(costs), sum(costs), max(costs))

    assert sum(map(work, given)) == pytest.approx(sum(map(len, given)), rel=1e-6)
    seconds = (time([40] * 32) - time([40] * 16)) / (work([40] * 32) - work([40] * 16))
    for costs in batches(2, 50, None):
        predicted = time([200] * 8) + (work(costs) - work([200] * 8)) * seconds
        assert predicted == pytest.approx(time(costs), rel=0.2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("time", BY_NUMBER.values(), ids=BY_NUMBER)
def test_costs_that_explain_nothing_do_not_count(time: Time, seed: int):
    assert choose(samples(time, batches(seed, size=None), seed=seed), None) is None


@pytest.mark.parametrize("costs", [[0, 3], [9, 10], [1, 9]], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_any_few_costs_have_an_answer(costs: list[int], seed: int):
    """Also those between which no cap can lie: they are all of one size."""
    draw = random.Random(seed)
    given = [[draw.choice(costs) for _ in range(draw.randint(1, 4))] for _ in range(60)]
    formula = choose(samples(lambda _: draw.uniform(0.3, 0.6), given), None)
    assert formula is None or formula.cap > 0


def test_equal_costs_and_few_samples_explain_nothing():
    assert choose(samples(TIMES["padded"], [[100] * n for n in range(1, 30)]), None) is None
    assert choose(samples(TIMES["padded"], batches(1, LEAST_SAMPLES - 1)), None) is None
    assert choose([(0.0, 4, 0.1, 0, 0)] * 50, None) is None, "no cost is known"


def test_a_formula_stays_while_its_own_batches_cannot_tell_it_from_another():
    """Groups of like items: Σc and n · max(c) are nearly the same."""
    used = choose(samples(TIMES["padded"], batches(1)), None)
    assert used is not None
    assert used.pads
    assert not used.per_cost
    lengths = sorted(length for costs in batches(3) for length in costs)
    groups = [lengths[at : at + 32] for at in range(0, len(lengths), 32)]
    again = choose(samples(TIMES["padded"], groups), used)
    assert again is not None
    assert again.pads
    assert not again.per_cost


def test_padding_is_assumed_where_all_batches_are_alike_and_given_up_where_they_are_not():
    """A long item in each batch: Σc says as much as n · max(c), until batches are grouped by cost."""
    given = [[4000] * (n % 3) + [20] * (32 - n % 3) for n in range(60)]
    assumed = choose(samples(TIMES["sum"], given, seed=4), None)
    assert assumed is not None
    lengths = sorted(length for costs in batches(3) for length in costs)
    groups = [lengths[at : at + 32] for at in range(0, len(lengths), 32)]
    truth = choose(samples(TIMES["sum"], [*given, *groups, *batches(5)]), WorkFormula(0.0, 0.0, 0.01))
    assert truth is not None
    assert truth.per_cost
    assert not truth.pads


def test_the_latency_model_counts_work_and_keeps_the_formula_while_samples_expire():
    model = LatencyModel()
    given = batches(1, size=None)
    for moment, items, seconds, cost, longest in samples(TIMES["padded"], given):
        model.observe(moment / 50, "/m", items, seconds, cost, longest)
    now = len(given) / 50
    formula = model.formula("/m")
    assert formula is not None
    for costs in batches(2, 20):
        middle = model.middle(now, "/m", formula.of(len(costs), sum(costs), max(costs)))
        assert middle == pytest.approx(TIMES["padded"](costs), rel=0.1)
    largest = model.largest(now, "/m", 1, 0.25)
    bounds = [model.predict(now, "/m", largest + more) or 0.0 for more in (0, 1)]
    assert bounds[0] <= 0.25 < bounds[1], "by work, whatever the limit of items"
    assert model.predict(now + 2 * HORIZON, "/m", 1.0) is None
    kept = model.formula("/m")
    assert kept is not None
    assert kept.pads


def test_while_costs_differ_and_explain_nothing_a_batch_is_cut_by_them_now_and_then():
    """Less often the longer it shows nothing; never where costs are equal."""
    model = LatencyModel()
    for moment, items, seconds, cost, longest in samples(BY_NUMBER["number"], batches(1, size=None)):
        model.observe(moment / 50, "/m", items, seconds, cost, longest)
        model.observe(moment / 50, "/equal", items, seconds, 100 * items, 100)
    assert model.formula("/m") is None
    trials = [number for number in range(2000) if model.trial("/m") is not None]
    gaps = [later - earlier for earlier, later in itertools.pairwise(trials)]
    assert trials[0] == TRIAL_EVERY - 1
    assert sorted(gaps) == gaps
    assert gaps[-1] == TRIAL_SELDOM
    assert not any(model.trial("/equal") for _ in range(100))


def cached(sample: BatchSample) -> BatchSample:
    moment, items, _, cost, longest = sample
    return moment, items, 1e-5, cost, longest


def spaced(sample: BatchSample) -> BatchSample:
    """One client sends blanks, which cost the model nothing."""
    moment, items, seconds, cost, _ = sample
    return moment, items, seconds, cost + 10**7, 10**7


@pytest.mark.parametrize("change", [cached, spaced])
@pytest.mark.parametrize("every", [200, 10])
def test_answers_out_of_a_cache_and_costs_of_one_client_do_not_change_the_formula_of_others(
    change: Callable[[BatchSample], BatchSample], every: int
):
    given = batches(1, size=None)
    true = samples(TIMES["padded"], given)
    expected, current = choose(true, None), None
    for count in range(20, 201, 20):
        some = [change(each) if number % every == every - 1 else each for number, each in enumerate(true)]
        current = choose(some[:count], current)
    assert expected is not None
    assert current is not None
    for costs in batches(2, 50, None):
        args = len(costs), sum(costs), max(costs)
        assert current.of(*args) == pytest.approx(expected.of(*args), rel=0.1)


def test_items_that_cost_nothing_are_points_of_a_line_too():
    a, b = fit_line([(0.0, 0.0)] * 4 + [(x, x - 1.0) for x in (2.0, 4.0, 6.0, 8.0)])
    assert (a, b) == (0.0, pytest.approx(0.75, abs=0.25))


def test_a_formula_stays_while_most_batches_are_short_items_alone():
    """Grouping makes three of four batches alike; a line through these says nothing of the others."""
    alike = [[40] * 16] * 150
    others = [[2000] * (1 + number % 6) for number in range(40)] + [[40] * 15 + [2000]] * 10
    time = TIMES["padded"]
    samples_ = [(0.0, len(c), time(c), sum(c), max(c)) for c in (*alike, *others)]
    for before in (None, WorkFormula(0.0, 0.0, 0.004)):
        formula = choose(samples_, before)
        assert formula is not None
        assert set(formula.terms()) == {"padded"}


@pytest.mark.parametrize("stalls", [0.0, 0.1])
@pytest.mark.parametrize("claims", [None, 10**6], ids=["long texts", "claims"])
def test_a_text_that_the_model_cuts_off_counts_as_what_it_takes(claims: int | None, stalls: float):
    """Whether it is long, or its sender says so; the cap is near the model's, and what is shorter counts."""
    given = [[3 * cost for cost in costs] for costs in batches(3)]
    if claims:
        given = [[claims if not at % 20 else cost for at, cost in enumerate(costs)] for costs in batches(3)]
    alike = sorted(itertools.chain.from_iterable(given[:20]))
    given += [alike[at : at + 32] for at in range(0, 640, 32)]  # as trials are cut

    def time(costs: Sequence[int]) -> float:
        return TIMES["padded"]([min(cost, 300) for cost in costs])

    formula = choose(samples(time, given, stalls=stalls), None)
    assert formula is not None
    assert formula.cap == pytest.approx(300, rel=0.15)
    assert formula.of(8, 8 * 150, 150) == pytest.approx(formula.of(8, 10**7, 10**6) / 2, rel=0.15)
    assert formula.alone(2, 10**7, 10**6) == formula.alone(2, 2 * formula.cap, formula.cap)


def test_where_texts_are_cut_off_their_sum_does_not_count():
    """It does not say what counts of long ones: 31 of 10 and one of 10⁶ are 822, not 32 · 512."""
    draw = random.Random(1)
    given = [
        [10**5 if draw.random() < 0.05 else cost for cost in costs] for costs in batches(3, 200, size=None)
    ]
    formula = choose(samples(lambda c: TIMES["sum"]([min(cost, 512) for cost in c]), given), None)
    assert formula is not None
    assert formula.cap == pytest.approx(512, rel=0.25)
    assert formula.per_cost == 0.0
    one = WorkFormula(0.0, 0.0, 1.0, 0.0, 512.0)
    assert one.alone(32, 31 * 10 + 10**6, 10**6) == 822.0
    assert one.alone(2, 2 * 10**6, 10**6) == one.alone(2, 1024, 512) == one.of(2, 10**6, 10**6) == 1024.0


@pytest.mark.interpreted  # it counts the calls of a function
def test_a_look_tries_few_caps_however_far_costs_differ(monkeypatch: pytest.MonkeyPatch):
    """Each takes as long as a robust line; here times say nothing, so none of the lines is good."""
    draw = random.Random(1)
    some: list[BatchSample] = []
    for number in range(200):
        costs = [int(10 ** draw.uniform(0, 9)) for _ in range(draw.randint(1, 32))]
        some.append((float(number), len(costs), draw.lognormvariate(-4, 1), sum(costs), max(costs)))
    lines: list[int] = []

    def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
        lines.append(len(points))
        return fit_line(points)

    monkeypatch.setattr(cost_fit, "fit_line", fit)
    choose(some, None)
    assert 10 < len(lines) < 30


@pytest.mark.parametrize("time", TIMES.values(), ids=TIMES)
def test_without_such_texts_there_is_no_cap(time: Time):
    for seed, size in itertools.product(range(5), (None, 32)):
        formula = choose(samples(time, batches(seed, size=size), seed=seed, stalls=0.05), None)
        assert formula is None or formula.cap == float("inf")


def test_loads_are_in_items_of_the_usual_cost():
    """However they are batched; and a claim far beyond what was measured is not believed."""
    given = batches(1, size=None)
    formula = choose(samples(TIMES["sum"], given), None)
    assert formula is not None
    loads = [formula.load(1, cost, cost) for costs in given for cost in costs]
    assert sum(loads) == pytest.approx(len(loads), rel=0.01)
    assert formula.load(2, 1024, 512) == pytest.approx(2 * formula.load(1, 512, 512))
    assert formula.load(1, 10**9, 10**9) == pytest.approx(4 * formula.load(1, 512, 512), rel=0.01)
    assert formula.load(3, 0, 0) > 0.0  # a pod that has some is not idle


def test_the_model_says_what_batches_are_and_how_far_its_prediction_is_off():
    """Beside what it would be by the number of items; nothing where that decides."""
    model = LatencyModel()
    for moment, items, seconds, cost, longest in samples(TIMES["padded"], batches(1, size=None)):
        model.observe(moment / 50, "/m", items, seconds, cost, longest)
        model.observe(moment / 50, "/equal", items, seconds, 100 * items, 100)
    usual = model.batches("/m")
    assert usual is not None
    assert 1.5 * usual.error < 0.07 < usual.error_by_items
    assert usual.items == pytest.approx(16.5, rel=0.1)
    assert model.batches("/equal") is model.batches("/unknown") is None
    assert model.by_cost
    assert model.load("/equal", 3, 300, 100) == 3.0
    model.forget()
    assert not model.by_cost


def test_what_a_batch_took_beyond_what_its_items_claim():
    """A stall counts as a few of the largest batches, and absurd claims as twice what was done."""
    model = LatencyModel()
    assert model.beyond("/m", 4, 1.0, 400, 100) == 0.0
    for moment, items, seconds, cost, longest in samples(TIMES["sum"], batches(1, size=None)):
        model.observe(moment / 50, "/m", items, seconds, cost, longest)
    honest, lied = TIMES["sum"]([100] * 4), TIMES["sum"]([1000] * 4)
    formula = model.formula("/m")
    assert formula is not None
    more = formula.of(4, 4000, 1000) - formula.of(4, 400, 100)
    assert model.beyond("/m", 4, honest, 400, 100) == pytest.approx(0.0, abs=0.15 * more)
    assert model.beyond("/m", 4, lied, 400, 100) == pytest.approx(more, rel=0.15)
    assert model.beyond("/m", 4, 1e6, 400, 100) < 1e3
    done = formula.of(4, 400, 100)
    assert model.beyond("/m", 4, honest, 10**6, 10**6) == pytest.approx(-max(done, 4.0), rel=0.15)
