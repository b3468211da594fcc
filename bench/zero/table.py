"""The figures of `bench.zero`, and the bounds that they are held against."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from bench.ledger import quantile

SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
MEASURES = ("to_scale_ms", "ready_to_sent_ms", "to_ready_ms", "answered_ms", "late_ms")
BOUNDS = (
    ("to_scale_ms", 300.0, "first held request → `/scale` written, p99"),
    ("ready_to_sent_ms", 300.0, "pod ready → first held request sent, p99"),
)
OF_KEDA = 0.25
"""Penstock may take so much of the time that KEDA takes until it has written `/scale`."""


def figures(cycles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a run found.

    Args:
        cycles: as `cycles.Cycle` has them.
    """
    outcomes: collections.Counter[str] = collections.Counter()
    for cycle in cycles:
        outcomes.update(cycle["outcomes"])
    return {
        "cycles": len(cycles),
        "requests": sum(cycle["burst"] for cycle in cycles),
        "outcomes": dict(outcomes),
        "not_executed": sum(cycle["burst"] - cycle["executed"] for cycle in cycles),
        "executed_twice": sum(cycle["twice"] for cycle in cycles),
        "most_replicas": max((cycle["replicas"] for cycle in cycles), default=0),
        **{name: _shares([cycle[name] for cycle in cycles]) for name in MEASURES},
        "to_scale_ms_by_burst": {
            str(burst): _shares([cycle["to_scale_ms"] for cycle in cycles if cycle["burst"] == burst])
            for burst in sorted({cycle["burst"] for cycle in cycles})
        },
    }


def _shares(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {name: quantile(ordered, share) for name, share in SHARES.items()}


def wrong(found: Mapping[str, Any]) -> list[str]:
    """What must never be, in words: requests without their own answer, or in no batch, or in two.

    Args:
        found: as `figures` returns it.
    """
    bad = {word: count for word, count in found["outcomes"].items() if word != "ok"}
    problems = [f"{count} requests: {word}" for word, count in sorted(bad.items())]
    if found["not_executed"]:
        problems.append(f"{found['not_executed']} requests were in no batch")
    if found["executed_twice"]:
        problems.append(f"{found['executed_twice']} requests came twice")
    return problems


def verdicts(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each bound, what was found, and whether that is within it.

    Args:
        found: as `figures` returns it.
    """
    return [
        {
            "what": what,
            "bound_ms": bound,
            "found_ms": found[name]["p99"],
            "reached": found[name]["p99"] <= bound,
        }
        for name, bound, what in BOUNDS
    ]


def beside_keda(found: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Ours held against a share of KEDA's; both of one machine, or it says nothing.

    Args:
        found: with KEDA, as `figures` returns it.
        ours: without it.
    """
    name, _, what = BOUNDS[0]
    bound, reached = OF_KEDA * found[name]["p99"], ours[name]["p99"]
    return {
        "what": f"{what}: Penstock's, at most {OF_KEDA:g} of KEDA's {found[name]['p99']:.0f} ms",
        "bound_ms": bound,
        "found_ms": reached,
        "reached": reached <= bound,
    }


def page(document: Mapping[str, Any]) -> str:
    """The results as Markdown.

    Args:
        document: as written to `zero.json`.
    """
    found = document["figures"]
    lines = [
        f"{found['cycles']} cycles, {found['requests']} requests: {'; '.join(wrong(found)) or 'none lost'}",
        "",
        "| | p50 ms | p99 ms | most ms |",
        "| -- | -- | -- | -- |",
    ]
    lines += [
        f"| {name} | {' | '.join(f'{found[name][share]:.0f}' for share in SHARES)} |" for name in MEASURES
    ]
    if document["verdicts"]:
        lines += ["", "| | bound, ms | found, ms | |", "| -- | -- | -- | -- |"]
    lines += [
        f"| {each['what']} | {each['bound_ms']:.0f} | {each['found_ms']:.0f} | "
        f"{'reached' if each['reached'] else 'missed'} |"
        for each in document["verdicts"]
    ]
    return "\n".join(lines)
