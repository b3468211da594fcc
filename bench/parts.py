"""The parts of `make bench`: each measures one round of one thing and adds it to the figures.

Ours, the model alone and the peers run on one core (the server's), the load on the other. The closed loops
use the quick model (1 ms + 0.01 ms an item), which leaves the core to who serves; the open ones use slower
ones (2 ms + 0.05 ms an item, 5 ms + 0.25 ms an item), so that the generator has time to be on time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench import ideal, loads, processes
from bench.figures import Figures
from bench.foreign import Profile
from bench.ledger import quantile
from bench.open_loop import arrivals
from bench.peers.catalogue import PEERS
from bench.processes import DidNotStartError, Server
from bench.venvs import NotInstalledError

MAX_BATCH = 32
QUICK_A, QUICK_B = 1.0, 0.01
# NB: of the quick one, half the capacity is over 8 000 requests a second: our generator would be late.
MIDDLE_A, MIDDLE_B = 2.0, 0.05
SLOW_A, SLOW_B = 5.0, 0.25
CAPACITY = MAX_BATCH / (SLOW_A + SLOW_B * MAX_BATCH) * 1000
OBJECTIVE_MS = 2 * (SLOW_A + SLOW_B * MAX_BATCH) + 50
CONNECTIONS = (1, 4, 16, 64, 256)
LOADS = (25, 60, 90, 110, 150)
WAITS_MS = (0, 1, 5, 20)
TURNS = 5  # at one connection: few requests a second, so that one stall of the machine makes a p99
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
# NB: closed loops are bound by their connections; what is measured is not how many may wait.
WIDE: dict[str, Any] = {"maxQueuedItems": 4096}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all parts share.

    Args:
        figures: where samples go.
        server_core: of what is measured.
        load_core: of the generators.
        seconds: of one measurement.
        peers: names of the peers to run.
        other: somebody else's sidecar to measure beside ours.
        idle_seconds: how long idleness is watched.
    """

    figures: Figures
    server_core: int
    load_core: int
    seconds: float
    peers: Sequence[str]
    other: Profile | None = None
    idle_seconds: float = 10

    def say(self, text: str) -> None:
        """Tell how it goes."""
        print(f"[bench] {time.strftime('%H:%M:%S', time.gmtime())} {text}", flush=True)

    @contextlib.contextmanager
    def counting(self, key: str) -> Iterator[None]:
        """A void run inside is noted and does not end the others."""
        try:
            yield
        except loads.VoidError as why:
            self.figures.void(key, str(why))
            self.say(f"VOID {key}: {why}")

    def closed(
        self,
        name: str,
        server: Server,
        connections: int,
        *,
        cpu: bool = False,
        items: int = 1,
        seconds: float = 0,
        lenient: bool = False,
        apart: bool = False,
    ) -> None:
        """One closed-loop measurement under `name/connections/…`."""
        key = f"{name}/{connections}"
        many = max(1, connections // items)
        with self.counting(key):
            loads.warm(server, many, core=self.load_core, items=items)
            before = processes.cpu_seconds(server.pid)
            found = loads.wrk(
                server,
                many,
                seconds or self.seconds,
                core=self.load_core,
                items=items,
                lenient=lenient,
                apart=apart,
            )
            used = processes.cpu_seconds(server.pid) - before
            self.figures.add(f"{key}/rate", found["per_s"], "items/s")
            self.figures.add(f"{key}/p50", found["p50_ms"], "ms")
            self.figures.add(f"{key}/p99", found["p99_ms"], "ms")
            if cpu:
                self.figures.add(f"{key}/cpu", used / found["good"] * 1e6, "µs/request")
            self.say(f"{key}: {found['per_s']:.0f} items/s, p99 {found['p99_ms']:.2f} ms")

    def quick_model(self, *, core: int | None = None) -> contextlib.AbstractContextManager[Server]:
        """The model that leaves the core to who serves."""
        return processes.model(QUICK_A, QUICK_B, core=self.server_core if core is None else core)


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
            _attempt(bench, "other"),
            bench.quick_model() as model,
            bench.other.serve(model, core=bench.server_core, max_batch=MAX_BATCH) as other,
        ):
            for connections in CONNECTIONS:
                bench.closed("throughput/other", other, connections, cpu=True)


def peers(bench: Bench, _round: int) -> None:
    """Closed loop at 64 and 256 connections: each peer with the quick model."""
    for name in bench.peers:
        with (
            _attempt(bench, name),
            PEERS[name].serve(QUICK_A, QUICK_B, core=bench.server_core, max_batch=MAX_BATCH) as server,
        ):
            for connections in (64, 256):
                bench.closed(
                    f"throughput/{name}",
                    server,
                    connections,
                    cpu=PEERS[name].apart,
                    seconds=max(PEERS[name].seconds, bench.seconds),
                    lenient=True,
                )


def latency(bench: Bench, number: int) -> None:
    """What the sidecar adds: at one connection to the model alone, at half load to a free batcher."""
    with (
        bench.quick_model() as model,
        processes.relay(model, core=bench.server_core) as relay,
        processes.sidecar(
            model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH, **WIDE}
        ) as sidecar,
        bench.counting("latency/one"),
    ):
        _one_connection(bench, model, {"relay": relay, "sidecar": sidecar})
    if bench.other:
        with (
            _attempt(bench, "other"),
            bench.quick_model() as model,
            bench.other.serve(model, core=bench.server_core, max_batch=MAX_BATCH) as other,
            bench.counting("latency/one"),
        ):
            _one_connection(bench, model, {"other": other})
    with (
        processes.model(MIDDLE_A, MIDDLE_B, core=bench.server_core) as model,
        processes.sidecar(
            model, core=bench.server_core, batching={"maxBatchSize": MAX_BATCH, **WIDE}
        ) as sidecar,
        bench.counting("latency/half"),
    ):
        _half_load(bench, sidecar, number)


def _one_connection(bench: Bench, model: Server, subjects: Mapping[str, Server]) -> None:
    """What each in front of the model adds to it at one connection, in turns."""
    for _ in range(TURNS):
        alone = loads.wrk(model, 1, bench.seconds, core=bench.load_core)
        for name, server in subjects.items():
            through = loads.wrk(server, 1, bench.seconds, core=bench.load_core)
            for word in ("p50", "p99"):
                added = through[f"{word}_ms"] - alone[f"{word}_ms"]
                bench.figures.add(f"latency/{name}/one/added_{word}", added, "ms")
                bench.say(f"latency of the {name} at one connection: added {word} {added:.3f} ms")


def _half_load(bench: Bench, sidecar: Server, number: int) -> None:
    """Poisson arrivals at half of what the sidecar was just seen to serve."""
    loads.warm(sidecar, 256, core=bench.load_core, items=1)
    capacity = loads.wrk(sidecar, 256, bench.seconds, core=bench.load_core)["per_s"]
    rate = capacity / 2
    seconds, seed = max(2.0, bench.seconds), number + 1
    found = loads.open_loop(
        sidecar, rate, seconds, core=bench.load_core, objective_ms=20, seed=seed, latencies=True
    )
    if set(found["outcomes"]) != {"ok"}:
        raise loads.VoidError(f"not all was answered: {found['outcomes']}")
    best = sorted(ideal.latencies(arrivals(rate, seconds, seed=seed), MIDDLE_A, MIDDLE_B))
    measured = sorted(found["latencies_ms"])
    bench.figures.add("latency/sidecar/half/capacity", capacity, "items/s")
    bench.figures.add("latency/sidecar/half/lateness_p99", found["lateness_p99_ms"], "ms")
    bench.figures.add("latency/sidecar/half/generator", found["cpu_share"], "of a core")
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
        f"sends late by {found['lateness_p99_ms']:.2f} ms, generator {found['cpu_share']:.0%} busy"
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


def goodput(bench: Bench, number: int) -> None:
    """Open loop at 25 … 150 % of capacity: answers within the objective, and how quickly it refuses."""
    with (
        processes.model(SLOW_A, SLOW_B, core=bench.server_core) as model,
        processes.sidecar(
            model,
            core=bench.server_core,
            batching={"maxBatchSize": MAX_BATCH, "latencyObjectiveMs": round(OBJECTIVE_MS)},
        ) as sidecar,
    ):
        for percent in LOADS:
            _open(bench, "sidecar", sidecar, percent, number)


def peer_goodput(bench: Bench, number: int) -> None:
    """The same at 110 and 150 % for each peer; one round of it, for starting them takes long."""
    if number:
        return
    for name in bench.peers:
        with (
            _attempt(bench, name),
            PEERS[name].serve(
                SLOW_A, SLOW_B, core=bench.server_core, max_batch=MAX_BATCH, objective_ms=OBJECTIVE_MS
            ) as server,
        ):
            for percent in (110, 150):
                _open(bench, name, server, percent, number)


def _open(bench: Bench, subject: str, server: Server, percent: int, number: int) -> None:
    key = f"goodput/{subject}/{percent}"
    with bench.counting(key):
        found = loads.open_loop(
            server,
            CAPACITY * percent / 100,
            max(3.0, bench.seconds + 1),
            core=bench.load_core,
            objective_ms=OBJECTIVE_MS,
            seed=number + 1,
        )
        bench.figures.add(f"{key}/rate", found["goodput_per_s"], "items/s")
        bench.figures.add(f"{key}/offered", found["offered_per_s"], "items/s")
        limit = min(found["offered_per_s"], CAPACITY)
        bench.figures.add(f"{key}/share", found["goodput_per_s"] / limit, "of min(offered, capacity)")
        bench.figures.add(f"{key}/p99", found["latency_p99_ms"], "ms")
        for word in ("refused", "error", "timeout", "lost"):
            bench.figures.add(
                f"{key}/{word}", found["outcomes"].get(word, 0) / found["requests"], "of requests"
            )
        if found["refused_within_5ms"] is not None:
            bench.figures.add(f"{key}/refused_within_5ms", found["refused_within_5ms"], "of refusals")
        bench.say(
            f"{key} %: {found['goodput_per_s'] / limit:.3f} of min(offered, capacity); {found['outcomes']}"
        )


def idle(bench: Bench, _round: int) -> None:
    """CPU of a sidecar that nobody asks anything, after some load."""
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


def wait(bench: Bench, _round: int) -> None:
    """Whether waiting for fuller batches ever costs throughput."""
    with bench.quick_model() as model:
        # NB: there and back again, so that a machine that slowly changes does not favour an end.
        for milliseconds in (*WAITS_MS, *reversed(WAITS_MS)):
            with processes.sidecar(
                model,
                core=bench.server_core,
                batching={"maxBatchSize": MAX_BATCH, "batchWaitTimeoutMs": milliseconds, **WIDE},
            ) as sidecar:
                for connections in (16, 64):
                    bench.closed(f"wait/{milliseconds}", sidecar, connections)


def size(bench: Bench, _round: int) -> None:
    """What maxBatchSize does at 256 connections."""
    with bench.quick_model() as model:
        for most in SIZES:
            with processes.sidecar(
                model, core=bench.server_core, batching={"maxBatchSize": most, **WIDE}
            ) as sidecar:
                bench.closed(f"size/{most}", sidecar, 256)


def none(bench: Bench, _round: int) -> None:
    """Bodies of 1 MB through `protocol: none`."""
    try:
        measure = importlib.import_module("bench.none").measure
    except (ImportError, AttributeError) as why:
        bench.figures.failures["none"] = f"bench/none.py cannot be used: {why}"
        return
    try:
        found = measure(bench.server_core, bench.load_core, bench.seconds)
    except (RuntimeError, OSError, ZeroDivisionError) as why:
        bench.figures.void("none", f"{type(why).__name__}: {why}")
        return
    for name, (value, unit) in found.items():
        bench.figures.add(f"none/sidecar/1MB/{name}", value, unit)
    bench.say(f"none: {found}")


@contextlib.contextmanager
def _attempt(bench: Bench, name: str) -> Iterator[None]:
    """A server that does not come is told and does not end the run."""
    try:
        yield
    except (NotInstalledError, DidNotStartError, OSError) as why:
        bench.figures.failures[name] = f"{type(why).__name__}: {why}"
        bench.say(f"FAILED {name}: {why}")


PARTS: dict[str, Callable[[Bench, int], None]] = {
    part.__name__: part
    for part in (throughput, peers, latency, free, goodput, peer_goodput, idle, wait, size, none)
}
