"""Draws the documentation's pictures: `python -m bench.plots RESULTS [FOLDER [png]]`.

Runs in the plots' own environment (matplotlib); does not import our packages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
# Okabe and Ito's colours, which the colour-blind can distinguish; the sidecar's is the strongest.
STYLES: dict[str, dict[str, Any]] = {
    "sidecar": {
        "label": "Penstock's sidecar",
        "color": "#0072B2",
        "marker": "o",
        "linewidth": 2.4,
        "zorder": 5,
    },
    "model": {"label": "model alone, full batches", "color": "#555555", "marker": "s", "linestyle": "--"},
    "other": {"label": "other sidecar", "color": "#000000", "marker": "x"},
    "kserve-agent": {"label": "KServe's agent", "color": "#882255", "marker": "h"},
    "mosec": {"label": "Mosec", "color": "#D55E00", "marker": "D"},
    "mlserver": {"label": "MLServer", "color": "#009E73", "marker": "^"},
    "litserve": {"label": "LitServe", "color": "#CC79A7", "marker": "v"},
    "bentoml": {"label": "BentoML", "color": "#E69F00", "marker": "P"},
    "ray": {"label": "Ray Serve", "color": "#56B4E9", "marker": "*"},
}


class Results:
    """A results document.

    Args:
        document: as `make bench` writes it.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def series(self, begin: str, end: str) -> tuple[list[float], list[float], list[list[float]]]:
        """The figures between two parts of a key: numbers, medians, and how far min and max are from them."""
        points = []
        for key, figure in self.document["figures"].items():
            if key.startswith(begin) and key.endswith(end):
                middle = key[len(begin) : len(key) - len(end)]
                try:
                    points.append((float(middle), figure))
                except ValueError:
                    continue
        points.sort(key=lambda point: point[0])
        medians = [figure["median"] for _, figure in points]
        below = [figure["median"] - figure["min"] for _, figure in points]
        above = [figure["max"] - figure["median"] for _, figure in points]
        return [at for at, _ in points], medians, [below, above]


def throughput(results: Results, axes: Any) -> bool:
    """Throughput by connections."""
    any_drawn = False
    for subject, style in STYLES.items():
        at, medians, spread = results.series(f"throughput/{subject}/", "/rate")
        if at:
            axes.errorbar(at, medians, yerr=spread, capsize=3, **style)
            any_drawn = True
    at, medians, spread = results.series("hold/off/", "/per_s")
    if at:
        label = "Penstock's sidecar, no slot held"
        axes.errorbar(at, medians, yerr=spread, label=label, color="#0072B2", linestyle=":", linewidth=1.2)
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.set_xlabel("connections, each with one request at a time")
    axes.set_ylabel("answers a second")
    axes.set_title("Throughput: model of 1 ms + 0.01 ms an item, batches ≤ 32, one core for both")
    axes.legend(loc="upper left", ncols=2, fontsize=9)
    axes.set_ylim(top=axes.get_ylim()[1] * 6)
    return any_drawn


def goodput(results: Results, axes: Any) -> bool:
    """Goodput by offered load, with a model of 13 ms."""
    return _goodput(results, axes, "goodput", "slow_model_ms")


def long_goodput(results: Results, axes: Any) -> bool:
    """The same with a model of 50 ms."""
    return _goodput(results, axes, "long_goodput", "long_model_ms")


def _goodput(results: Results, axes: Any, part: str, model: str) -> bool:
    if model not in results.document["settings"]:
        return False
    a, b = results.document["settings"][model]
    batch = results.document["settings"]["max_batch"]
    full = a + b * batch
    capacity = batch / full * 1000
    any_drawn = False
    for subject, style in STYLES.items():
        at, medians, spread = results.series(f"{part}/{subject}/", "/rate")
        if at:
            scaled = [[value / capacity * 100 for value in side] for side in spread]
            axes.errorbar(at, [m / capacity * 100 for m in medians], yerr=scaled, capsize=3, **style)
            any_drawn = True
    axes.plot([0, 100, 160], [0, 100, 100], color="#999999", linestyle=":", label="all that is possible")
    axes.set_xlabel("offered load, % of the model's capacity")
    axes.set_ylabel("answers in time, % of capacity")
    axes.set_title(
        f"Answers within {2 * full + 50:g} ms, a model of {full:g} ms for a batch of {batch}, open loop"
    )
    axes.set_xlim(0, 160)
    axes.set_ylim(0, 140)
    axes.legend(loc="upper left", ncols=2, fontsize=9)
    return any_drawn


def latency(results: Results, axes: Any) -> bool:
    """Latency at half load."""
    any_drawn = False
    looks = (
        ("sidecar", "through the sidecar", {"color": "#0072B2", "linewidth": 2.4}),
        ("ideal", "a batcher that costs nothing (simulated)", {"color": "#555555", "linestyle": "--"}),
    )
    for subject, label, look in looks:
        percents, medians, _ = results.series(f"latency/{subject}/half/q", "")
        if percents:
            axes.plot(medians, percents, label=label, **look)
            any_drawn = True
    if not any_drawn:
        return False
    axes.set_xlabel("latency from the intended send time, ms")
    axes.set_ylabel("% of requests answered by then")
    axes.set_title("Latency at half of the capacity, Poisson arrivals")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 101)
    axes.legend(loc="lower right")
    return True


def size(results: Results, axes: Any) -> bool:
    """The maxBatchSize knob."""
    at, rates, spread = results.series("size/", "/256/rate")
    _, tails, tail_spread = results.series("size/", "/256/p99")
    if not at:
        return False
    axes.errorbar(
        at, rates, yerr=spread, capsize=3, color="#0072B2", marker="o", label="answers a second (left)"
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [f"{value:g}" for value in at])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("maxBatchSize")
    axes.set_ylabel("answers a second")
    right = axes.twinx()
    right.errorbar(
        at, tails, yerr=tail_spread, capsize=3, color="#D55E00", marker="s", label="p99 latency (right)"
    )
    right.set_ylabel("p99 latency, ms")
    right.set_yscale("log")
    right.grid(visible=False)
    handles, labels = axes.get_legend_handles_labels()
    more, more_labels = right.get_legend_handles_labels()
    axes.legend(
        handles + more, labels + more_labels, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2
    )
    axes.set_title("maxBatchSize at 256 connections: model of 1 ms + 0.01 ms an item")
    return True


def wait(results: Results, axes: Any) -> bool:
    """The batchWaitTimeout knob."""
    any_drawn = False
    waits = (0, 1, 5, 20)
    for offset, connections, color in ((-0.2, 16, "#56B4E9"), (0.2, 64, "#0072B2")):
        at, rates, spread = results.series("wait/", f"/{connections}/rate")
        if at:
            places = [waits.index(int(value)) + offset for value in at]
            axes.bar(
                places, rates, 0.38, yerr=spread, capsize=3, color=color, label=f"{connections} connections"
            )
            any_drawn = True
    axes.set_xticks(range(len(waits)), [f"{value} ms" for value in waits])
    axes.set_xlabel("batchWaitTimeout")
    axes.set_ylabel("answers a second")
    axes.set_title("Waiting for fuller batches: model of 1 ms + 0.01 ms an item, batches ≤ 32")
    axes.legend(loc="upper right")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.15)
    return any_drawn


def control_growth(results: Results, axes: Any) -> bool:
    """What an object costs the operator, by how many there are."""
    any_drawn = False
    for name, label, color, marker in (
        ("a change, ms", "a changed endpoint, until all that follows is written", "#0072B2", "o"),
        ("a change, Python calls", "the same in Python calls", "#56B4E9", "*"),
        ("cold, ms an object", "the objects of a resource, when the operator makes all", "#D55E00", "s"),
        ("slices, ms an endpoint", "the EndpointSlice of an endpoint", "#009E73", "^"),
        ("a change, bytes to a router", "bytes to a shared router for a changed endpoint", "#555555", "x"),
    ):
        at, ratios, _ = results.series("growth/", f"/{name}")
        if at:
            axes.plot(at, ratios, label=label, color=color, marker=marker)
            any_drawn = True
    axes.set_ylim(0, 2)
    axes.set_xlabel("backends, each with two endpoints")
    axes.set_ylabel("CPU, or bytes: times that among the fewest")
    axes.set_title("What one object costs the operator, by how many there are")
    axes.legend(loc="lower left")
    return any_drawn


DRAWN: dict[str, Callable[[Results, Any], bool]] = {
    "throughput": throughput,
    "goodput": goodput,
    "goodput-long": long_goodput,
    "latency": latency,
    "max-batch-size": size,
    "batch-wait": wait,
    "control-growth": control_growth,
}


def main() -> None:
    """Draw every picture that the results have figures for."""
    results = Results(json.loads(Path(sys.argv[1]).read_text()))
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update({"axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "penstock", "font.size": 10})
    for name, draw in DRAWN.items():
        figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
        axes.set_axisbelow(True)
        if draw(results, axes):
            for kind in ("svg", "png")[: 2 if len(sys.argv) > 3 else 1]:
                meta = {"Date": None} if kind == "svg" else {}
                figure.savefig(folder / f"{name}.{kind}", dpi=110, metadata=meta)
        plt.close(figure)


if __name__ == "__main__":
    main()
