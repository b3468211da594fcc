"""`python -m bench.router`: the router beside nginx, HAProxy and a relay that reads nothing, in turns.

What is measured has a core to itself, origin and load have another; every answer is checked to be the
caller's own. Writes `bench/results/router.json` (every figure: unit, n, median, spread, samples) and prints
the table. A round with an error or a wrong answer is void and reported as such. `--instructions` measures
instead how many instructions a request costs the router, under valgrind: that figure is the same on a busy
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import instructions, loads, processes, product, proxies
from bench.figures import Figures
from bench.frame import MAX_BATCH, WIDE, Bench, attempt
from bench.processes import DidNotStartError, Server
from bench.router_table import table
from bench.run import commit, ensure_wrk, machine
from bench.venvs import NotInstalledError

RESULTS = Path(__file__).parent / "results" / "router.json"
CONNECTIONS = (1, 32, 128)
TURNS = 3  # at one connection, where one stall of the machine makes a p99
HALF_AT = 128
"""Connections of the load at half rate; each waits for a while before each request."""
HALF_SECONDS = 6.0
"""At least, of one measurement at half rate: a p99 of one second shows how connections are opened at once."""
ENDPOINTS = (1, 100, 1000)
ORIGIN = "origin"
BEHIND = "router_sidecar"
"""The router before a sidecar, both on the measured core where there are two."""


def subjects(
    bench: Bench, stack: contextlib.ExitStack, *, sidecar_core: int
) -> tuple[dict[str, Server], dict[str, Sequence[int]]]:
    """Start everything of a round.

    Args:
        bench: with the cores.
        stack: ends it.
        sidecar_core: of the sidecar behind the router.

    Returns:
        What is measured, by name, the origin first; and whose CPU counts beside the server's own, by name.

    Raises:
        DidNotStartError: one of our servers did not start.
    """
    batching = {"maxBatchSize": MAX_BATCH, **WIDE}
    origin = stack.enter_context(processes.model(0, 0, core=bench.load_core))
    servers: dict[str, Server] = {ORIGIN: origin}
    servers["relay"] = stack.enter_context(processes.relay(origin, core=bench.server_core))
    for name, start in (("nginx", proxies.nginx), ("haproxy", proxies.haproxy)):
        if name not in bench.figures.failures:
            with attempt(bench, name):
                servers[name] = stack.enter_context(start(origin, core=bench.server_core))
    sidecar = processes.sidecar(origin, core=bench.server_core, batching=batching)
    servers["sidecar"] = stack.enter_context(sidecar)
    behind = stack.enter_context(processes.sidecar(origin, core=sidecar_core, batching=batching))
    router = stack.enter_context(proxies.router({"router": [origin]}, core=bench.server_core))
    servers["router"] = router.endpoints["router"]
    router = stack.enter_context(proxies.router({BEHIND: [behind]}, core=bench.server_core))
    servers[BEHIND] = router.endpoints[BEHIND]
    return servers, {BEHIND: (behind.pid,)}


def closed(bench: Bench, name: str, server: Server, beside: Sequence[int], connections: int) -> float:
    """One closed loop under `throughput/name/connections/…`; returns its rate, 0 where it is void."""
    key = f"throughput/{name}/{connections}"
    with bench.counting(key):
        loads.warm(server, connections, core=bench.load_core, items=1)
        looks = {pid: processes.cpu_by_process(pid) for pid in (server.pid, *beside)}
        result = loads.wrk(server, connections, bench.seconds, core=bench.load_core)
        used = [processes.cpu_since(before, processes.cpu_by_process(pid)) for pid, before in looks.items()]
        bench.figures.add(f"{key}/rate", result["per_s"], "requests/s")
        bench.figures.add(f"{key}/p50", result["p50_ms"], "ms")
        bench.figures.add(f"{key}/p99", result["p99_ms"], "ms")
        for word, seconds in zip(("cpu", "cpu_behind"), used, strict=False):
            bench.figures.add(f"{key}/{word}", seconds / result["good"] * 1e6, "µs/request")
        each = " + ".join(f"{seconds / result['good'] * 1e6:.1f}" for seconds in used)
        bench.say(f"{key}: {result['per_s']:.0f}/s, {each} µs, p99 {result['p99_ms']:.2f} ms")
        return result["per_s"]
    return 0.0


def added(bench: Bench, servers: Mapping[str, Server], connections: int, *, seconds: float) -> None:
    """Measure what each server adds to the origin alone, at full speed, in turns."""
    with bench.counting(f"added/{connections}"):
        direct = loads.wrk(servers[ORIGIN], connections, seconds, core=bench.load_core)
        for name, server in servers.items():
            if name != ORIGIN:
                through = loads.wrk(server, connections, seconds, core=bench.load_core)
                for word in ("p50", "p99"):
                    more = through[f"{word}_ms"] - direct[f"{word}_ms"]
                    bench.figures.add(f"added/{name}/{connections}/{word}", more, "ms")


def half(bench: Bench, name: str, server: Server, origin: Server, rate: float) -> None:
    """Measure what a server adds at half of its measured rate, to the origin at the same rate.

    Args:
        bench: with the figures.
        name: the server's.
        server: what is measured.
        origin: behind it.
        rate: requests a second in a closed loop.
    """
    think = HALF_AT / (rate / 2) * 1000
    with bench.counting(f"half/{name}"):
        direct, through = (
            loads.wrk(each, HALF_AT, max(bench.seconds, HALF_SECONDS), core=bench.load_core, think_ms=think)
            for each in (origin, server)
        )
        bench.figures.add(f"half/{name}/-/rate", through["per_s"], "requests/s")
        for word in ("p50", "p99"):
            more = through[f"{word}_ms"] - direct[f"{word}_ms"]
            bench.figures.add(f"half/{name}/-/{word}", more, "ms")
        tails = f"p50 {through['p50_ms']:.2f} ms, p99 {through['p99_ms']:.2f} ms"
        bench.say(f"half/{name}: at {through['per_s']:.0f}/s {tails}")


def speed(bench: Bench, sidecar_core: int) -> None:
    """One round of requests a second, CPU a request and what is added."""
    with contextlib.ExitStack() as stack:
        servers, beside = subjects(bench, stack, sidecar_core=sidecar_core)
        rates = {}
        for connections in CONNECTIONS:
            for name, server in servers.items():
                rates[name] = closed(bench, name, server, beside.get(name, ()), connections)
            for _ in range(TURNS if connections == 1 else 1):
                added(bench, servers, connections, seconds=bench.seconds)
        for name, server in servers.items():
            if name != ORIGIN and rates[name]:
                half(bench, name, server, servers[ORIGIN], rates[name])


def memory(bench: Bench) -> None:
    """Resident memory of a router with many endpoints: ready, and after some load on one of them."""
    with processes.model(0, 0, core=bench.load_core) as origin:
        for count in ENDPOINTS:
            behind = {f"endpoint-{number}": [origin] for number in range(count)}
            with proxies.router(behind, core=bench.server_core) as router, bench.counting(f"memory/{count}"):
                bench.figures.add(f"memory/router/{count}/ready", processes.rss_mb(router.pid), "MB")
                loads.wrk(router.endpoints["endpoint-0"], 32, 1, core=bench.load_core)
                bench.figures.add(f"memory/router/{count}/loaded", processes.rss_mb(router.pid), "MB")
                bench.say(f"memory with {count} endpoints: {processes.rss_mb(router.pid):.1f} MB")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement, whole")
    parser.add_argument("--quick", action="store_true", help="one short round; writes only with --out")
    parser.add_argument("--out", type=Path, help="where the JSON goes; default: bench/results/router.json")
    parser.add_argument(
        "--instructions", action="store_true", help="count the router's instructions a request instead"
    )
    return parser.parse_args()


def results(
    bench: Bench, described: Mapping[str, Any], versions: Mapping[str, str], *, rounds: int, apart: bool
) -> dict[str, Any]:
    """The results document.

    Args:
        bench: with the figures.
        described: the machine.
        versions: of the others, by name.
        rounds: how many are in the figures.
        apart: whether the sidecar behind the router had a core of its own.
    """
    where = "on a third" if apart else "on the router's"
    return {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": described,
        "settings": {
            "rounds": rounds,
            "seconds": bench.seconds,
            "connections": CONNECTIONS,
            "cores": f"what is measured on one, origin and load on another; a sidecar behind it {where}",
        },
        "versions": versions,
        "figures": bench.figures.document(),
        "voids": bench.figures.voids,
        "failures": bench.figures.failures,
    }


def main() -> int:
    """Measure, write, print; returns the exit code: 1 where something was void, 2 where nothing could be."""
    arguments = parse()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("bench: expected two cores (one for origin and load), found one", file=sys.stderr)
        return 2
    figures = Figures()
    described = machine()
    described["build"] = product.choose()
    bench = Bench(
        figures=figures,
        server_core=cores[0],
        load_core=cores[-1],
        seconds=1.0 if arguments.quick else arguments.seconds,
        peers=(),
    )
    if arguments.instructions:
        return instructions.main(bench)
    ensure_wrk()
    versions = {}
    for name in proxies.PACKAGES:
        try:
            versions[name] = proxies.version(name)
        except NotInstalledError as why:
            figures.failures[name] = f"not installed: {why}"
            bench.say(f"without {name}: {why}")
    # NB: with two cores the sidecar behind the router shares the router's.
    sidecar_core = cores[1] if len(cores) > 2 else cores[0]
    document: dict[str, Any] = {}
    for number in range(1 if arguments.quick else arguments.rounds):
        bench.say(f"round {number + 1}")
        try:
            speed(bench, sidecar_core)
            memory(bench)
        except DidNotStartError as why:
            figures.void("round", f"one of our servers did not start: {why}")
            bench.say(f"VOID round: {why}")
        document = results(bench, described, versions, rounds=number + 1, apart=len(cores) > 2)
        # NB: after each round, so that a run that is ended early leaves what it measured.
        if arguments.out or not arguments.quick:
            (arguments.out or RESULTS).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print("\n" + table(document))
    return 1 if figures.voids else 0


if __name__ == "__main__":
    sys.exit(main())
