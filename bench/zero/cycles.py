"""Cycles of `bench.zero`, run inside the cluster's network: bursts, and what was seen of each.

One JSON document on the standard input says what to do (`Asked`), one on the standard output what came of
it: a list of cycles. What happens meanwhile goes to the standard error. All times are of one clock, the
machine's monotonic one: of the client's send, of the arrival of a watch's event, of the model's record. An
event arrives after what it tells of, so `to_scale_ms` is too long by its way here, and `ready_to_sent_ms` too
short. `late_ms` says by how much this process was late at most.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import bodies
from bench.control_api import Api, ApiError
from bench.ledger import Ledger
from bench.open_loop import OpenLoop
from bench.zero import resources
from bench.zero.resources import GROUP, KEDA_GROUP, NAMESPACE, Obj

TIMEOUT = 300.0
"""Seconds after which a request is given up, or a state that does not come."""
_LABEL = "penstock.dev/backend"
_LOOK = 0.02


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be done.

    Args:
        pki: folder with the administrator's certificate.
        server: the apiserver's URL.
        address: of this node, for the models.
        names: of the backends whose cycles run side by side.
        cycles: in all.
        bursts: requests at once, in turns.
        seed: of the pauses before bursts.
        polling: seconds between two looks of KEDA, which writes the replicas; 0: the operator does.
        objective: the backends' `latencyObjective`; empty: they have a `targetLoad`.
    """

    pki: str
    server: str
    address: str
    names: tuple[str, ...]
    cycles: int
    bursts: tuple[int, ...]
    seed: int
    polling: int = 0
    objective: str = ""


@dataclass(kw_only=True)
class Cycle:
    """What became of one burst.

    Args:
        backend: which.
        burst: requests.
        outcomes: of the requests, by word.
        executed: of the requests, how many were in a batch.
        twice: of the requests, how many were in two.
        replicas: the most that were asked for.
        to_scale_ms: from the first request until the watch showed replicas.
        to_ready_ms: from the first request until it showed a ready pod.
        ready_to_sent_ms: from there until the model had a batch.
        answered_ms: from the first request until the last answer.
        late_ms: by which this process was late at most.
    """

    backend: str
    burst: int
    outcomes: dict[str, int]
    executed: int
    twice: int
    replicas: int
    to_scale_ms: float
    to_ready_ms: float
    ready_to_sent_ms: float
    answered_ms: float
    late_ms: float


@dataclass
class Seen:
    """A backend as the watches show it, and what its models recorded.

    `scaled` and `ready` have the moments at which replicas rose from 0 and a first pod became ready.
    """

    replicas: int = -1
    most: int = 0
    pods: dict[str, bool] = field(default_factory=dict)
    scaled: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)

    def asleep(self) -> bool:
        """No pod, and none is asked for."""
        return self.replicas == 0 and not self.pods

    def backend(self, obj: Obj, at: float) -> None:
        """Take its state."""
        replicas = int(obj["spec"].get("replicas", 1))
        if replicas and self.replicas == 0:
            self.scaled.append(at)
        self.most = max(self.most, replicas)
        self.replicas = replicas

    def pod(self, kind: str, obj: Obj, at: float) -> None:
        """Take an event of one of its pods."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            self.pods.pop(name, None)
            return
        conditions = (obj.get("status") or {}).get("conditions") or ()
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if ready and not any(self.pods.values()):
            self.ready.append(at)
        self.pods[name] = ready and "deletionTimestamp" not in obj["metadata"]


def say(text: str) -> None:
    """Tell the user what happens."""
    print(f"[zero] {text}", file=sys.stderr, flush=True)


class Bench:
    """One run in one namespace.

    Args:
        asked: what to do.
        api: the apiserver.
    """

    def __init__(self, asked: Asked, api: Api) -> None:
        self._asked, self._api = asked, api
        self._seen = {name: Seen() for name in asked.names}
        self._items: collections.Counter[int] = collections.Counter()
        self._first: dict[int, float] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._lateness: list[tuple[float, float]] = []
        self._numbers = 1
        self._left = list(range(asked.cycles))
        self.cycles: list[Cycle] = []

    async def run(self) -> None:
        """Make everything, and all cycles."""
        collector = await asyncio.start_server(self._collect, self._asked.address, 0)
        port = collector.sockets[0].getsockname()[1]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(_beside(self._notice_lateness()))
            for path, take in (
                (f"{GROUP}/namespaces/{NAMESPACE}/modelbackends", self._backend),
                (f"/api/v1/namespaces/{NAMESPACE}/pods", self._pod),
            ):
                opened = asyncio.Event()
                await stack.enter_async_context(_beside(self._follow(path, take, opened)))
                await opened.wait()
            await self._make(f"{self._asked.address}:{port}")
            await asyncio.gather(*(self._work(name) for name in self._asked.names))
        collector.close()
        for writer in list(self._writers):
            writer.close()
        await asyncio.sleep(0.1)  # their tasks end with them

    async def _make(self, collector: str) -> None:
        asked = self._asked
        await self._post(f"/api/v1/namespaces/{NAMESPACE}/configmaps", resources.code())
        for name in asked.names:
            mode = "External" if asked.polling else "Builtin"
            made = resources.backend(name, collector=collector, mode=mode, objective=asked.objective)
            await self._post(f"{GROUP}/namespaces/{NAMESPACE}/modelbackends", made)
            await self._post(f"{GROUP}/namespaces/{NAMESPACE}/modelendpoints", resources.endpoint(name))
            if asked.polling:
                scaled = resources.scaled_object(name, polling=asked.polling)
                await self._post(f"{KEDA_GROUP}/namespaces/{NAMESPACE}/scaledobjects", scaled)

    async def _post(self, path: str, obj: Obj) -> None:
        await self._api.call("POST", path, obj)

    # -- what is seen ------------------------------------------------------------------------------------

    async def _follow(
        self, path: str, take: Callable[[str, Obj, float], None], opened: asyncio.Event
    ) -> None:
        async for kind, obj in self._api.watch(path, opened=opened.set):
            take(kind, obj, time.monotonic())
        raise ApiError(f"the watch of {path} ended")

    def _backend(self, kind: str, obj: Obj, at: float) -> None:
        if kind != "DELETED":
            self._seen[obj["metadata"]["name"]].backend(obj, at)

    def _pod(self, kind: str, obj: Obj, at: float) -> None:
        seen = self._seen.get((obj["metadata"].get("labels") or {}).get(_LABEL, ""))
        if seen is not None:
            seen.pod(kind, obj, at)

    async def _collect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError):
            while (line := await reader.readline()).endswith(b"\n"):
                record = json.loads(line)
                self._items.update(record["items"])
                for item in record["items"]:
                    self._first.setdefault(item, record["at"])
        self._writers.discard(writer)
        writer.close()

    async def _notice_lateness(self) -> None:
        while True:
            due = time.monotonic() + _LOOK
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            self._lateness.append((now, now - due))

    # -- cycles ------------------------------------------------------------------------------------------

    async def _work(self, name: str) -> None:
        """Cycles of one backend, until all are made."""
        draw = random.Random(f"{self._asked.seed} {name}")
        path = f"{GROUP}/namespaces/{NAMESPACE}/modelendpoints/{name}"
        await self._until(f"endpoint {name} to be Ready", lambda: self._is_ready(path))
        address = (await self._api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/services/{name}"))["spec"]
        while self._left:
            number = self._left.pop(0)
            await self._until(f"{name} to be at 0", self._asleep(name))
            # Whoever polls must not be met at the same moment of its turn each time.
            await asyncio.sleep(draw.uniform(0.0, 2.0))
            burst = self._asked.bursts[number % len(self._asked.bursts)]
            cycle = await self._cycle(name, address["clusterIP"], burst)
            self.cycles.append(cycle)
            say(
                f"{len(self.cycles)}/{self._asked.cycles} {name}: {burst} requests, {cycle.outcomes}, "
                f"/scale after {cycle.to_scale_ms:.0f} ms, ready after {cycle.to_ready_ms:.0f} ms, "
                f"then sent after {cycle.ready_to_sent_ms:.0f} ms"
            )

    def _asleep(self, name: str) -> Callable[[], Any]:
        async def look() -> bool:
            return self._seen[name].asleep()

        return look

    async def _is_ready(self, path: str) -> bool:
        status = (await self._api.call("GET", path)).get("status") or {}
        return any(
            each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ()
        )

    async def _cycle(self, name: str, address: str, burst: int) -> Cycle:
        seen = self._seen[name]
        seen.most, seen.scaled, seen.ready = 0, [], []
        first, self._numbers = self._numbers, self._numbers + burst
        ledger = Ledger(objective_ms=TIMEOUT * 1000)
        load = OpenLoop(
            address, 80, "/predict", iter([0.0] * burst), ledger,
            form=bodies.FORMS["instances"], timeout=TIMEOUT, connections=burst, first_number=first,
        )  # fmt: skip
        await load.run()
        numbers = range(first, first + burst)
        began = min(entry.sent for entry in ledger.entries)
        ended = max(entry.ended for entry in ledger.entries)

        async def known() -> bool:
            """The records come on other connections than the answers."""
            answered = [entry.number for entry in ledger.entries if entry.outcome == "ok"]
            return all(self._items[number] for number in answered) and bool(seen.scaled and seen.ready)

        await self._until("the records of what was answered", known)
        sent = min(self._first[number] for number in numbers if number in self._first)
        return Cycle(
            backend=name,
            burst=burst,
            outcomes=dict(collections.Counter(entry.outcome for entry in ledger.entries)),
            executed=sum(self._items[number] > 0 for number in numbers),
            twice=sum(self._items[number] > 1 for number in numbers) + ledger.duplicated,
            replicas=seen.most,
            to_scale_ms=_ms(seen.scaled[0] - began),
            to_ready_ms=_ms(seen.ready[0] - began),
            ready_to_sent_ms=_ms(sent - seen.ready[0]),
            answered_ms=_ms(ended - began),
            late_ms=_ms(max((late for at, late in self._lateness if began <= at <= ended), default=0.0)),
        )

    async def _until(self, what: str, look: Callable[[], Any]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not await look():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {TIMEOUT:g} s for {what}; seen: {self._seen}")
            await asyncio.sleep(_LOOK)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


@contextlib.asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    """Something that runs as long as the body; where it ends before, the body is cancelled."""
    body = asyncio.current_task()
    task = asyncio.create_task(work)

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and body is not None:
            say(f"ended: {done.exception()!r}")
            body.cancel()

    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measure(asked: Asked) -> list[dict[str, Any]]:
    """Run everything; returns the cycles."""
    async with Api(Path(asked.pki), asked.server) as api:
        bench = Bench(asked, api)
        await bench.run()
    return [asdict(cycle) for cycle in bench.cycles]


def main() -> int:
    """Entry point."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asked = json.load(sys.stdin)
    for name in ("names", "bursts"):
        asked[name] = tuple(asked[name])
    print(json.dumps(asyncio.run(measure(Asked(**asked)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
