"""The cases: callers who ask again at once, who think, who come whenever they like.

Each is simulated with holding and without, with the same seeds; those who ask again at once also by oracles.
Durations are in batches' times, so that models of all speeds answer as many.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping

from bench.holding.simulator import EAGER, HOLD, ORACLE, SOON, Case, Result, poisson, run, thinking
from penstock_sidecar.estimators.hold_policy import WEIGHT

MODELS_MS = (1, 10, 100)
CALLERS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 256)
THINKERS = (2, 4, 8, 16, 32, 64)
PAUSES = (0.5, 1.0, 3.0)
"""Of a batch's time, in the mean."""
LOADS = (10, 30, 50, 70, 90, 95)
OVERLOADS = (110, 150)
BURSTS: Mapping[str, tuple[int, float]] = {
    "poisson": (1, 0.0),
    "short bursts": (8, 0.5),
    "long bursts": (16, 5.0),
}
"""Requests of a burst, and within how many milliseconds of the fastest model they come."""
SIZE = 32
BESIDE = 0.15e-3
ANSWERS = 5_000
"""About as many a run."""
WEIGHTS = (2.0, 4.0, WEIGHT)
"""Of the oracles that know each return; the last is ours."""
LEAST_P99 = "oracle of the least p99"

RATIOS = ("rate", "p50", "p99", "calls", "share")

Figures = dict[str, float]
Row = dict[str, Figures]
"""Figures by policy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A case of the comparison.

    Args:
        name: `kind/milliseconds of the model/what`.
        make: of a seed.
        oracle: whether one is asked, too.
    """

    name: str
    make: Callable[[int], Case]
    oracle: bool = False


def batch(model_ms: int, items: int) -> float:
    """Seconds that a batch takes."""
    return model_ms * (1e-3 + 1e-5 * items) + BESIDE


def capacity(model_ms: int) -> float:
    """Answers a second in full batches."""
    return SIZE / batch(model_ms, SIZE)


def _closed(model_ms: int, callers: int, pause: float = 0.0) -> Callable[[int], Case]:
    cycle = batch(model_ms, min(callers, SIZE)) * max(1.0, callers / SIZE)
    seconds = max(200, ANSWERS // callers) * (cycle * (1.0 + pause) + 0.3e-3)
    think = thinking(pause * batch(model_ms, 1)) if pause else SOON

    def make(seed: int) -> Case:
        return Case(
            base=model_ms * 1e-3,
            item=model_ms * 1e-5,
            beside=BESIDE,
            callers=callers,
            think=think,
            seconds=seconds,
            seed=seed,
        )

    return make


def _open(
    model_ms: int, load: int, burst: int, spread_ms: float, *, objective: bool = False
) -> Callable[[int], Case]:
    rate = capacity(model_ms) * load / 100
    seconds = ANSWERS / rate
    # NB: as in `bench.frame`: two full batches, and 50 ms before a model of 5.
    timeout = 2 * batch(model_ms, SIZE) + 10e-3 * model_ms

    def make(seed: int) -> Case:
        return Case(
            base=model_ms * 1e-3,
            item=model_ms * 1e-5,
            beside=BESIDE,
            arrivals=poisson(rate, seconds, burst=burst, spread=spread_ms * model_ms / 1000, seed=seed),
            seconds=seconds,
            timeout=timeout if objective else 1000.0 * model_ms,
            batching={"latency_objective_ms": timeout * 1000} if objective else {},
            seed=seed,
        )

    return make


def cases() -> Iterator[Named]:
    """All of them."""
    for model_ms in MODELS_MS:
        for callers in CALLERS:
            yield Named(f"again/{model_ms}/{callers}", _closed(model_ms, callers), oracle=callers <= SIZE)
        for pause in PAUSES:
            for callers in THINKERS:
                yield Named(f"think {pause:g}/{model_ms}/{callers}", _closed(model_ms, callers, pause))
        for name, (burst, spread_ms) in BURSTS.items():
            for load in LOADS:
                yield Named(f"{name}/{model_ms}/{load}", _open(model_ms, load, burst, spread_ms))
        for load in OVERLOADS:
            yield Named(f"overload/{model_ms}/{load}", _open(model_ms, load, 1, 0.0, objective=True))


def figures(case: Case, result: Result) -> Figures:
    """What is compared of a run; times in milliseconds."""
    times = result.all
    if not times:
        return {}
    in_time = sum(each <= case.timeout for each in times)
    return {
        "rate": len(times) / result.seconds,
        "share": in_time / result.seconds / (SIZE / (case.base + SIZE * case.item + case.beside)),
        "p50": times[len(times) // 2] * 1000,
        "p99": times[int(0.99 * len(times))] * 1000,
        "calls": result.calls / len(times),
        "per_call": result.per_call,
        "held": result.counts.held_batches / max(1, result.counts.batches),
    }


def simulate(named: Named, seed: int) -> Row:
    """One case with one seed, by all policies."""
    case = named.make(seed)
    row = {policy: figures(case, run(case, policy)) for policy in (EAGER, HOLD)}
    if named.oracle:
        oracles = [figures(case, run(case, ORACLE, weight=weight)) for weight in WEIGHTS]
        row[ORACLE] = oracles[-1]
        row[LEAST_P99] = min(oracles, key=lambda found: found["p99"])
    return row


def ratio(rows: list[Row], name: str, policy: str = HOLD, against: str = EAGER) -> tuple[float, float, float]:
    """A figure of one policy against another's: the median over the seeds, the least and the greatest."""
    each = [row[policy][name] / row[against][name] for row in rows]
    return statistics.median(each), min(each), max(each)
