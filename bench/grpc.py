"""`python -m bench.grpc`: what a call of `ModelInfer` costs, beside the same over REST and other servers.

What is measured is on one core, the load, which checks each answer, on another. Everything is measured in
turns; the table has medians and what is aimed at. `--instructions` counts instead what a call costs sidecar
and router, by valgrind, which is the same on a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench import instructions, processes, product, proxies
from bench.figures import Figures
from bench.frame import MAX_BATCH, QUICK_A, QUICK_B, WIDE
from bench.peers.catalogue import PEERS, Peer
from bench.processes import ROOT, DidNotStartError, Server
from bench.venvs import NotInstalledError

CALLERS = 64
PODS = 4
ROUNDS = 3
CALLS = ("--calls", str(CALLERS))
REST = ("--rest", str(CALLERS))
BOTH = ("--calls", str(CALLERS // 2), "--rest", str(CALLERS // 2))
BATCHING = {"maxBatchSize": MAX_BATCH, **WIDE}
MLSERVER = "MLServer over gRPC"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """One measurement.

    Args:
        cpu: µs of the server's CPU a request.
        rate: requests a second.
        batch: items a batch of the model.
        busy: share of a core that the generator took.
    """

    cpu: float
    rate: float
    batch: float
    busy: float


@contextlib.contextmanager
def echo(*, core: int) -> Iterator[Server]:
    """Start a server by `grpc.aio` that returns messages."""
    port = processes.free_port()
    with processes.running([sys.executable, "-m", "bench.grpc_echo", str(port)], core=core) as (process, log):
        processes.await_line(process, log, "ready ", seconds=20)
        yield Server(port=port, pid=process.pid)


@contextlib.contextmanager
def relay(behind: Server, *, core: int) -> Iterator[Server]:
    """Start a relay that reads nothing."""
    port = processes.free_port()
    command = [sys.executable, "-m", "bench.relay", str(port), str(behind.port)]
    with processes.running(command, core=core) as (process, log):
        processes.await_line(process, log, "ready ", seconds=20)
        yield Server(port=port, pid=process.pid)


def _load(server: Server, core: int, *options: str) -> subprocess.Popen[str]:
    command = [
        *("taskset", "-c", str(core), sys.executable, "-m", "bench.grpc_load"),
        str(server.port),
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def load(
    server: Server, core: int, seconds: float, callers: Sequence[str], model: Server | None = None
) -> Loaded:
    """Load a server.

    Args:
        server: which.
        core: the generator's.
        seconds: how long.
        callers: options of `bench.grpc_load`.
        model: behind it, to count its batches.

    Raises:
        DidNotStartError: an answer was not right.
    """
    with _load(server, core, *callers, "--seconds", str(seconds)) as generator:
        assert generator.stdout
        first = generator.stdout.readline()
        used = processes.scheduled_seconds(server.pid)
        sizes = processes.batch_sizes(model) if model else {}
        rest = generator.stdout.read()
    used = processes.scheduled_seconds(server.pid) - used
    if generator.returncode or first != "warm\n":
        raise DidNotStartError(f"a run with a fault: {(first + rest)[-500:]}")
    result = json.loads(rest)
    after = processes.batch_sizes(model) if model else {}
    runs = {size: count - sizes.get(size, 0) for size, count in after.items()}
    return Loaded(
        cpu=used / result["good"] * 1e6,
        rate=result["good"] / result["seconds"],
        batch=sum(size * count for size, count in runs.items()) / max(1, sum(runs.values())),
        busy=result["busy"],
    )


def shares(pods: Sequence[processes.Sidecar], measure: Callable[[], Loaded]) -> list[float]:
    """The share of each pod in a load's requests, in percent."""
    counts = [pod.metric("batch_items_sum") for pod in pods]
    measure()
    counts = [pod.metric("batch_items_sum") - count for pod, count in zip(pods, counts, strict=True)]
    return [100 * count / sum(counts) for count in counts]


def measure(figures: Figures, seconds: float, rounds: int, server_core: int, load_core: int) -> None:
    """Measure everything in turns."""
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        model = start(processes.model(QUICK_A, QUICK_B, core=server_core))
        sidecar = start(processes.sidecar(model, core=server_core, batching=BATCHING, protocol="v2"))
        free = start(processes.model(0, 0, core=load_core))
        pods = [
            start(processes.sidecar(free, core=load_core, batching=BATCHING, protocol="v2"))
            for _ in range(PODS)
        ]
        router = start(proxies.router({"one": pods[:1], "all": pods}, core=server_core)).endpoints
        turns: list[tuple[str, Server, Sequence[str], Server | None]] = [
            ("sidecar, calls", sidecar, CALLS, model),
            ("sidecar, REST", sidecar, REST, model),
            ("sidecar, both", sidecar, BOTH, model),
            ("router, calls", router["one"], CALLS, None),
            ("router, REST", router["one"], REST, None),
            ("grpc.aio, echo", start(echo(core=server_core)), CALLS, None),
        ]
        peer = PEERS["mlserver"]
        assert isinstance(peer, Peer)
        try:
            port = processes.free_port()
            served = start(peer.serve(QUICK_A, QUICK_B, core=server_core, max_batch=MAX_BATCH, second=port))
            turns.append((MLSERVER, dataclasses.replace(served, port=port), CALLS, None))
        except (NotInstalledError, DidNotStartError) as why:
            figures.failures[MLSERVER] = str(why)
        for number in range(rounds):
            for name, server, callers, behind in turns:
                got = load(server, load_core, seconds, callers, behind)
                for word, unit in (("cpu", "µs"), ("rate", "/s"), ("batch", "items"), ("busy", "of a core")):
                    figures.add(f"{name}/{word}", getattr(got, word), unit)
                print(f"[bench] {number + 1}: {name}: {got.cpu:.1f} µs, {got.rate:.0f}/s", flush=True)
            parts = shares(pods, lambda: load(router["all"], load_core, seconds, CALLS))
            figures.add("spread/least", min(parts), "%")
            figures.add("spread/most", max(parts), "%")


def table(figures: Figures) -> str:
    """The figures beside what is aimed at."""
    middle = {key: statistics.median(values) for key, values in figures.samples.items()}

    def ratio(upper: str, lower: str) -> str:
        if upper not in middle or lower not in middle:
            return "not measured"
        pairs = [a / b for a, b in zip(figures.samples[upper], figures.samples[lower], strict=True)]
        return f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"

    cpu = figures.samples["sidecar, calls/cpu"]
    alone = (middle["sidecar, calls/batch"], middle["sidecar, REST/batch"])
    rows = [
        (
            f"sidecar: µs of CPU a call, {CALLERS} callers",
            f"{statistics.median(cpu):.1f} ({min(cpu):.1f} to {max(cpu):.1f})",
            "at most 45",
        ),
        (
            "sidecar: calls a second ÷ REST's",
            ratio("sidecar, calls/rate", "sidecar, REST/rate"),
            "at least 0.5",
        ),
        ("sidecar: CPU a call ÷ REST's", ratio("sidecar, calls/cpu", "sidecar, REST/cpu"), ""),
        (
            "CPU a call of a grpc.aio echo ÷ the sidecar's",
            ratio("grpc.aio, echo/cpu", "sidecar, calls/cpu"),
            "at least 8",
        ),
        (f"calls a second ÷ {MLSERVER}", ratio("sidecar, calls/rate", f"{MLSERVER}/rate"), "at least 10"),
        (
            f"CPU a call of {MLSERVER}, with its model ÷ the sidecar's",
            ratio(f"{MLSERVER}/cpu", "sidecar, calls/cpu"),
            "",
        ),
        ("router: CPU a call ÷ its REST's", ratio("router, calls/cpu", "router, REST/cpu"), "at most 1.3"),
        (
            f"one channel over {PODS} pods, % of the calls",
            f"{min(figures.samples['spread/least']):.1f} to {max(figures.samples['spread/most']):.1f}",
            "23 to 27",
        ),
        (
            "items a batch: calls, REST, half of each",
            f"{alone[0]:.1f}, {alone[1]:.1f}, {middle['sidecar, both/batch']:.1f}",
            "as with one of them",
        ),
    ]
    lines = ["| | measured | aim |", "| -- | -- | -- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += [f"\n{name} failed: {why}" for name, why in figures.failures.items()]
    return "\n".join(lines)


def count(server_core: int, load_core: int) -> None:
    """Count instructions and print."""
    print("| thousand instructions a request | calls | REST | ratio |\n| -- | -- | -- | -- |")
    with processes.model(0, 0, core=load_core) as model:
        for name in ("sidecar", "router"):
            with instructions.counter() as counting, contextlib.ExitStack() as stack:
                start, seconds = stack.enter_context, instructions.START_SECONDS
                of_router = name == "router"
                server: Server = start(
                    processes.sidecar(
                        model,
                        core=load_core if of_router else server_core,
                        batching=BATCHING,
                        protocol="v2",
                        under=() if of_router else counting.under,
                        seconds=seconds,
                    )
                )
                if of_router:
                    made = proxies.router(
                        {"router": [server]}, core=server_core, under=counting.under, seconds=seconds
                    )
                    server = start(made).endpoints["router"]

                def ask(callers: Sequence[str], server: Server, many: int) -> None:
                    with _load(server, load_core, *callers, "--count", str(many)) as generator:
                        printed = generator.communicate()[0]
                    if generator.returncode:
                        raise DidNotStartError(f"a run with a fault: {printed[-500:]}")

                each = [counting.count(server.pid, partial(ask, way, server)) / 1000 for way in (CALLS, REST)]
                print(f"| {name} | {each[0]:.1f} | {each[1]:.1f} | {each[0] / each[1]:.2f} |", flush=True)


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.grpc", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("bench: expected two cores (one for the load), found one", file=sys.stderr)
        return 2
    print(f"[bench] {product.choose()}", flush=True)
    if arguments.instructions:
        if why := instructions.missing():
            print(f"bench: {why}", file=sys.stderr)
            return 2
        count(cores[0], cores[-1])
        return 0
    figures = Figures()
    measure(figures, arguments.seconds, arguments.rounds, cores[0], cores[-1])
    print("\n" + table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
