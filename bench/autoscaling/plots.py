"""Draws the pictures of docs/autoscaling.md: `python -m bench.autoscaling.plots RESULTS [FOLDER [png]]`.

Runs in the plots' own environment (matplotlib); does not import our packages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
# Okabe and Ito's colours, which the colour-blind can distinguish; ours is the strongest.
OURS: dict[str, Any] = {"color": "#0072B2", "label": "Penstock"}
PEERS: dict[str, dict[str, Any]] = {
    "Knative": {"color": "#D55E00", "label": "Knative"},
    "HPA": {"color": "#009E73", "label": "HPA"},
    "Ray Serve": {"color": "#CC79A7", "label": "Ray Serve"},
}
SHOWN = ("step", "sine", "flash crowd", "bursts")
MARGIN, WAIT = 1.05, 1.5
"""As the operator has them: `penstock_operator.autoscaling.capacity`."""


def capacity(model: dict[str, float]) -> Any:
    """What one pod can do: the service curve, the objective and the largest batch that keeps it."""
    sizes = range(1, int(model["max_batch_size"]) + 1)
    seconds = [MARGIN * (model["a"] + model["b"] * size) for size in sizes]
    largest = max(
        size for size, batch in zip(sizes, seconds, strict=True) if WAIT * batch <= model["objective"]
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    left.plot(sizes, seconds, color="#555555", label="a batch of W items, L(W)")
    left.plot(
        sizes, [WAIT * batch for batch in seconds], **{**OURS, "label": "from arrival to answer, 1.5 · L(W)"}
    )
    left.axhline(model["objective"], color="#D55E00", linestyle="--", label="latencyObjective")
    left.set_ylabel("seconds")
    left.set_ylim(bottom=0)
    rates = [size / batch for size, batch in zip(sizes, seconds, strict=True)]
    right.plot(sizes, rates, color="#555555", label="a pod with one slot, W / L(W)")
    right.plot(
        [largest], [rates[largest - 1]], "o", color=OURS["color"], label=f"μ* = {rates[largest - 1]:.0f}/s"
    )
    right.set_ylabel("items a second")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.axvline(largest, color=OURS["color"], linestyle=":", label=f"W* = {largest}")
        axes.set_xlabel("W, items in a batch")
        axes.legend(fontsize=8.5, loc="lower right")
    figure.suptitle(
        "What one pod can do: batches of 0.1 s + 0.02 s an item, an objective of 1 s", fontsize=11
    )
    return figure


def _best(trace: dict[str, Any], peer: str) -> dict[str, Any] | None:
    """Of a peer's settings, the one with the fewest misses at the cost of ours."""
    settings = [
        compared
        for key, compared in trace["peers"].items()
        if key.startswith(f"{peer},") and compared["misses_at_equal"] is not None
    ]
    return min(settings, key=lambda compared: compared["misses_at_equal"], default=None)


def replicas(traces: dict[str, Any]) -> Any:
    """The replicas over time, of ours and of each peer's best setting."""
    figure, places = plt.subplots(2, 2, figsize=(9, 6.2), layout="constrained")
    for axes, name in zip(places.flat, SHOWN, strict=True):
        trace = traces[name]
        at = [place * trace["every"] / 60 for place in range(len(trace["load"]))]
        axes.fill_between(at, trace["load"], color="#DDDDDD", label="arrivals, in pods' worth")
        end = at[-1]
        for look, run in (
            *((PEERS[peer], (_best(trace, peer) or {}).get("equal")) for peer in PEERS),
            (OURS | {"linewidth": 2.2}, trace["ours"]),
        ):
            if run is not None:
                steps = [(when / 60, count) for when, count in run["replicas"]]
                steps.append((end, steps[-1][1]))
                axes.step([when for when, _ in steps], [count for _, count in steps], where="post", **look)
        axes.set_title(name, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, end)
    for axes in places[1]:
        axes.set_xlabel("minutes")
    for axes in places[:, 0]:
        axes.set_ylabel("replicas asked for")
    handles, labels = places[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)
    figure.suptitle(
        "Replicas over time, each peer at its best setting for as many replica-seconds", fontsize=11
    )
    return figure


def _mean_misses(trace: dict[str, Any], peer: str) -> float:
    """Of all seeds; of ours where `peer` is empty."""
    if not peer:
        misses: list[float] = [run["misses"] for run in (trace["ours"], *trace["again"]["ours"])]
    elif best := _best(trace, peer):
        again = [other for other in trace["again"].get(peer, []) if other is not None]
        misses = [best["misses_at_equal"], *again]
    else:
        misses = [0.0]
    return mean(misses)


def misses(traces: dict[str, Any]) -> Any:
    """Misses by trace, of ours and of each peer's best setting at the same cost."""
    figure, axes = plt.subplots(figsize=(9, 4.4), layout="constrained")
    looks = {"": OURS, **PEERS}
    for offset, (peer, look) in enumerate(looks.items()):
        heights = [_mean_misses(trace, peer) for trace in traces.values()]
        places = [place + (offset - 1.5) * 0.2 for place in range(len(traces))]
        bars = axes.bar(places, heights, 0.2, **look)
        labels = [f"{height:.{1 if height >= 0.1 else 2}f}" for height in heights]
        axes.bar_label(bars, labels, fontsize=6.5, rotation=90, padding=2)
    axes.set_xticks(
        range(len(traces)), [name.replace(" in an hour", "") for name in traces], rotation=18, ha="right"
    )
    axes.set_ylabel("items that missed the objective, %")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.12)
    axes.set_title(
        "Misses at equal replica-seconds, each peer at its best setting and target for the trace", fontsize=11
    )
    axes.grid(visible=False, axis="x")
    axes.legend(ncols=4)
    return figure


def main() -> None:
    """Draw all of them."""
    document = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(
        {
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.3,
            "svg.hashsalt": "penstock",
            "font.size": 10,
        }
    )
    drawn = {
        "pod-capacity": capacity(document["model"]),
        "scaling-misses": misses(document["traces"]),
    }
    if set(SHOWN) <= set(document["traces"]):
        drawn["scaling-replicas"] = replicas(document["traces"])
    for name, figure in drawn.items():
        for kind in ("svg", "png")[: 2 if len(sys.argv) > 3 else 1]:
            meta = {"Date": None} if kind == "svg" else {}
            figure.savefig(folder / f"{name}.{kind}", dpi=110, metadata=meta)


if __name__ == "__main__":
    main()
