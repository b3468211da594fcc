"""The control plane's figures as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TARGETS = (
    ("cold/ratio", 2.5, "cold start ÷ a bare loop of the same applies"),
    ("restart/quiet", 20.0, "restart until quiet"),
    ("restart/writes", 0.0, "writes of a restart"),
    ("change/image/p95", 1000.0, "one change of a model's image, until the Deployment is written, p95"),
    ("change/batching/p95", 1000.0, "one change of a batching knob, until the settings are written, p95"),
    ("memory/rss", 256.0, "memory"),
    ("rest/cpu", 3.0, "CPU at rest, no pod reporting"),
    ("reports/cpu", 250.0, "CPU of one report over TLS"),
)
"""Key of a figure, what it shall not exceed, and what it is. Of several samples the worst counts."""


def page(document: Mapping[str, Any]) -> str:
    """The whole page, in Markdown.

    Args:
        document: as written to `control.json`.
    """
    asked, machine, figures = document["asked"], document["machine"], document["figures"]
    ran = (
        f"{document['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}"
    )
    size = (
        f"{asked['backends']} backends and {asked['endpoints']} endpoints in {asked['namespaces']} namespaces"
    )
    lines = [
        f"""# The control plane, measured

{ran}; load average before: {machine["load_average_before"]:.2f}. Written by `python -m bench.control`.

{size}, one replica each; a real etcd, apiserver, scheduler and controllers on the same
cores as the operator; nodes and pods exist in the API alone. The bare loop sends the operator's applies,
rendered and encoded beforehand and without owner references, through 8 connections. Reports came before
all that, from {asked["report_pods"]} pods every second, to the control server alone.

| what | found | bound | |
| -- | -- | -- | -- |"""
    ]
    for key, bound, what in TARGETS:
        figure = figures[key]
        worst = figure["max"]
        verdict = "reached" if worst <= bound else "missed"
        lines.append(
            f"| {what} | {_number(worst, figure['unit'])} | ≤ {_number(bound, figure['unit'])} | {verdict} |"
        )
    lines += ["", "| | |", "| -- | -- |"]
    lines += [
        f"| {key} | {', '.join(_number(value, figure['unit']) for value in figure['samples'])} |"
        for key, figure in figures.items()
    ]
    lines += ["", "## Writes", "", "| when | writes to the apiserver, by verb and kind |", "| -- | -- |"]
    for when, writes in document["writes"].items():
        counts = ", ".join(f"{what} {count:g}" for what, count in sorted(writes.items())) or "none"
        lines.append(f"| {when} | {counts} |")
    return "\n".join(lines) + "\n"


def _number(value: float, unit: str) -> str:
    spelled = f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
    return f"{spelled} {unit}"
