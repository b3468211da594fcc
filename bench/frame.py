"""The frame of the parts of `make bench`: their settings, the closed loop, the handling of failures."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import loads, processes
from bench.figures import Figures
from bench.foreign import Profile
from bench.processes import DidNotStartError, Server
from bench.venvs import NotInstalledError

MAX_BATCH = 32
QUICK_A, QUICK_B = 1.0, 0.01
# NB: of the quick one, half the capacity is over 8 000 requests a second: our generator would be late.
MIDDLE_A, MIDDLE_B = 2.0, 0.05
CONNECTIONS = (1, 4, 16, 64, 256)
LOADS = (25, 60, 90, 110, 150)
WAITS_MS = (0, 1, 5, 20)
TURNS = 5  # at one connection: few requests a second, so that one stall of the machine makes a p99
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
# NB: closed loops are bound by their connections; what is measured is not how many may wait.
WIDE: dict[str, Any] = {"maxQueuedItems": 4096}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A model under open loops of shares of its capacity.

    Args:
        part: under which its figures stand.
        a: milliseconds of a batch.
        b: milliseconds of each item in it.
    """

    part: str
    a: float
    b: float

    @property
    def capacity(self) -> float:
        """Items a second that it answers in full batches."""
        return MAX_BATCH / (self.a + self.b * MAX_BATCH) * 1000

    @property
    def objective_ms(self) -> float:
        """Two full batches, and 50 ms."""
        return 2 * (self.a + self.b * MAX_BATCH) + 50


SLOW = Offered(part="goodput", a=5.0, b=0.25)
LONG = Offered(part="long_goodput", a=40.0, b=0.3125)
"""Of 50 ms for a full batch: at its 640 items a second, what HTTP costs a server hardly counts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The settings of all parts.

    Args:
        figures: where samples go.
        server_core: of what is measured.
        load_core: of the generators.
        seconds: of one measurement.
        peers: names of the peers to run.
        other: another project's sidecar to measure beside ours.
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
            before = processes.cpu_by_process(server.pid)
            result = loads.wrk(
                server,
                many,
                seconds or self.seconds,
                core=self.load_core,
                items=items,
                lenient=lenient,
                apart=apart,
            )
            used = processes.cpu_since(before, processes.cpu_by_process(server.pid))
            self.figures.add(f"{key}/rate", result["per_s"], "items/s")
            self.figures.add(f"{key}/p50", result["p50_ms"], "ms")
            self.figures.add(f"{key}/p99", result["p99_ms"], "ms")
            if cpu:
                self.figures.add(f"{key}/cpu", used / result["good"] * 1e6, "µs/request")
            self.say(f"{key}: {result['per_s']:.0f} items/s, p99 {result['p99_ms']:.2f} ms")

    def one_connection(
        self, model: Server, subjects: Mapping[str, Server], *, turns: int = TURNS, lenient: bool = False
    ) -> None:
        """Measure what each server adds to the model at one connection, and its rate there, in turns.

        Args:
            model: alone.
            subjects: what stands in front of it, or serves the same model, by name.
            turns: how often.
            lenient: as for `loads.wrk`.

        Raises:
            VoidError: The model or, unless lenient, a subject gave an error.
        """
        for _ in range(turns):
            alone = loads.wrk(model, 1, self.seconds, core=self.load_core)
            for name, server in subjects.items():
                through = loads.wrk(server, 1, self.seconds, core=self.load_core, lenient=lenient)
                if lenient:  # who is not lenient has a closed loop of its own for it
                    self.figures.add(f"throughput/{name}/1/rate", through["per_s"], "items/s")
                for word in ("p50", "p99"):
                    added = through[f"{word}_ms"] - alone[f"{word}_ms"]
                    self.figures.add(f"latency/{name}/one/added_{word}", added, "ms")
                    self.say(f"latency of the {name} at one connection: added {word} {added:.3f} ms")

    def open_loop(
        self, subject: str, server: Server, percent: int, number: int, offered: Offered = SLOW
    ) -> None:
        """One open-loop measurement under `goodput/subject/percent/…`.

        Args:
            subject: what is measured.
            server: where it answers.
            percent: the load, of the model's capacity.
            number: the round's, which the arrivals are drawn from.
            offered: of which model the load is a share.
        """
        key = f"{offered.part}/{subject}/{percent}"
        with self.counting(key):
            result = loads.open_loop(
                server,
                offered.capacity * percent / 100,
                max(3.0, self.seconds + 1),
                core=self.load_core,
                objective_ms=offered.objective_ms,
                seed=number + 1,
            )
            self.figures.add(f"{key}/rate", result["goodput_per_s"], "items/s")
            self.figures.add(f"{key}/offered", result["offered_per_s"], "items/s")
            limit = min(result["offered_per_s"], offered.capacity)
            self.figures.add(f"{key}/share", result["goodput_per_s"] / limit, "of min(offered, capacity)")
            self.figures.add(f"{key}/p99", result["latency_p99_ms"], "ms")
            for word in ("refused", "error", "timeout", "lost"):
                self.figures.add(
                    f"{key}/{word}", result["outcomes"].get(word, 0) / result["requests"], "of requests"
                )
            if result["refused_within_5ms"] is not None:
                self.figures.add(f"{key}/refused_within_5ms", result["refused_within_5ms"], "of refusals")
            self.say(
                f"{key} %: {result['goodput_per_s'] / limit:.3f} of min(offered, capacity); "
                f"{result['outcomes']}"
            )

    def quick_model(self, *, core: int | None = None) -> contextlib.AbstractContextManager[Server]:
        """The model that leaves the core to who serves."""
        return processes.model(QUICK_A, QUICK_B, core=self.server_core if core is None else core)


@contextlib.contextmanager
def attempt(bench: Bench, name: str) -> Iterator[None]:
    """Report a server that does not start; the run goes on."""
    try:
        yield
    except (NotInstalledError, DidNotStartError, OSError) as why:
        bench.figures.failures[name] = f"{type(why).__name__}: {why}"
        bench.say(f"FAILED {name}: {why}")
