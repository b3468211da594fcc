"""Parts `wait`, `hold` and `hold_goodput`: what waiting for fuller batches costs, and what holding brings.

One sidecar whose `batchWaitTimeout` is changed as it runs, with a run without a wait beside each run with
one: two processes of the same settings differ by more than what is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import loads, processes
from bench.frame import MAX_BATCH, SLOW, WAITS_MS, WIDE, Bench

HELD = (1, 2, 4, 8, 12, 16, 24, 32, 64, 256)
"""Connections at which holding is held against none."""
OVERLOADS = (110, 150)
"""Loads at which it is, in percent of capacity."""
PAIRS = {16: 6, 64: 2}
"""Pairs of runs of each wait in a round, by connections: at 16 one run differs most from the next."""

UNITS = {"per_s": "items/s", "p50_ms": "ms", "p99_ms": "ms", "per_call": "items", "cpu": "µs/request"}
"""The figures of the part `hold`."""


def pairs(waits: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Each wait beside 0, `count` times, first and second by turns.

    So a machine that slowly changes favours neither.

    Args:
        waits: those above 0.
        count: pairs of each.
    """
    for number in range(count):
        for place, milliseconds in enumerate(waits):
            yield (milliseconds, 0) if (number + place) % 2 else (0, milliseconds)


def hold(bench: Bench, round_number: int) -> None:
    """Measure the effect of holding a free slot for returning callers, against runs with holding off."""
    batching = {"maxBatchSize": MAX_BATCH, **WIDE}
    with (
        bench.quick_model() as model,
        processes.sidecar(model, core=bench.server_core, batching=batching) as sidecar,
    ):
        for connections in HELD:
            with bench.counting(f"hold/on/{connections}"):
                runs: dict[str, dict[str, float]] = {}
                for way in ("on", "off") if round_number % 2 else ("off", "on"):
                    sidecar.change(batching if way == "on" else {**batching, "batchWaitTimeoutMs": 0})
                    loads.warm(sidecar, connections, core=bench.load_core, items=1)
                    calls = sidecar.metric("batch_items_count")
                    before = processes.scheduled_seconds(sidecar.pid)
                    result = runs[way] = loads.wrk(sidecar, connections, bench.seconds, core=bench.load_core)
                    used = processes.scheduled_seconds(sidecar.pid) - before
                    result["per_call"] = result["good"] / max(
                        1.0, sidecar.metric("batch_items_count") - calls
                    )
                    result["cpu"] = used / result["good"] * 1e6
                for name, unit in UNITS.items():
                    for way, result in runs.items():
                        bench.figures.add(f"hold/{way}/{connections}/{name}", result[name], unit)
                    ratio = runs["on"][name] / runs["off"][name]
                    bench.figures.add(f"hold/on/{connections}/{name}_against_off", ratio, "times")
                shown = ", ".join(f"{name} x{runs['on'][name] / runs['off'][name]:.3f}" for name in UNITS)
                bench.say(
                    f"holding at {connections} connections: {runs['on']['per_s']:.0f} a second; {shown}"
                )


def hold_goodput(bench: Bench, number: int) -> None:
    """Measure goodput above capacity with holding and without, in one process by turns."""
    batching = {"maxBatchSize": MAX_BATCH, "latencyObjectiveMs": round(SLOW.objective_ms)}
    ways = {"holding": batching, "without-holding": {**batching, "batchWaitTimeoutMs": 0}}
    with (
        processes.model(SLOW.a, SLOW.b, core=bench.server_core) as model,
        processes.sidecar(model, core=bench.server_core, batching=batching) as sidecar,
    ):
        for percent in OVERLOADS:
            for way in sorted(ways, reverse=number % 2 == 1):
                sidecar.change(ways[way])
                held = sidecar.metric("held_batches_total")
                bench.open_loop(way, sidecar, percent, number)
                held = sidecar.metric("held_batches_total") - held
                bench.figures.add(f"goodput/{way}/{percent}/held", held, "batches")
                bench.say(f"{way} at {percent} %: {held:.0f} batches held")


def wait(bench: Bench, _round: int) -> None:
    """Measure, by pairs of runs in one process, whether waiting for fuller batches costs throughput."""
    batching = {"maxBatchSize": MAX_BATCH, **WIDE}
    with (
        bench.quick_model() as model,
        processes.sidecar(model, core=bench.server_core, batching=batching) as sidecar,
    ):
        for connections, count in PAIRS.items():
            loads.warm(sidecar, connections, core=bench.load_core, items=1)
            for pair in pairs(WAITS_MS[1:], count):
                with bench.counting(f"wait/{max(pair)}/{connections}"):
                    rates = {}
                    for milliseconds in pair:
                        sidecar.change({**batching, "batchWaitTimeoutMs": milliseconds})
                        if milliseconds:  # it finds out in the first second whether to wait at all
                            loads.warm(sidecar, connections, core=bench.load_core, items=1)
                        result = loads.wrk(sidecar, connections, bench.seconds, core=bench.load_core)
                        rates[milliseconds] = result["per_s"]
                    for milliseconds, rate in rates.items():
                        bench.figures.add(f"wait/{milliseconds}/{connections}/rate", rate, "items/s")
                    ratio = rates[max(pair)] / rates[0]
                    bench.figures.add(f"wait/{max(pair)}/{connections}/against_0", ratio, "times")
                    bench.say(f"wait of {max(pair)} ms at {connections} connections: {ratio:.3f} of none")
