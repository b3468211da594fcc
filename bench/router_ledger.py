"""`python -m bench.router_ledger`: what becomes of each request at 1000 a second while all behind it changes.

Open-loop load on an endpoint of three sidecars while a pod is added, one drains, the router is replaced by
another (as in a rollout: new connections go to the new one, the old one drains), the connections to a pod are
cut, and a pod is killed. Every answer must be the request's own, and come once; no request may end without an
answer; no more items may be executed, in all, than that. Only those that were with a pod whose connections
were cut, or that was killed, may get an error: 502, since nobody knows whether they were executed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from bench import bodies, open_loop, processes, product
from bench.ledger import Ledger
from bench.processes import Server
from bench.run import commit, machine

ENDS_WITH = 3.0
"""Seconds of load behind the last change."""
PAUSE = 3.0
"""Seconds between two changes."""
BATCHING = {"maxBatchSize": 32, "maxQueuedItems": 1000}
_HONEST = {"502 model_unreachable"}


class Link:
    """A relay to a pod whose connections can be cut.

    Args:
        port: of the pod.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.here = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> Link:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.here = self._server.sockets[0].getsockname()[1]
        return self

    async def end(self) -> None:
        """Listen no more, and cut what there is."""
        self._server.close()
        while self._writers:
            self.cut()
            await asyncio.sleep(0.01)

    def cut(self) -> int:
        """Reset all connections; returns how many there were."""
        writers = list(self._writers)
        for writer in writers:
            writer.transport.abort()
        return len(writers) // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        self._writers -= {writer, far_writer}

    @staticmethod
    async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


class World:
    """Pods and routers that come and go.

    Args:
        stack: ends them.
        folder: for the settings file.
        cores: of models and load, and of what is tested.
    """

    def __init__(self, stack: contextlib.ExitStack, folder: Path, cores: tuple[int, int]) -> None:
        self._stack = stack
        self._file = folder / "settings.json"
        self._models, self._tested = cores
        self.targets: dict[str, int] = {}
        self.models: list[Server] = []

    def settle(self) -> None:
        """Tell the routers which pods there are."""
        targets = [f"127.0.0.1:{port}" for port in self.targets.values()]
        endpoint = {"name": "e", "route": "/", "backends": [{"name": "b", "targets": targets}]}
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"v": 1, "endpoints": [endpoint]}))
        new.replace(self._file)

    def pod(self) -> Server:
        """A model and its sidecar."""
        model = self._stack.enter_context(processes.model(0, 0, core=self._models))
        self.models.append(model)
        return self._stack.enter_context(processes.sidecar(model, core=self._tested, batching=BATCHING))

    def router(self) -> tuple[int, int]:
        """A router; returns its process and its port."""
        port = processes.free_port()
        command = [
            *(sys.executable, "-m", "penstock_router", f"--settings={self._file}", "--propagation-delay=1s"),
            *(f"--listen=127.0.0.1:{port}", "--admin=127.0.0.1:0"),
        ]
        running = processes.running(command, core=self._tested, env=processes.without_ours())
        process, log = self._stack.enter_context(running)
        processes.await_line(process, log, "ready ", seconds=60)
        return process.pid, port

    def executed(self) -> int:
        """Items that models have run."""
        sizes = [processes.batch_sizes(model) for model in self.models]
        return sum(size * count for each in sizes for size, count in each.items())


async def run(world: World, rate: float, ledger: Ledger) -> list[str]:
    """Load the endpoint while things change; returns what was done."""
    done = []
    pods = {name: await asyncio.to_thread(world.pod) for name in ("one", "two", "three")}
    link = await Link(pods["two"].port).start()
    world.targets = {name: pod.port for name, pod in pods.items()} | {"two": link.here}
    world.settle()
    router, port = await asyncio.to_thread(world.router)
    _, next_port = await asyncio.to_thread(world.router)
    added = await asyncio.to_thread(world.pod)
    before = world.executed()
    seconds = 5 * PAUSE + ENDS_WITH
    load = open_loop.OpenLoop(
        "127.0.0.1",
        port,
        "/predict",
        open_loop.arrivals(rate, seconds, seed=1),
        ledger,
        form=bodies.FORMS["instances"],
        timeout=30.0,
        connections=64,
    )
    loading = asyncio.create_task(load.run())
    await asyncio.sleep(PAUSE)
    world.targets["four"] = added.port
    world.settle()
    done.append("a pod was added")
    await asyncio.sleep(PAUSE)
    del world.targets["one"]
    world.settle()
    os.kill(pods["one"].pid, signal.SIGTERM)
    done.append("a pod drained")
    await asyncio.sleep(PAUSE)
    load.where = ("127.0.0.1", next_port)
    os.kill(router, signal.SIGTERM)
    done.append("the router was replaced")
    await asyncio.sleep(PAUSE)
    done.append(f"{link.cut()} connections to a pod were cut")
    await asyncio.sleep(PAUSE)
    os.kill(pods["three"].pid, signal.SIGKILL)
    del world.targets["three"]
    world.settle()
    done.append("a pod was killed")
    await loading
    await link.end()
    done.append(f"{world.executed() - before} items were executed")
    return done


def wrong(summary: dict[str, Any], executed: int) -> list[str]:
    """What may not be.

    Args:
        summary: the ledger's.
        executed: items that models have run.
    """
    problems = list(summary["faults"])
    outcomes = summary["outcomes"]
    unmet = ("lost", "timeout", "unanswered", "refused")
    problems += [f"{outcomes[word]} requests: {word}" for word in unmet if outcomes.get(word)]
    errors = {detail.partition(" ")[2] for detail in summary["details"] if detail.startswith("error ")}
    if errors - _HONEST:
        problems.append(f"expected no error but {sorted(_HONEST)}, found {sorted(errors - _HONEST)}")
    good, unknown = outcomes.get("ok", 0), outcomes.get("error", 0)
    if not good <= executed <= good + unknown:
        problems.append(f"expected {good} to {good + unknown} items executed, found {executed}")
    return problems


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.router_ledger", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    build = product.choose()
    cores = sorted(os.sched_getaffinity(0))
    ledger = Ledger(1000.0)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, contextlib.ExitStack() as stack:
        world = World(stack, Path(folder), (cores[0], cores[-1]))
        done = uvloop.run(run(world, arguments.rate, ledger))
    summary = ledger.summary(5 * PAUSE + ENDS_WITH)
    problems = wrong(summary, int(done[-1].split()[0]))
    kept = (
        "requests",
        "outcomes",
        "details",
        "duplicated",
        "latency_p50_ms",
        "latency_p99_ms",
        "lateness_p99_ms",
    )
    document = {
        "what": "each request's fate while pods and routers come and go",
        "commit": commit(),
        "build": build,
        "machine": machine(),
        "rate": arguments.rate,
        "done": done,
        "wrong": problems,
        **{name: summary[name] for name in kept},
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
