"""Part `wait`: whether waiting for fuller batches ever costs throughput.

One sidecar whose `batchWaitTimeout` is changed as it runs, with a run without a wait beside each run with
one: two processes of the same settings differ by more than what is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import loads, processes
from bench.frame import MAX_BATCH, WAITS_MS, WIDE, Bench

PAIRS = {16: 6, 64: 2}
"""Pairs of runs of each wait in a round, by connections: at 16 one run differs most from the next."""


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


def wait(bench: Bench, _round: int) -> None:
    """Whether waiting for fuller batches ever costs throughput, by pairs of runs in one process."""
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
                        found = loads.wrk(sidecar, connections, bench.seconds, core=bench.load_core)
                        rates[milliseconds] = found["per_s"]
                    for milliseconds, rate in rates.items():
                        bench.figures.add(f"wait/{milliseconds}/{connections}/rate", rate, "items/s")
                    ratio = rates[max(pair)] / rates[0]
                    bench.figures.add(f"wait/{max(pair)}/{connections}/against_0", ratio, "times")
                    bench.say(f"wait of {max(pair)} ms at {connections} connections: {ratio:.3f} of none")
