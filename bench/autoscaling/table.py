"""The results of `compare` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def render(document: Mapping[str, Any]) -> str:
    """Two tables: at equal replica-seconds, and as the peers are documented to be set.

    Args:
        document: as `python -m bench.autoscaling --peers --results` writes it.
    """
    settings = list(document["settings"])
    heads = ["trace", "replica-seconds", "Penstock", *settings, "÷ best"]
    lines = [_row(heads), _row(["--"] * len(heads))]
    for name, trace in document["traces"].items():
        mine = trace["ours"]
        misses = {key: trace["peers"][key]["misses_at_equal"] for key in settings}
        lowest = min((value for value in misses.values() if value is not None), default=None)
        lines.append(
            _row(
                [
                    name,
                    f"{mine['replica_seconds']:.0f}",
                    f"{mine['misses']:.1f}",
                    *(_percent(misses[key]) for key in settings),
                    f"{mine['misses'] / lowest:.2f}" if lowest else "-",
                ]
            )
        )
    lines += ["", _row(["trace", "Penstock", *settings]), _row(["--"] * (len(settings) + 2))]
    for name, trace in document["traces"].items():
        runs = [trace["ours"], *(trace["peers"][key]["recommended"] for key in settings)]
        lines.append(
            _row([name, *(f"{run['misses']:.1f} % at {run['replica_seconds']:.0f}" for run in runs)])
        )
    return "\n".join(lines)


def _percent(misses: float | None) -> str:
    return "-" if misses is None else f"{misses:.1f}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
