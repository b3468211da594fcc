"""`python -m bench.router_ledger`: the fate of each request at 1000 a second while all behind it changes.

Open-loop load on an endpoint of three sidecars, in rounds. In each a pod is added, one drains, the router is
replaced by another (as in a rollout: new connections go to the new one, the old one drains), the connections
to a pod are cut, and a pod is killed, for which another one comes.

Each request has an item and an `x-request-id` of its own, and the models count how often they run each item.
One request in twenty is hurried: it has less time than any batch takes, so that sidecars refuse it. For each
of them, by itself:

- it is answered, once, with its own id; by a 2xx with its own item, which was run once;
- one that is refused (503) was never run;
- one that was with a pod whose connections were cut, or that was killed, may get 502, and a hurried one 504:
  since nobody knows whether these were run, they were once or never.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import bodies, open_loop, processes, product
from bench.ledger import Entry, Ledger
from bench.processes import Server
from bench.run import commit, machine

PAUSE = 3.0
"""Seconds behind each change."""
BATCHING = {"maxBatchSize": 32, "maxQueuedItems": 1000}
A_MS, B_MS = 20.0, 0.05
"""What a batch takes, and each item in it."""
HURRIED: Final = 20
"""One request of so many has little time."""
HURRIED_MS = 15
FIRST_ITEM: Final = 1000
"""Of the load; probes have lower ones."""
ONCE, NEVER, UNKNOWN = frozenset({1}), frozenset({0}), frozenset({0, 1})
MAY_BE: Mapping[str, frozenset[int]] = {
    "ok": ONCE,
    "error 502 model_unreachable": UNKNOWN,
    "hurried ok": ONCE,
    "hurried refused 503 deadline": NEVER,
    "hurried error 504 deadline": UNKNOWN,
    "hurried error 502 model_unreachable": UNKNOWN,
}
"""What may become of a request, and how often its item may have been run then."""


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


class Identified(open_loop.Connection):
    """A connection that checks whether an answer, of whatever status, names its request."""

    def reset(self) -> None:
        """See `Connection.reset`."""
        super().reset()
        self.identity = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        super().on_header(name, value)
        if name.lower() == b"x-request-id":
            self.identity = value

    def finish(self, outcome: str, detail: str) -> None:
        """See `Connection.finish`."""
        identity, self.identity = self.identity, b""
        if self.entry and outcome in ("ok", "refused", "error") and identity != name_of(self.entry.number):
            outcome, detail = "mismatched", f"{detail}, as request {identity.decode('latin-1')!r}"
        super().finish(outcome, detail)


class Load(open_loop.OpenLoop):
    """Requests that have names, and some of them little time."""

    def message(self, number: int) -> bytes:
        """See `OpenLoop.message`."""
        line, _, rest = super().message(number).partition(b"\r\n")
        hurry = b"x-penstock-timeout-ms: %d\r\n" % HURRIED_MS if is_hurried(number) else b""
        return b"%b\r\nx-request-id: %b\r\n%b%b" % (line, name_of(number), hurry, rest)


def name_of(number: int) -> bytes:
    """The `x-request-id` of the request with an item."""
    return b"ledger-%d" % number


def is_hurried(number: int) -> bool:
    """Whether the request with an item has little time."""
    return number % HURRIED == 0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """A model and its sidecar.

    Args:
        model: the model.
        sidecar: the sidecar.
        stack: ends both.
    """

    model: Server
    sidecar: Server
    stack: contextlib.ExitStack


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
        self._gone: list[Pod] = []
        self.pods: list[Pod] = []
        """Those that get requests, the oldest first."""
        self.links: dict[Pod, Link] = {}
        """By pod, where the router reaches it, unless directly."""
        self.executed: collections.Counter[int] = collections.Counter()
        """How often each item was run, of those whose models were asked."""

    def settle(self) -> None:
        """Tell the routers which pods there are."""
        ports = [self.links[pod].here if pod in self.links else pod.sidecar.port for pod in self.pods]
        targets = [f"127.0.0.1:{port}" for port in ports]
        endpoint = {"name": "e", "route": "/", "backends": [{"name": "b", "targets": targets}]}
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"v": 1, "endpoints": [endpoint]}))
        new.replace(self._file)

    def start_pod(self) -> Pod:
        """A model and its sidecar, which get no request yet."""
        stack = self._stack.enter_context(contextlib.ExitStack())
        model = stack.enter_context(processes.model(A_MS, B_MS, core=self._models, counts=True))
        sidecar = stack.enter_context(processes.sidecar(model, core=self._tested, batching=BATCHING))
        return Pod(model, sidecar, stack)

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

    def end_oldest(self, number: signal.Signals) -> None:
        """Signal the sidecar of the oldest pod that the router reaches directly, and tell the routers."""
        pod = next(pod for pod in self.pods if pod not in self.links)
        self.pods.remove(pod)
        self._gone.append(pod)
        os.kill(pod.sidecar.pid, number)
        self.settle()

    def bury(self, *, all: bool = False) -> None:
        """Ask the models of pods that have gone what they ran, and end these; but for the last two that went.

        Args:
            all: of every pod.
        """
        left = [] if all else self._gone[-2:]
        for pod in [pod for pod in self._gone if pod not in left] + (self.pods if all else []):
            self.executed.update(processes.items_run(pod.model))
            pod.stack.close()
        self._gone = left


async def one_round(world: World, load: Load, router: int) -> tuple[int, int]:
    """Change one thing after another; returns the router's process, and how many connections were cut."""

    async def add() -> None:
        world.pods.append(await asyncio.to_thread(world.start_pod))
        world.settle()

    await add()
    await asyncio.sleep(PAUSE)
    world.end_oldest(signal.SIGTERM)
    await asyncio.sleep(PAUSE)
    next_router, port = await asyncio.to_thread(world.router)
    load.where = ("127.0.0.1", port)
    os.kill(router, signal.SIGTERM)
    await asyncio.sleep(PAUSE)
    (link,) = world.links.values()
    cut = link.cut()
    await asyncio.sleep(PAUSE)
    world.end_oldest(signal.SIGKILL)
    await add()
    await asyncio.sleep(PAUSE)
    await asyncio.to_thread(world.bury)
    return next_router, cut


async def run(world: World, rate: float, rounds: int, ledger: Ledger) -> tuple[float, int]:
    """Load the endpoint while things change; returns for how many seconds, and the connections cut."""
    world.pods = [await asyncio.to_thread(world.start_pod) for _ in range(3)]
    linked = world.pods[1]
    link = world.links[linked] = await Link(linked.sidecar.port).start()
    world.settle()
    router, port = await asyncio.to_thread(world.router)
    load = Load(
        "127.0.0.1",
        port,
        "/predict",
        open_loop.arrivals(rate, 3600.0 * rounds, seed=1),
        ledger,
        form=bodies.FORMS["instances"],
        timeout=60.0,
        connections=64,
        kind=Identified,
        first_number=FIRST_ITEM,
    )
    loading = asyncio.create_task(load.run())
    await asyncio.sleep(PAUSE)
    cuts = 0
    for _ in range(rounds):
        router, cut = await one_round(world, load, router)
        cuts += cut
    load.stop()
    await loading
    seconds = time.monotonic() - load.started
    await link.end()
    await asyncio.to_thread(world.bury, all=True)
    return seconds, cuts


def fate(entry: Entry) -> str:
    """What became of a request, one of `MAY_BE` where all is well."""
    words = ["hurried"] if is_hurried(entry.number) else []
    words.append(entry.outcome or "unanswered")
    return " ".join(words if entry.outcome == "ok" else [*words, entry.detail])


def fates(entries: Sequence[Entry], executed: Mapping[int, int]) -> dict[str, dict[int, int]]:
    """How many requests had each fate, by how often their items were run.

    Args:
        entries: the requests.
        executed: how often each item was run.
    """
    counted: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for entry in entries:
        counted[fate(entry)][executed.get(entry.number, 0)] += 1
    return {word: dict(sorted(counts.items())) for word, counts in sorted(counted.items())}


def wrong(ledger: Ledger, executed: Mapping[int, int]) -> list[str]:
    """What may not be.

    Args:
        ledger: all requests.
        executed: how often each item was run.
    """
    problems = list(ledger.faults())
    for word, counts in fates(ledger.entries, executed).items():
        allowed = MAY_BE.get(word)
        if allowed is None:
            problems.append(f"{sum(counts.values())} requests: {word}")
            continue
        for times, requests in counts.items():
            if times not in allowed:
                expected = " or ".join(map(str, sorted(allowed)))
                problems.append(
                    f"{requests} requests, {word}: expected to be run {expected} times, found {times}"
                )
    asked = {entry.number for entry in ledger.entries}
    nobodys = [item for item in executed if item >= FIRST_ITEM and item not in asked]
    if nobodys:
        problems.append(f"{len(nobodys)} items were run that nobody sent, as {nobodys[0]}")
    return problems


def write_each(file: Path, entries: Sequence[Entry], executed: Mapping[int, int]) -> None:
    """Write a line for each request.

    Args:
        file: where to.
        entries: the requests.
        executed: how often each item was run.
    """
    with file.open("w") as out:
        for entry in entries:
            line = {
                "id": name_of(entry.number).decode(),
                "fate": fate(entry),
                "run": executed.get(entry.number, 0),
                "seconds": round(entry.ended - entry.intended, 6),
            }
            out.write(json.dumps(line) + "\n")


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.router_ledger", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=2, help="of all changes, some 20 seconds each")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--each", type=Path, help="where a line of JSON for each request goes")
    arguments = parser.parse_args()
    build = product.choose()
    before = machine()
    cores = sorted(os.sched_getaffinity(0))
    ledger = Ledger(1000.0)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, contextlib.ExitStack() as stack:
        world = World(stack, Path(folder), (cores[0], cores[-1]))
        seconds, cuts = uvloop.run(run(world, arguments.rate, arguments.rounds, ledger))
    summary = ledger.summary(seconds)
    problems = wrong(ledger, world.executed)
    kept = ("requests", "seconds", "duplicated", "latency_p50_ms", "latency_p99_ms", "lateness_p99_ms")
    document: dict[str, Any] = {
        "what": "each request's fate while pods and routers come and go",
        "commit": commit(),
        "build": build,
        "machine": before,
        "rate": arguments.rate,
        "rounds": arguments.rounds,
        "cut": cuts,
        "wrong": problems,
        **{name: summary[name] for name in kept},
        "fates": fates(ledger.entries, world.executed),
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    if arguments.each:
        write_each(arguments.each, ledger.entries, world.executed)
    print(text)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
