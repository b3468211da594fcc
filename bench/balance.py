"""`python -m bench.balance`: requests among eight pods of which two are three times slower, beside one queue.

Each pod is a sidecar before a model that takes one item at a time, 20 ms or 60 ms; one router is before them
all, or several that do not know of each other (`--routers`). Requests come by a Poisson process at a share of
what the pods can do together. Beside each run, the same arrivals go through one central queue, simulated
without any cost: first come, first served, by whichever pod is free, a fast one where several are. No
scheduler that cannot see the future and starts no request twice does much better. Latencies count from the
intended send time. It prints a table; `--out` writes the figures.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import heapq
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import loads, processes, product, proxies
from bench.figures import Figures, median
from bench.ledger import quantile
from bench.open_loop import arrivals
from bench.processes import Server
from bench.run import commit, machine

FAST_MS, SLOW_MS = 20.0, 60.0
SERVICE_MS = (FAST_MS,) * 6 + (SLOW_MS,) * 2
SHARES = (50, 70, 85)
"""Per cent of what all pods can do together."""
QUANTILES = (("p50", 0.5), ("p99", 0.99))


def central_queue(times: Sequence[float], service: Sequence[float]) -> list[float]:
    """The latencies of requests that wait in one queue for whichever server is free.

    Args:
        times: when they arrive, ascending.
        service: seconds that each server takes for a request.
    """
    idle = sorted(service)
    busy: list[tuple[float, float]] = []  # when a server is free again, and its time for a request
    latencies = []
    for arrived in times:
        while busy and busy[0][0] <= arrived:
            heapq.heappush(idle, heapq.heappop(busy)[1])
        if idle:
            begins, seconds = arrived, heapq.heappop(idle)
        else:
            begins, seconds = heapq.heappop(busy)
        heapq.heappush(busy, (begins + seconds, seconds))
        latencies.append(begins + seconds - arrived)
    return latencies


@contextlib.contextmanager
def endpoint(*, models: int, measured: int, routers: int = 1) -> Iterator[list[Server]]:
    """The pods and their routers; yields the endpoint at each of these.

    Args:
        models: the core of the models.
        measured: the core of sidecars and routers.
        routers: how many there are, which do not know of each other.
    """
    batching = {"maxBatchSize": 1, "maxQueuedItems": 1000}
    with contextlib.ExitStack() as stack:
        pods = []
        for service in SERVICE_MS:
            model = stack.enter_context(processes.model(service, 0, core=models))
            pods.append(stack.enter_context(processes.sidecar(model, core=measured, batching=batching)))
        started = [
            stack.enter_context(proxies.router({"b": pods[0]}, beside={"b": pods[1:]}, core=measured))
            for _ in range(routers)
        ]
        yield [router.endpoints["b"] for router in started]


def measure(
    figures: Figures, servers: Sequence[Server], share: int, seconds: float, *, seed: int, core: int
) -> None:
    """One run at a share of the capacity, the same part of it at each router, and the queue beside it."""
    service = [each / 1000 for each in SERVICE_MS]
    rate = share / 100 * sum(1 / each for each in service) / len(servers)
    key = f"balance/{share}"
    seeds = [seed * len(servers) + number for number in range(len(servers))]

    def load(server: Server, seed: int) -> dict[str, Any]:
        return loads.open_loop(server, rate, seconds, core=core, objective_ms=1000, seed=seed, latencies=True)

    try:
        with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
            results = list(pool.map(load, servers, seeds))
    except loads.VoidError as why:
        figures.void(key, str(why))
        print(f"[bench] VOID {key}: {why}", flush=True)
        return
    times = sorted(at for each in seeds for at in arrivals(rate, seconds, seed=each))
    central = [latency * 1000 for latency in central_queue(times, service)]
    ours = [latency for result in results for latency in result["latencies_ms"]]
    for name, latencies in (("router", ours), ("central", central)):
        for word, share_below in QUANTILES:
            figures.add(f"{key}/{name}/{word}", quantile(sorted(latencies), share_below), "ms")
    refused = sum(result["outcomes"].get("refused", 0) for result in results)
    figures.add(f"{key}/router/refused", refused, "requests")


def table(document: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| load, % | p50: router, ms | one queue | ÷ | p99: router, ms | one queue | ÷ | refused |",
        "| -- | -- | -- | -- | -- | -- | -- | -- |",
    ]
    for share in SHARES:
        cells = [str(share)]
        for word, _ in QUANTILES:
            ours, ideal = (
                median(document, f"balance/{share}/{name}/{word}") for name in ("router", "central")
            )
            if ours is None or ideal is None:
                cells += ["void"] * 3
            else:
                cells += [f"{ours:.1f}", f"{ideal:.1f}", f"{ours / ideal:.2f}"]
        refused = median(document, f"balance/{share}/router/refused")
        cells.append("" if refused is None else f"{refused:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.balance", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one run")
    parser.add_argument("--routers", type=int, default=1, help="that share the pods and the requests")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    build = product.choose()
    figures = Figures()
    with endpoint(models=0, measured=1, routers=arguments.routers) as servers:
        for number in range(arguments.rounds):
            for share in SHARES:
                measure(figures, servers, share, arguments.seconds, seed=number + 1, core=0)
    document = {
        "what": "requests among eight pods, two of them three times slower, beside one central queue",
        "commit": commit(),
        "build": build,
        "machine": machine(),
        "settings": {
            "service_ms": SERVICE_MS,
            "seconds": arguments.seconds,
            "rounds": arguments.rounds,
            "routers": arguments.routers,
        },
        "figures": figures.document(),
        "voids": figures.voids,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document))
    return 1 if figures.voids else 0


if __name__ == "__main__":
    sys.exit(main())
