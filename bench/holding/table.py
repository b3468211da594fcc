"""The figures of holding a slot as a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.holding.cases import (
    BURSTS,
    CALLERS,
    LEAST_P99,
    LOADS,
    MODELS_MS,
    OVERLOADS,
    PAUSES,
    SIZE,
    THINKERS,
)
from bench.holding.simulator import EAGER, HOLD, ORACLE

ABOUT = """\
# Holding a free slot, simulated

Written by `python -m bench.holding`: the sidecar's own cutter on a simulated clock, with holding and without,
{seeds} seeds of each case. A model takes 1, 10 or 100 ms and a hundredth of that for each item, and a call
0.15 ms more; batches hold {size} at most. Ratios are with holding against without: the median, and the least
and the greatest of the seeds where these differ by more than 0.005.
"""
AGAIN = """
## Callers who ask again 0.1 ms + 0.08 ms (exponential) after their answer

The oracle decides by our rule and knows when each caller comes back. The last column is the p99 of the best
of several oracles, which count a caller that misses a batch 2, 4 or 8 times (ours: 8).
"""
THINK = """
## Callers who think (exponential, in the mean that many batches' times)

The greatest differences of all numbers of callers ({callers}) and seeds.
"""
OPEN = """
## Independent callers at {loads} % of capacity

The greatest differences of all loads and seeds. Short bursts are of 8 requests within half of the model's
time, long ones of 16 within five times that time.
"""
OVERLOAD = """
## Overload: independent callers, two full batches and 10 (100, 1000) ms as the objective

Nothing is refused on arrival here: a request that is too late is dropped when a batch is cut.
"""


def _ratio(values: list[float]) -> str:
    """A ratio with its spread."""
    median, least, greatest = values
    ends = f"{least:.2f}", f"{greatest:.2f}"
    spread = f" ({' to '.join(ends)})" if ends[0] != ends[1] and greatest - least > 0.005 else ""
    return f"{median:.2f}{spread}"


def _rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [head, ["--"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _again(cases: dict[str, Any]) -> Iterable[list[str]]:
    for model_ms in MODELS_MS:
        for callers in CALLERS:
            case = cases[f"again/{model_ms}/{callers}"]
            figures, ratios = case["figures"], case["ratios"]
            yield [
                f"{model_ms} ms",
                f"{callers}",
                f"{figures[EAGER]['rate']:.0f} → {figures[HOLD]['rate']:.0f}",
                *(_ratio(ratios[name]) for name in ("rate", "p50", "p99")),
                f"{figures[HOLD]['per_call'] / min(callers, SIZE):.2f}",
                f"{figures[HOLD]['rate'] / figures[ORACLE]['rate']:.3f}" if ORACLE in figures else "-",
                f"{figures[LEAST_P99]['p99'] / figures[EAGER]['p99']:.2f}" if LEAST_P99 in figures else "-",
            ]


def _worst(cases: dict[str, Any], kinds: Iterable[tuple[str, Iterable[str]]]) -> Iterable[list[str]]:
    for name, of in kinds:
        chosen = [cases[each] for each in of]
        yield [
            name,
            f"{min(case['ratios']['rate'][1] for case in chosen):.3f}",
            *(f"{max(case['ratios'][word][2] for case in chosen):.3f}" for word in ("p50", "p99", "calls")),
            f"{100 * max(case['figures'][HOLD]['held'] for case in chosen):.2f} %",
        ]


def page(document: dict[str, Any]) -> str:
    """All tables.

    Args:
        document: as `__main__` writes it.
    """
    cases = document["cases"]
    worst = [
        "least rate",
        "greatest p50",
        "greatest p99",
        "most calls a request",
        "batches held, median of the seeds",
    ]
    think = [
        (f"{pause:g}, {model_ms} ms", [f"think {pause:g}/{model_ms}/{callers}" for callers in THINKERS])
        for pause in PAUSES
        for model_ms in MODELS_MS
    ]
    independent = [
        (f"{name}, {model_ms} ms", [f"{name}/{model_ms}/{load}" for load in LOADS])
        for name in BURSTS
        for model_ms in MODELS_MS
    ]
    overload = [
        [
            f"{load} %, {model_ms} ms",
            *(
                f"{cases[f'overload/{model_ms}/{load}']['figures'][way]['share']:.3f}"
                for way in (EAGER, HOLD)
            ),
        ]
        for load in OVERLOADS
        for model_ms in MODELS_MS
    ]
    return "\n".join(
        [
            ABOUT.format(seeds=document["seeds"], size=SIZE) + AGAIN,
            *_rows(
                [
                    "model",
                    "callers",
                    "answers a second, without → with",
                    "rate",
                    "p50",
                    "p99",
                    "items a call, of the callers",
                    "rate, of the oracle's",
                    "least p99 of an oracle",
                ],
                _again(cases),
            ),
            THINK.format(callers=", ".join(str(callers) for callers in THINKERS)),
            *_rows(["they think, model", *worst], _worst(cases, think)),
            OPEN.format(loads=", ".join(str(load) for load in LOADS)),
            *_rows(["arrivals, model", *worst], _worst(cases, independent)),
            OVERLOAD,
            *_rows(["load, model", "answers in time, of capacity, without", "with"], overload),
            "",
        ]
    )
