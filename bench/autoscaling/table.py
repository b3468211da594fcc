"""The results of `compare` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def render(document: Mapping[str, Any]) -> str:
    """Two tables: each peer's best setting at equal replica-seconds; all as they are documented to be set.

    Args:
        document: as `python -m bench.autoscaling --peers --results` writes it.
    """
    settings = list(document["settings"])
    peers = list(dict.fromkeys(key.split(", ")[0] for key in settings))
    heads = ["trace", "pod-seconds", "Penstock", *peers, "Penstock ÷ the best peer"]
    lines = [_row(heads), _row(["--"] * len(heads))]
    for name, trace in document["traces"].items():
        mine, best_peers = trace["ours"], [best(trace, peer) for peer in peers]
        lowest = min((misses for misses, _ in best_peers if misses is not None), default=None)
        lines.append(
            _row(
                [
                    name,
                    f"{mine['replica_seconds']:.0f}",
                    _percent(mine["misses"]),
                    *(
                        "-" if misses is None else f"{_percent(misses)} ({setting})"
                        for misses, setting in best_peers
                    ),
                    f"{mine['misses'] / lowest:.2f}" if lowest else "-",
                ]
            )
        )
    lines += ["", _row(["trace", "Penstock", *settings]), _row(["--"] * (len(settings) + 2))]
    for name, trace in document["traces"].items():
        runs = [trace["ours"], *(trace["peers"][key]["recommended"] for key in settings)]
        lines.append(
            _row([name, *(f"{_percent(run['misses'])}, {run['replica_seconds']:.0f}" for run in runs)])
        )
    return "\n".join(lines)


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


def _percent(misses: float) -> str:
    return f"{misses:.{1 if misses >= 0.1 else 2}f} %"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
