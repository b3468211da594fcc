"""The results of `compare` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

_AT_EQUAL_COST = """\
## At equal cost

For each trace the target of each setting was searched, with hindsight, until the trace cost as many
pod-seconds as with Penstock (within 5 %). The best setting of each peer counts, which is another one on
another trace. Means of all seeds for Penstock and the best peer, the first seed for the others."""
_AS_DOCUMENTED = """\
## As their documentation leads to

Misses, and pods times seconds, of the first seed."""
_ONE_TARGET = """\
## With one target for all traces

For each setting the target with which all traces together cost as many pod-seconds as with Penstock
(within 5 %), in brackets; the first seed."""


def page(document: Mapping[str, Any]) -> str:
    """`render` as a page of bench/results.

    Args:
        document: as for `render`.
    """
    head = "# Autoscalers beside each other, simulated"
    by = "Written by `python -m bench.autoscaling --peers`; read with docs/autoscaling.md."
    return f"{head}\n\n{by}\n\n{render(document)}\n"


def render(document: Mapping[str, Any]) -> str:
    """Two tables: each peer's best setting at equal replica-seconds; all as they are documented to be set.

    And a third one, of one target for all traces, where the document has it.

    Args:
        document: as `python -m bench.autoscaling --peers --results` writes it.
    """
    settings = list(document["settings"])
    peers = list(dict.fromkeys(key.split(", ")[0] for key in settings))
    oracles = list(next(iter(document["traces"].values()))["oracles"])
    heads = ["trace", "pod-seconds", "Penstock", *peers, "Penstock ÷ the best peer"]
    heads += [f"an oracle that {oracle}" for oracle in oracles]
    lines = [_AT_EQUAL_COST, "", _row(heads), _row(["--"] * len(heads))]
    for name, trace in document["traces"].items():
        costs = [run["replica_seconds"] for run in (trace["ours"], *trace["again"]["ours"])]
        mine, best_peers = ours(trace), [best_of_all_seeds(trace, peer) for peer in peers]
        lowest = min((misses for misses, _ in best_peers if misses is not None), default=None)
        lines.append(
            _row(
                [
                    name,
                    f"{mean(costs):.0f}",
                    _percent(mine),
                    *(
                        "-" if misses is None else f"{_percent(misses)} ({setting})"
                        for misses, setting in best_peers
                    ),
                    f"{mine / lowest:.2f}" if lowest else "-",
                    *(
                        "-" if misses is None else _percent(misses)
                        for misses in (trace["oracles"][oracle] for oracle in oracles)
                    ),
                ]
            )
        )
    lines += ["", _AS_DOCUMENTED, "", _row(["trace", "Penstock", *settings])]
    lines.append(_row(["--"] * (len(settings) + 2)))
    for name, trace in document["traces"].items():
        runs = [trace["ours"], *(trace["peers"][key]["recommended"] for key in settings)]
        lines.append(_row([name, *(_run(run) for run in runs)]))
    if "one target" in document:
        lines += ["", _ONE_TARGET, "", *_with_one_target(document)]
    return "\n".join(lines)


def _with_one_target(document: Mapping[str, Any]) -> list[str]:
    fixed = document["one target"]
    heads = [f"{key} ({figures['target']:.3g})" for key, figures in fixed.items()]
    lines = [_row(["trace", "Penstock", *heads]), _row(["--"] * (len(heads) + 2))]
    costs = [0.0] * (1 + len(fixed))
    for name in next(iter(fixed.values()))["traces"]:
        runs = [document["traces"][name]["ours"], *(figures["traces"][name] for figures in fixed.values())]
        costs = [cost + run["replica_seconds"] for cost, run in zip(costs, runs, strict=True)]
        lines.append(_row([name, *(_run(run) for run in runs)]))
    return [*lines, _row(["pod-seconds of all", *(f"{cost:.0f}" for cost in costs)])]


def best(trace: Mapping[str, Any], peer: str) -> tuple[float | None, str]:
    """The fewest misses that a peer has for what ours costs, and with which setting.

    Args:
        trace: its figures.
        peer: its name.
    """
    best_peers = [
        (compared["misses_at_equal"], key.partition(", ")[2])
        for key, compared in trace["peers"].items()
        if key.startswith(f"{peer}, ") and compared["misses_at_equal"] is not None
    ]
    return min(best_peers, default=(None, ""))


def best_of_all(trace: Mapping[str, Any]) -> str | None:
    """The setting with the fewest misses for what ours costs; None where no peer can spend as much.

    Args:
        trace: its figures.
    """
    spent = {key: compared["misses_at_equal"] for key, compared in trace["peers"].items()}
    return min((key for key in spent if spent[key] is not None), key=spent.__getitem__, default=None)


def ours(trace: Mapping[str, Any]) -> float:
    """Percent of the items that ours misses, the mean of all seeds.

    Args:
        trace: its figures.
    """
    misses: list[float] = [run["misses"] for run in (trace["ours"], *trace["again"]["ours"])]
    return mean(misses)


def best_of_all_seeds(trace: Mapping[str, Any], peer: str) -> tuple[float | None, str]:
    """As `best`, with the mean of all seeds at which that setting can spend what ours costs.

    Args:
        trace: its figures.
        peer: its name.
    """
    misses, setting = best(trace, peer)
    if misses is None:
        return None, setting
    others = [other for other in trace["again"].get(peer, []) if other is not None]
    return mean([misses, *others]), setting


def _run(run: Mapping[str, Any]) -> str:
    return f"{_percent(run['misses'])}, {run['replica_seconds']:.0f}"


def _percent(misses: float) -> str:
    return f"{misses:.{1 if misses >= 0.1 else 2}f} %"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
