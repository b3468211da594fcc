"""The parts of `make bench`: each measures one round of one thing and adds it to the figures.

Ours, the model alone and the peers run on one core (the server's), the load on the other. The closed loops
use the quick model (1 ms + 0.01 ms an item), which leaves the core to who serves; the open ones use slower
ones (2 ms + 0.05 ms an item, 5 ms + 0.25 ms an item), so that the generator has time to be on time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import ideal, loads, passthrough, processes
from bench.frame import (
    CONNECTIONS,
    LOADS,
    LONG,
    MAX_BATCH,
    MIDDLE_A,
    MIDDLE_B,
    SIZES,
    SLOW,
    WIDE,
    Bench,
    Offered,
    attempt,
)
from bench.ledger import quantile
from bench.open_loop import arrivals
from bench.peer_parts import peer_goodput, peers
from bench.processes import Server
from bench.waits import hold, hold_goodput, wait


def throughput(bench: Bench, _round: int) -> None:
    """Closed loop at 1 … 256 connections: the model's own limit by full batches and the sidecar, by turns."""
    with (
        bench.quick_model() as model,
        processes.sidecar(
            model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH, **WIDE}
        ) as sidecar,
    ):
        for connections in CONNECTIONS:
            bench.closed("throughput/model", model, connections, items=min(connections, MAX_BATCH))
            bench.closed("throughput/sidecar", sidecar, connections, cpu=True)
        for connections in (64, 256):
            bench.closed("apart/sidecar", sidecar, connections, cpu=True, apart=True)
        bench.figures.add("memory/sidecar/loaded/rss", processes.rss_mb(sidecar.pid), "MB")
    if bench.other:
        with (
            attempt(bench, "other"),
            bench.quick_model() as model,
            bench.other.serve(model, core=bench.server_core, max_batch=MAX_BATCH) as other,
        ):
            for connections in CONNECTIONS:
                bench.closed("throughput/other", other, connections, cpu=True)


def latency(bench: Bench, number: int) -> None:
    """Latency that the sidecar adds: at one connection to the model alone, at half load to a free batcher."""
    with (
        bench.quick_model() as model,
        processes.relay(model, core=bench.server_core) as relay,
        processes.sidecar(
            model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH, **WIDE}
        ) as sidecar,
        bench.counting("latency/one"),
    ):
        bench.one_connection(model, {"relay": relay, "sidecar": sidecar})
    if bench.other:
        with (
            attempt(bench, "other"),
            bench.quick_model() as model,
            bench.other.serve(model, core=bench.server_core, max_batch=MAX_BATCH) as other,
            bench.counting("latency/one"),
        ):
            bench.one_connection(model, {"other": other})
    with (
        processes.model(MIDDLE_A, MIDDLE_B, core=bench.server_core) as model,
        processes.sidecar(
            model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH, **WIDE}
        ) as sidecar,
        bench.counting("latency/half"),
    ):
        _half_load(bench, sidecar, number)


def _half_load(bench: Bench, sidecar: Server, number: int) -> None:
    """Poisson arrivals at half of what the sidecar was just seen to serve."""
    loads.warm(sidecar, 256, core=bench.load_core, items=1)
    capacity = loads.wrk(sidecar, 256, bench.seconds, core=bench.load_core)["per_s"]
    rate = capacity / 2
    seconds, seed = max(2.0, bench.seconds), number + 1
    result = loads.open_loop(
        sidecar, rate, seconds, core=bench.load_core, objective_ms=20, seed=seed, latencies=True
    )
    if set(result["outcomes"]) != {"ok"}:
        raise loads.VoidError(f"not all was answered: {result['outcomes']}")
    best = sorted(ideal.latencies(arrivals(rate, seconds, seed=seed), MIDDLE_A, MIDDLE_B))
    measured = sorted(result["latencies_ms"])
    bench.figures.add("latency/sidecar/half/capacity", capacity, "items/s")
    bench.figures.add("latency/sidecar/half/lateness_p99", result["lateness_p99_ms"], "ms")
    bench.figures.add("latency/sidecar/half/generator", result["cpu_share"], "of a core")
    for word, share in (("p50", 0.5), ("p99", 0.99)):
        added = quantile(measured, share) - quantile(best, share)
        bench.figures.add(f"latency/sidecar/half/added_{word}", added, "ms")
    for percent in (1, 5, *range(10, 100, 10), 95, 99, 99.5, 99.9):
        key = f"latency/{{}}/half/q{percent:g}"
        bench.figures.add(key.format("sidecar"), quantile(measured, percent / 100), "ms")
        bench.figures.add(key.format("ideal"), quantile(best, percent / 100), "ms")
    tails = quantile(measured, 0.99), quantile(best, 0.99)
    bench.say(
        f"latency at half load ({rate:.0f}/s): p99 {tails[0]:.2f} ms, a free batcher's {tails[1]:.2f} ms; "
        f"sends late by {result['lateness_p99_ms']:.2f} ms, generator {result['cpu_share']:.0%} busy"
    )


def free(bench: Bench, _round: int) -> None:
    """The sidecar's own limit: a model that answers at once, on the load's core."""
    with (
        processes.model(0, 0, core=bench.load_core) as model,
        processes.sidecar(
            model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH, **WIDE}
        ) as sidecar,
    ):
        for connections in (64, 256):
            bench.closed("free/sidecar", sidecar, connections, cpu=True)
        sizes = processes.batch_sizes(model)
        bench.figures.add(
            "free/sidecar/all/batch",
            sum(s * n for s, n in sizes.items()) / sum(sizes.values()),
            "items/batch",
        )


def goodput(bench: Bench, number: int, offered: Offered = SLOW) -> None:
    """Open loop at 25 … 150 % of capacity: answers within the objective, and how quickly it refuses."""
    with (
        processes.model(offered.a, offered.b, core=bench.server_core) as model,
        processes.sidecar(
            model,
            core=bench.server_core,
            batching={"maxBatchSize": MAX_BATCH, "latencyObjectiveMs": round(offered.objective_ms)},
        ) as sidecar,
    ):
        for percent in LOADS:
            bench.open_loop("sidecar", sidecar, percent, number, offered)


def long_goodput(bench: Bench, number: int) -> None:
    """The same with a model of 50 ms, the peers after the sidecar: there the queue decides, not HTTP."""
    goodput(bench, number, LONG)
    peer_goodput(bench, number, LONG)


def idle(bench: Bench, _round: int) -> None:
    """CPU of an idle sidecar, after some load."""
    with (
        bench.quick_model() as model,
        processes.sidecar(
            model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH, **WIDE}
        ) as sidecar,
    ):
        with bench.counting("idle"):
            loads.wrk(sidecar, 64, 1, core=bench.load_core)
            time.sleep(1)
            before = processes.cpu_seconds(sidecar.pid)
            time.sleep(bench.idle_seconds)
            used = processes.cpu_seconds(sidecar.pid) - before
            bench.figures.add("idle/sidecar/-/cpu", used / bench.idle_seconds * 100, "% of a core")
        bench.figures.add("idle/sidecar/-/rss", processes.rss_mb(sidecar.pid), "MB")


def size(bench: Bench, _round: int) -> None:
    """The effect of maxBatchSize at 256 connections."""
    with bench.quick_model() as model:
        for most in SIZES:
            with processes.sidecar(
                model, core=bench.server_core, batching={"maxBatchSize": most, **WIDE}
            ) as sidecar:
                bench.closed(f"size/{most}", sidecar, 256)


def none(bench: Bench, _round: int) -> None:
    """Bodies of 1 MB through `protocol: none`."""
    try:
        figures = passthrough.measure(bench.server_core, bench.load_core, bench.seconds)
    except (RuntimeError, OSError, ZeroDivisionError) as why:
        bench.figures.void("none", f"{type(why).__name__}: {why}")
        return
    for name, (value, unit) in figures.items():
        bench.figures.add(f"none/sidecar/1MB/{name}", value, unit)
    bench.say(f"none: {figures}")


PARTS: dict[str, Callable[[Bench, int], None]] = {
    part.__name__: part
    for part in (
        throughput,
        peers,
        latency,
        free,
        goodput,
        peer_goodput,
        long_goodput,
        idle,
        hold,
        hold_goodput,
        wait,
        size,
        none,
    )
}
