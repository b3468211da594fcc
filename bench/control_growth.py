"""`python -m bench.control_growth`: what an object costs the operator among 1000 to 5000 backends.

The operator's reconcilers run on a Kubernetes in memory, one key after the other: its CPU, and none of an
apiserver's, a watch's or TLS'. Each backend has two endpoints; namespaces of five endpoints use the shared
router. Costs are CPU time, each size in a process of its own, with the memory's copies of objects included.
`--backends 200 1000` takes less than a minute, the default some eight on a quiet core. `--plot` draws
`docs/pictures/control-growth.svg`.

`--own 300 1200` measures a namespace with a router of its own and so many endpoints instead: all in all, what
it costs to make them, and then each change of one.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.control_resources import backend
from bench.processes import rss_mb
from bench.venvs import ensure
from penstock_operator.desired import names
from penstock_operator.kinds import POD
from penstock_wire.control.report import EndpointReport, RouterReport, TenantReport

# NB: not by an import, which would have the tests' helpers checked as strictly as the product.
Harness: Any = importlib.import_module("tests.support.worlds.operator_harness").Harness
BACKENDS_OF_A_NAMESPACE = 2.5
CHANGES = 100
COUNTED = 20
"""Further changes, whose Python calls are counted: their number is the same on a busy machine."""
HOME = "penstock-system"


def endpoint(namespace: str, name: str, of: str, timeout: str = "30s") -> dict[str, Any]:
    """An endpoint of a backend."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backend": of, "timeout": timeout},
    }


def report(harness: Any, seq: int) -> float:
    """Both shared routers say that they have and serve all; returns the CPU seconds of taking it."""
    made = harness.ctx.memory.shared.made
    if made is None:
        return 0.0
    served = {
        name: TenantReport(
            door=True, endpoints={each: EndpointReport(listening=True) for each in own if each}
        )
        for name, own in harness.ctx.memory.shared.ports.items()
    }
    took = 0.0
    for pod in harness.pods_ready(names.SHARED_ROUTER, 2, HOME) if seq == 1 else ROUTERS:
        sent = RouterReport(
            pod=pod, uid=harness.uid(POD, pod, HOME), seq=seq, state="ready",
            settings_version=made.version, settings_digest=made.digest, tenants=served, changes=True,
        )  # fmt: skip
        began = time.process_time()
        for namespace, news in harness.ctx.reports.shared_router(sent).items():
            harness.manager.reported(namespace, "", notable=news.notable)
        took += time.process_time() - began
    return took / len(ROUTERS)


ROUTERS = tuple(f"{names.SHARED_ROUTER}-{number}" for number in range(2))


async def measure(backends: int) -> dict[str, float]:
    """Costs among so many backends."""
    harness = Harness(shared=True)
    count = int(backends / BACKENDS_OF_A_NAMESPACE)
    spaces = [f"tenant-{number:04}" for number in range(count)]
    for number in range(backends):
        space = spaces[number % count]
        harness.apply(backend(f"model-{number}", space))
        for which in "ab":
            harness.apply(endpoint(space, f"{which}-{number}", f"model-{number}"))
    objects = len(harness.cluster.objects)
    gc.collect()
    gc.freeze()
    began = time.process_time()
    await harness.run(limit=10**9)
    cold = time.process_time() - began
    report(harness, 1)
    began = time.process_time()
    await harness.run(limit=10**9)
    slices = time.process_time() - began
    again = report(harness, 2)
    await harness.run(limit=10**9)
    changes, sent = [], []
    for number in range(CHANGES):
        at = number * backends // CHANGES
        made = harness.ctx.memory.shared.made
        before = made.digest if made is not None else ""
        began = time.process_time()
        harness.apply(endpoint(spaces[at % count], f"a-{at}", f"model-{at}", "7s"))
        await harness.run()
        if made is not None:
            sent.append(len(made.since(before)))
        changes.append(time.process_time() - began)
    calls = cProfile.Profile()
    for number in range(COUNTED):
        at = number * backends // COUNTED
        calls.enable()
        harness.apply(endpoint(spaces[at % count], f"b-{at}", f"model-{at}", "9s"))
        await harness.run()
        calls.disable()
    return {
        "backends": backends,
        "cold, ms an object": cold / objects * 1e3,
        "slices, ms an endpoint": slices / backends / 2 * 1e3,
        "a report, µs an endpoint": again / backends / 2 * 1e6,
        "a change, ms": statistics.median(changes) * 1e3,
        "a change, p95, ms": sorted(changes)[len(changes) * 95 // 100] * 1e3,
        "a change, Python calls": sum(each.callcount for each in calls.getstats()) / COUNTED,
        "a change, bytes to a router": statistics.median(sent),
        "memory, MB": rss_mb(os.getpid()),
    }


async def own_router(endpoints: int) -> dict[str, float]:
    """Costs in a namespace that has its own router and so many endpoints, of a tenth as many backends."""
    harness, space, models = Harness(), "tenant-0000", max(1, endpoints // 10)
    for number in range(models):
        harness.apply(backend(f"model-{number}", space))
    for number in range(endpoints):
        harness.apply(endpoint(space, f"a-{number}", f"model-{number % models}"))
    gc.collect()
    gc.freeze()
    began = time.process_time()
    await harness.run(limit=10**9)
    cold = time.process_time() - began
    pods = harness.pods_ready(names.ROUTER, 2, space)
    changes, calls = [], cProfile.Profile()

    async def change(turn: int) -> None:
        at = turn * endpoints // (2 * COUNTED)
        if turn:  # the first turn is of the routers' first reports alone
            harness.apply(endpoint(space, f"a-{at}", f"model-{at % models}", "7s"))
        await harness.run(limit=10**9)
        made = harness.ctx.memory.made[space, names.ROUTER_SETTINGS]
        served = {f"a-{each}": EndpointReport(listening=True) for each in range(endpoints)}
        for pod in pods:
            sent = RouterReport(
                pod=pod, uid=harness.uid(POD, pod, space), seq=turn + 1, state="ready", door=True,
                settings_version=made.version, settings_digest=made.digest, endpoints=served,
            )  # fmt: skip
            news = harness.ctx.reports.router(space, sent)
            harness.manager.reported(space, "", notable=news.notable)
        await harness.run(limit=10**9)

    await change(0)
    for turn in range(1, 1 + COUNTED):
        began = time.process_time()
        await change(turn)
        changes.append(time.process_time() - began)
    for turn in range(1 + COUNTED, 2 * COUNTED):
        calls.enable()
        await change(turn)
        calls.disable()
    return {
        "endpoints": endpoints,
        "cold, ms an endpoint": cold / endpoints * 1e3,
        "a change, ms": statistics.median(changes) * 1e3,
        "a change, Python calls": sum(each.callcount for each in calls.getstats()) / (COUNTED - 1),
    }


def main() -> int:
    """Print the costs of each size, and how much each is of the first one's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--backends", type=int, nargs="+", default=[1000, 2000, 3000, 4000, 5000], help="sizes"
    )
    parser.add_argument("--plot", action="store_true", help="draw them")
    parser.add_argument("--own", type=int, nargs="+", help="sizes of a namespace with its own router")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(asyncio.run(measure(arguments.one))))
        return 0
    rows = [asyncio.run(own_router(endpoints)) for endpoints in arguments.own or ()]
    for backends in () if arguments.own else arguments.backends:
        command = [sys.executable, "-m", "bench.control_growth", "--one", str(backends)]
        rows.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    for name, first in rows[0].items():
        print(f"{name:30}", *[f"{row[name]:10.2f} ({row[name] / first:5.2f})" for row in rows])
    if arguments.plot and not arguments.own:
        _plot(rows)
    return 0


def _plot(rows: list[dict[str, float]]) -> None:
    """Draw what each cost is of that among the fewest backends."""
    figures = {}
    for row in rows:
        for name, first in rows[0].items():
            value = row[name] / first
            figures[f"growth/{row['backends']:.0f}/{name}"] = {"median": value, "min": value, "max": value}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as document:
        json.dump({"settings": {}, "figures": figures}, document)
        document.flush()
        subprocess.run([ensure("plots"), Path(__file__).with_name("plots.py"), document.name], check=True)


if __name__ == "__main__":
    sys.exit(main())
