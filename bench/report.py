"""The results page: ratios first, then the targets, then what was void or failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.figures import median
from bench.frame import CONNECTIONS, WAITS_MS
from bench.peers.catalogue import PEERS
from bench.targets import targets
from bench.waits import HELD, UNITS

LABELS = {
    "sidecar": "Penstock's sidecar",
    "model": "the model alone, full batches",
    "other": "other sidecar",
} | {peer.name: peer.label for peer in PEERS.values()}

HOLDING = {
    "holding": "the sidecar once more",
    "without-holding": "the same with `batchWaitTimeout: 0ms`, by turns",
}
"""Subjects of the part `hold_goodput`."""


def number(value: float | None, digits: int = 2) -> str:
    """Format a figure for people; a dash if it is missing."""
    if value is None:
        return "-"
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.{digits}f}"


def throughput_table(document: Mapping[str, Any]) -> Iterator[str]:
    """Throughput by connections, and ours as a multiple of each."""
    yield (
        "| items/s, median (min to max) | "
        + " | ".join(str(c) for c in CONNECTIONS)
        + " | sidecar ÷ it, at 64 | at 256 |"
    )
    yield "| -- |" + " -- |" * (len(CONNECTIONS) + 2)
    for subject, label in LABELS.items():
        cells = []
        for connections in CONNECTIONS:
            figure = document["figures"].get(f"throughput/{subject}/{connections}/rate")
            cells.append(
                f"{number(figure['median'], 0)} ({number(figure['min'], 0)} to {number(figure['max'], 0)})"
                if figure
                else "-"
            )
        if set(cells) == {"-"}:
            if subject in document["failures"]:
                yield f"| {label} | did not run: {document['failures'][subject][:200]} |" + " |" * len(cells)
            continue
        ratios = []
        for connections in (64, 256):
            ours = median(document, f"throughput/sidecar/{connections}/rate")
            theirs = median(document, f"throughput/{subject}/{connections}/rate")
            ratios.append(f"{ours / theirs:.2f}" if ours and theirs else "-")
        version = document["versions"].get(subject)
        yield f"| {label}{f' {version}' if version else ''} | " + " | ".join(cells + ratios) + " |"


def goodput_table(document: Mapping[str, Any]) -> Iterator[str]:
    """Goodput by load."""
    percents = sorted({int(key.split("/")[2]) for key in document["figures"] if key.startswith("goodput/")})
    if not percents:
        return
    yield "| goodput / min(offered, capacity) | " + " | ".join(f"{percent} %" for percent in percents) + " |"
    yield "| -- |" + " -- |" * len(percents)
    for subject, label in (LABELS | HOLDING).items():
        cells = [number(median(document, f"goodput/{subject}/{percent}/share")) for percent in percents]
        if set(cells) != {"-"}:
            yield f"| {label} | " + " | ".join(cells) + " |"


def cost_table(document: Mapping[str, Any]) -> Iterator[str]:
    """The latency that each server adds at one connection, its CPU and its memory."""
    columns = {
        "latency/{}/one/added_p50": 2,
        "latency/{}/one/added_p99": 2,
        "throughput/{}/16/cpu": 1,
        "throughput/{}/64/cpu": 1,
        "throughput/{}/256/cpu": 1,
        "idle/{}/-/cpu": 2,
        "memory/{}/loaded/rss": 0,
        "memory/{}/loaded/pss": 0,
    }
    yield (
        "| | added at one connection, ms: p50 | p99 | CPU a request, µs, at 16 | at 64 | at 256 | "
        "idle, % of a core | memory after load, MB | shared pages parted |"
    )
    yield "| -- |" + " -- |" * len(columns)
    for subject, label in LABELS.items():
        cells = [number(median(document, key.format(subject)), digits) for key, digits in columns.items()]
        if set(cells) != {"-"} and subject != "model":
            yield f"| {label} | " + " | ".join(cells) + " |"


def wait_table(document: Mapping[str, Any]) -> Iterator[str]:
    """Throughput with a wait, against a run without one just before or after."""
    yield "| batchWaitTimeout | connections | of the rate without, median (min to max) | pairs |"
    yield "| -- | -- | -- | -- |"
    for milliseconds in WAITS_MS[1:]:
        for connections in (16, 64):
            figure = document["figures"].get(f"wait/{milliseconds}/{connections}/against_0")
            if figure:
                spread = f"{number(figure['median'])} ({number(figure['min'])} to {number(figure['max'])})"
                yield f"| {milliseconds} ms | {connections} | {spread} | {figure['n']} |"


def hold_table(document: Mapping[str, Any]) -> Iterator[str]:
    """The effect of holding a slot, against runs with holding off just before or after."""
    yield (
        "| connections | answers a second | the same, of that without | p50 | p99 | requests a call | "
        "CPU a request |"
    )
    yield "| -- | -- | -- | -- | -- | -- | -- |"
    for connections in HELD:
        rate = median(document, f"hold/on/{connections}/per_s")
        if rate is not None:
            ratios = [median(document, f"hold/on/{connections}/{name}_against_off") for name in UNITS]
            cells = " | ".join(number(ratio) for ratio in ratios)
            yield f"| {connections} | {number(rate, 0)} | {cells} |"


def target_table(document: Mapping[str, Any]) -> Iterator[str]:
    """Each target and whether it was reached."""
    yield "| target | bound | found | |"
    yield "| -- | -- | -- | -- |"
    for target in targets(document):
        sign = "≥" if target.at_least else "≤"
        bound = f"{sign} {target.bound:g} {target.unit}"
        yield f"| {target.name} | {bound} | {number(target.measured)} | {target.verdict} |"


def page(document: Mapping[str, Any]) -> str:
    """The whole page, Markdown."""
    settings, machine = document["settings"], document["machine"]
    quick, slow = settings["quick_model_ms"], settings["slow_model_ms"]
    lines = [
        "# Measured",
        "",
        (
            f"{document['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python "
            f"{machine['python']}, ours {machine.get('build', 'as Python')}; load average before: "
            f"{machine['load_average_before']:.2f}. Medians of "
            f"{settings['rounds']} interleaved round(s) of {settings['seconds']:g} s. Written by "
            "`make bench`; read the ratios, the machine is shared."
        ),
        "",
        (
            "Servers and their model share one core, the load has the other. Closed loops: the model sleeps "
            f"{quick[0]:g} ms + {quick[1]:g} ms an item, one batch of at most {settings['max_batch']} at "
            f"a time. Open loops: {slow[0]:g} + {slow[1]:g} ms, capacity {settings['capacity_per_s']:.0f}/s, "
            f"objective {settings['objective_ms']:g} ms."
        ),
        "",
        "## Throughput by connections",
        "",
        *throughput_table(document),
        "",
        "## Goodput",
        "",
        *goodput_table(document),
        "",
        "## Latency, CPU and memory",
        "",
        (
            "A sidecar's CPU and memory are its own; a server's are of all its processes, with the model in "
            "them. What peers show at 1 and 16 connections, idle, in memory and as goodput is of one round."
        ),
        "",
        *cost_table(document),
        "",
        "## Waiting for fuller batches",
        "",
        *wait_table(document),
        "",
        "## Holding a slot for callers who ask again",
        "",
        *hold_table(document),
        "",
        "## Targets",
        "",
        *target_table(document),
        "",
        "## What does not count",
        "",
    ]
    lines += [f"- void: {void['what']}: {void['reason']}" for void in document["voids"]]
    lines += [f"- failed: {name}: {why}" for name, why in document["failures"].items()]
    if not document["voids"] and not document["failures"]:
        lines.append("Nothing was void, nothing failed.")
    return "\n".join(lines) + "\n"
