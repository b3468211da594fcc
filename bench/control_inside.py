"""The measurements of `bench.control`, run inside the cluster's network.

One JSON document on the standard input says what to do, one on the standard output what was found; what
happens meanwhile goes to the standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from bench import control_resources as made
from bench.control_api import APPLY, Api, Operator
from bench.figures import Figures

SYSTEM = "penstock-system"
LISTEN = "127.0.0.1:8015"
CHILDREN = (
    "/apis/apps/v1/deployments",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/serviceaccounts",
)
OURS = "labelSelector=app.kubernetes.io/managed-by=penstock"


def say(text: str) -> None:
    """Tell the user what happens."""
    print(f"[control] {text}", file=sys.stderr, flush=True)


class Run:
    """One run on one fresh cluster.

    Args:
        asked: what `bench.control` wrote: sizes, paths, the seed.
        api: the apiserver.
    """

    def __init__(self, asked: dict[str, Any], api: Api) -> None:
        self._asked, self._api = asked, api
        self._backends, self._endpoints = int(asked["backends"]), int(asked["endpoints"])
        self._where = made.namespaces(int(asked["namespaces"]))
        self._log = Path(asked["folder"]) / "operator.log"
        self.figures = Figures()
        self.writes: dict[str, dict[str, float]] = {}

    async def all(self) -> None:
        """Everything, in order."""
        api = self._api
        for name in (SYSTEM, *self._where):
            await api.call("POST", "/api/v1/namespaces", made.namespace(name))
        pods = self._backends * 2 + len(self._where)
        for number in range(math.ceil(pods / made.PODS_A_NODE) + 1):
            await api.call("POST", "/api/v1/nodes", made.node(number))
        await self._bare()
        objects = [
            ("POST", path, json.dumps(obj).encode(), "")
            for path, obj in made.resources(self._backends, self._endpoints, self._where)
        ]
        await api.many(objects, workers=8)
        say(f"{len(objects)} resources are there; starting the operator")
        async with self._operator() as operator:
            await self._cold(operator)
            await self._rest(operator, "after cold")
            await self._changes(operator)
        async with self._operator() as operator:
            await self._restart(operator)
            await self._rest(operator, "after restart")

    def _operator(self) -> Operator:
        command = [
            *(sys.executable, "-m", "penstock_operator", "--kubeconfig", str(self._asked["kubeconfig"])),
            *("--listen", LISTEN, "--operator-namespace", SYSTEM, "--report-to", f"http://{LISTEN}"),
        ]
        return Operator(command, url=f"http://{LISTEN}", log=self._log, env=dict(os.environ))

    # -- the bare loop -----------------------------------------------------------------------------------

    async def _bare(self) -> None:
        """The applies that the operator will make, in other namespaces and without owners."""
        where, warm = made.namespaces(len(self._where), "bare"), ["bare-warm"]
        for name in where + warm:
            await self._api.call("POST", "/api/v1/namespaces", made.namespace(name))
        # NB: the first apply of each kind waits for the apiserver to read the kind's schema.
        await self._apply(10, 5, warm)
        seconds, count = await self._apply(self._backends, self._endpoints, where)
        self.figures.add("cold/bare", seconds, "s")
        self.figures.add("cold/bare_applies", count, "applies")
        say(f"bare loop: {count} applies in {seconds:.1f} s")
        for name in where + warm:
            await self._api.call("DELETE", f"/api/v1/namespaces/{name}")
        await _until(self._gone("bare-"), 300)
        say("bare loop: everything removed")

    async def _apply(self, backends: int, endpoints: int, where: list[str]) -> tuple[float, int]:
        """Make the applies; returns seconds and how many."""
        children = await asyncio.to_thread(_children, backends, endpoints, where)
        query = "fieldManager=penstock&force=true"
        calls = [("PATCH", f"{path}?{query}", body, APPLY) for path, body in children]
        return await self._api.many(calls, workers=8), len(calls)

    def _gone(self, prefix: str) -> Callable[[], Any]:
        async def look() -> bool:
            left = await self._api.items("/api/v1/namespaces")
            return not any(obj["metadata"]["name"].startswith(prefix) for obj in left)

        return look

    # -- measures ----------------------------------------------------------------------------------------

    async def _cold(self, operator: Operator) -> None:
        wanted = self._backends + self._endpoints
        while sum(n for what, n in (await operator.writes()).items() if what.startswith("status")) < wanted:
            if time.monotonic() - operator.began > 300:
                raise TimeoutError("the operator did not write all statuses within 300 s")
            await asyncio.sleep(1.0)  # a look costs the operator some CPU, too
        await _until(self._done, 120)
        seconds = time.monotonic() - operator.began
        written = await operator.writes()
        self.writes["cold, to the last child and status"] = written
        bare = self.figures.samples["cold/bare"][-1]
        self.figures.add("cold/operator", seconds, "s")
        self.figures.add("cold/ratio", seconds / bare, "times")
        say(f"cold: {seconds:.1f} s, {seconds / bare:.2f} times the bare loop; {written}")
        self.figures.add("cold/cpu", operator.cpu(), "s")
        say(f"CPU by thread: {operator.threads()}")
        await _until(self._serving, 300)
        ended, runs = await operator.quiet(seconds=5, within=300)
        self.figures.add("cold/settled", ended - operator.began, "s")
        self.figures.add("cold/reconciles", runs, "runs")
        self.writes["cold, until quiet"] = await operator.writes()
        self._memory(operator, "cold")
        say(f"cold: quiet after {ended - operator.began:.1f} s; {self.writes['cold, until quiet']}")

    async def _done(self) -> bool:
        """Whether every child exists and every status is of its object's current generation."""
        for plural in ("modelbackends", "modelendpoints"):
            for obj in await self._api.items(f"{made.GROUP}/{plural}"):
                if (obj.get("status") or {}).get("observedGeneration") != obj["metadata"]["generation"]:
                    return False
        there = 0
        for path in CHILDREN:
            objects = await self._api.items(f"{path}?{OURS}")
            there += sum(obj["metadata"]["namespace"] in self._where for obj in objects)
        routers = min(len(self._where), self._endpoints)
        return there == len(CHILDREN) * (self._backends + routers) + self._endpoints

    async def _serving(self) -> bool:
        """Whether every backend reports one ready pod."""
        backends = await self._api.items(f"{made.GROUP}/modelbackends")
        return all((backend.get("status") or {}).get("readyReplicas") == 1 for backend in backends)

    async def _restart(self, operator: Operator) -> None:
        # NB: for some seconds after its start a status may wait for reports; that look belongs to it too.
        ended, runs = await operator.quiet(seconds=12, within=300)
        written = await operator.writes()
        self.writes["restart"] = written
        self.figures.add("restart/quiet", ended - operator.began, "s")
        self.figures.add("restart/reconciles", runs, "runs")
        self.figures.add("restart/writes", sum(written.values()), "writes")
        self._memory(operator, "restart")
        say(f"restart: quiet after {ended - operator.began:.1f} s; writes {written}")

    async def _rest(self, operator: Operator, when: str) -> None:
        before, began = operator.cpu(), time.monotonic()
        await asyncio.sleep(float(self._asked["rest"]))
        used = (operator.cpu() - before) / (time.monotonic() - began) * 100
        self.figures.add("rest/cpu", used, "% of a core")
        say(f"at rest {when}: {used:.2f} % of a core")

    def _memory(self, operator: Operator, when: str) -> None:
        now, highest = operator.memory()
        self.figures.add("memory/rss", now, "MB")
        self.figures.add("memory/highest", highest, "MB")
        say(f"memory after {when}: {now:.0f} MB, at its highest {highest:.0f} MB")

    async def _changes(self, operator: Operator) -> None:
        """Single changes, one after the other: how long until the child is written, and what is written."""
        draw = random.Random(int(self._asked["seed"]))
        count = int(self._asked["changes"])
        for what, child, patch in (
            ("image", "deployments", _image),
            ("batching", "configmaps", _batching),
        ):
            numbers = draw.sample(range(self._backends), min(count, self._backends))
            before, took = await operator.writes(), []
            for turn, number in enumerate(numbers):
                at, name = self._where[number % len(self._where)], f"model-{number:04}"
                took.append(await self._change(at, name, child, patch(name, turn)))
            await operator.quiet(seconds=3, within=120)
            after = await operator.writes()
            self.writes[f"one change of {what}"] = {
                key: round((value - before.get(key, 0.0)) / len(numbers), 2)
                for key, value in after.items()
                if value != before.get(key, 0.0)
            }
            took.sort()
            for share in (0.5, 0.95, 1.0):
                value = took[min(len(took) - 1, math.ceil(share * len(took)) - 1)]
                self.figures.add(f"change/{what}/p{share * 100:.0f}", value * 1000, "ms")
            median, slowest = took[len(took) // 2] * 1000, took[-1] * 1000
            say(f"one change of {what}: median {median:.0f} ms, slowest {slowest:.0f} ms")
            say(f"its writes: {self.writes[f'one change of {what}']}")

    async def _change(self, at: str, name: str, child: str, patch: dict[str, Any]) -> float:
        group = "/apis/apps/v1" if child == "deployments" else "/api/v1"
        rendered = f"{name}-backend" + ("" if child == "deployments" else "-settings")
        async with _watching(self._api, f"{group}/namespaces/{at}/{child}") as events:
            began = time.monotonic()
            await self._api.call("PATCH", f"{made.GROUP}/namespaces/{at}/modelbackends/{name}", patch)
            async with asyncio.timeout(60):
                while True:
                    obj, seen = await events.get()
                    if obj["metadata"]["name"] == rendered:
                        return seen - began


@contextlib.asynccontextmanager
async def _watching(api: Api, path: str) -> AsyncIterator[asyncio.Queue[tuple[dict[str, Any], float]]]:
    """Objects of a collection as they change, with the moment at which each was seen."""
    events: asyncio.Queue[tuple[dict[str, Any], float]] = asyncio.Queue()
    opened = asyncio.Event()

    async def follow() -> None:
        async for _, obj in api.watch(path, opened=opened.set):
            events.put_nowait((obj, time.monotonic()))

    task = asyncio.create_task(follow())
    try:
        await opened.wait()
        yield events
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _image(name: str, turn: int) -> dict[str, Any]:
    return {"spec": {"model": {"container": {"image": f"example.invalid/model:{turn + 2}"}}}}


def _batching(name: str, turn: int) -> dict[str, Any]:
    return {"spec": {"batching": {"maxBatchSize": 17 + turn}}}


def _children(backends: int, endpoints: int, where: list[str]) -> list[tuple[str, bytes]]:
    """The objects that the operator renders for these resources, encoded, in the order of its applies."""
    from penstock_operator.api import ModelBackend, ModelEndpoint
    from penstock_operator.desired import backend, deployment, objects, router, settings
    from penstock_operator.desired.config import RenderConfig
    from penstock_operator.kinds import kind_of

    config = RenderConfig(sidecar_image="penstock/sidecar", router_image="penstock/router")
    children: list[dict[str, Any]] = []
    ends: dict[str, list[ModelEndpoint]] = {}
    for number, (_, obj) in enumerate(made.resources(backends, endpoints, where)):
        stored = {**obj, "metadata": {**obj["metadata"], "uid": f"uid-{number}", "generation": 1}}
        if obj["kind"] == "ModelBackend":
            parsed = ModelBackend.parse(stored)
            document = _first(settings.for_sidecar(parsed, None))
            pinned = deployment.pinned_template(parsed, config=config, new_secret="0" * 32, live=None)
            children += backend.backend_objects(parsed, document=document, pinned=pinned, config=config)
        else:
            there = ends.setdefault(obj["metadata"]["namespace"], [])
            there.append(ModelEndpoint.parse(stored))
            children.append(router.endpoint_service(there[-1], 19_999 + len(there)))
    for at, there in ends.items():
        document = _first(settings.for_router(()))
        children += router.router_objects(at, there, config=config, document=document)
    calls = []
    for child in map(objects.stamped, children):
        child["metadata"].pop("ownerReferences", None)
        meta = child["metadata"]
        calls.append((kind_of(child).path(meta["namespace"], meta["name"]), json.dumps(child).encode()))
    return calls


def _first(make: Callable[[int], Any]) -> bytes:
    from penstock_operator.desired import settings

    return settings.next_version(make, recorded=None, status_version=0, reported=0).document


async def _until(look: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        await asyncio.sleep(0.5)


async def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """Run everything.

    Args:
        asked: sizes, paths, the seed.

    Returns:
        The figures, and the writes by situation.
    """
    async with Api(Path(asked["pki"]), asked["server"]) as api:
        run = Run(asked, api)
        await run.all()
    return {"figures": run.figures.document(), "writes": run.writes}


def main() -> int:
    """Entry point."""
    asked = json.load(sys.stdin)
    with Path(asked["folder"], "kwok.log").open("wb") as log:
        kwok = subprocess.Popen(asked["kwok"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        print(json.dumps(asyncio.run(measure(asked))))
    finally:
        kwok.kill()
        kwok.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
