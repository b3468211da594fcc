"""One router for several namespaces: equal names are apart, and no tenant costs another its answers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from penstock_wire.control.router_settings import encode_tenants
from tests.process.router.conftest import MakeRouter, MakeUpstream
from tests.process.router.test_router_memory import HELD, LIMIT, MIB, number
from tests.process.router.test_router_reports import Operator
from tests.support.http.router_upstream import Answer, Seen, hang
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until

HELD_OF_B, MOST_OF_A = 8, 1000
PORTS = 30


class Tenant:
    """A namespace with an endpoint `e` of a backend `m`, and its ports."""

    def __init__(self, *targets: str) -> None:
        self.port, self.door = free_port(), free_port()
        self.targets = targets

    def part(self) -> dict[str, Any]:
        """What the settings have of it."""
        served = endpoint("e", backend("m", *self.targets), port=self.port, coldStart=HELD)
        return {"port": self.door, "endpoints": [served]}

    @property
    def urls(self) -> list[str]:
        """Where its endpoint is: at its port, and at the front door."""
        return [f"http://127.0.0.1:{self.port}/x", f"http://127.0.0.1:{self.door}/e/x"]


def settle(process: RouterProcess, tenants: dict[str, Tenant]) -> None:
    """Write the settings file."""
    parts = {name: tenant.part() for name, tenant in tenants.items()}
    fresh = process.path.with_suffix(".new")
    fresh.write_text(json.dumps({"v": 1, "endpoints": [], "tenants": parts}))
    fresh.replace(process.path)


async def ask(process: RouterProcess, url: str, **more: Any) -> int:
    """The status of an answer."""
    async with process.session.post(url, **more) as answer:
        await answer.read()
        return answer.status


async def test_namespaces_share_no_name_and_one_that_goes_leaves_the_others_alone(
    router: MakeRouter, upstream: MakeUpstream
) -> None:
    pods = [await upstream(), await upstream()]
    tenants = {name: Tenant(pod.target) for name, pod in zip("ab", pods, strict=True)}
    process = router("--shared")
    settle(process, tenants)
    await process.start()
    for name, pod, other in zip("ab", pods, reversed(pods), strict=True):
        before = len(other.seen)
        for url in tenants[name].urls:
            assert await ask(process, url) == 200
        assert (len(pod.seen), len(other.seen)) == (2, before)
    assert await ask(process, f"{process.data}/e/x") == 404
    metrics = await process.metrics()
    for name in "ab":
        counted = f'requests_total{{backend="m",code="200",endpoint="e",namespace="{name}",reason=""}} 2.0'
        assert counted in metrics
    assert 'penstock_router_connections{namespace="a"} 2.0' in metrics
    one = (await process.ask("/metrics?namespace=a", method="GET", base=process.admin)).body.decode()
    assert [line for line in metrics.splitlines() if 'namespace="a"' in line] == [
        line for line in one.splitlines() if "namespace=" in line
    ]
    gone = tenants.pop("a")
    settle(process, tenants)

    async def closed() -> bool:
        try:
            await ask(process, gone.urls[0])
        except aiohttp.ClientConnectionError:
            return True
        return False

    while not await closed():
        pass
    assert await ask(process, tenants["b"].urls[0]) == 200
    assert 'namespace="a"' not in await process.metrics()
    tenants["a"] = Tenant(pods[0].target)
    settle(process, tenants)
    await until(lambda: f"{tenants['a'].port}" in "".join(process.log) or None)
    assert await ask(process, tenants["a"].urls[0]) == 200


async def test_what_is_logged_of_a_namespace_names_it(router: MakeRouter) -> None:
    tenants = {name: Tenant(f"127.0.0.1:{free_port()}") for name in "ab"}
    process = router("--shared", "--access-log=1")
    settle(process, tenants)
    await process.start()
    for name in "ab":
        assert await ask(process, tenants[name].urls[0], headers={"x-penstock-timeout-ms": "300"}) == 504
    for message in ("ports bound", "pod cannot be reached", "an error was answered", "request"):
        for name in "ab":
            sought = (f'"{message}"', f'"namespace": "{name}"')
            await until(lambda sought=sought: any(all(s in line for s in sought) for line in process.log))


async def test_a_change_of_one_namespace_is_all_that_is_sent_and_the_others_stay(
    router: MakeRouter, upstream: MakeUpstream, tmp_path: Path
) -> None:
    """A change of other settings is refused, and the operator then sends what fits to those in effect."""
    operator = Operator()
    control = await upstream(operator)
    tenants = {name: Tenant() for name in "abc"}
    parts = {name: json.dumps(tenant.part()).encode() for name, tenant in tenants.items()}
    (tmp_path / "token").write_text("tok")
    process = router("--shared", f"--report-to=http://{control.target}", f"--token-file={tmp_path / 'token'}")
    operator.settings = json.loads(encode_tenants(1, parts, digest="first"))
    settle(process, {})
    await process.start()
    await until(lambda: operator.reports[-1]["settingsDigest"] == "first" and operator.reports[-1]["changes"])
    tenants["b"].port = free_port()
    part = {"b": json.dumps(tenants["b"].part()).encode()}
    operator.settings = json.loads(encode_tenants(3, part, digest="third", base="second"))
    await until(lambda: any("found one of second" in line for line in process.log))
    assert operator.reports[-1]["settingsDigest"] == "first"
    operator.settings = json.loads(encode_tenants(3, part, digest="third", base="first", gone=["a"]))
    await until(lambda: operator.reports[-1]["settingsDigest"] == "third")
    await until(lambda: operator.reports[-1]["tenants"]["b"]["endpoints"]["e"].get("listening"))
    assert operator.reports[-1]["tenants"].keys() == {"b", "c"}


class Taking(Operator):
    """Says on which report the next can build, and adds them up."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = True
        self.added: dict[str, Any] = {}

    async def __call__(self, seen: Seen) -> Answer:
        answer = await super().__call__(seen)
        last = self.reports[-1]
        self.added = (self.added if last["base"] else {}) | last["tenants"]
        more = f', "taken": {last["seq"] if self.takes else 0}}}'
        return dataclasses.replace(answer, body=answer.body.rstrip()[:-1] + more.encode())


async def test_a_report_leaves_out_what_has_not_changed_since_one_that_the_operator_took(
    router: MakeRouter, upstream: MakeUpstream, tmp_path: Path
) -> None:
    operator, pod = Taking(), await upstream()
    control = await upstream(operator)
    tenants = {name: Tenant(pod.target) for name in "abc"}
    (tmp_path / "token").write_text("tok")
    process = router("--shared", f"--report-to=http://{control.target}", f"--token-file={tmp_path / 'token'}")
    parts = {name: json.dumps(tenant.part()).encode() for name, tenant in tenants.items()}
    operator.settings = json.loads(encode_tenants(1, parts, digest="first"))
    settle(process, {})
    await process.start()

    def answered(name: str) -> int:
        totals = operator.added[name]["endpoints"]["e"].get("backends", {}).get("m", {})
        return int(totals.get("requests", 0))

    async def quiet() -> None:
        last = operator.reports[-1]["seq"]
        await until(lambda: operator.reports[-1]["seq"] > last + 2 and not operator.reports[-1]["tenants"])

    await quiet()
    assert operator.added.keys() == tenants.keys()
    assert all(each["door"] and each["endpoints"]["e"]["listening"] for each in operator.added.values())
    for turn in range(1, 3):
        seen = len(operator.reports)
        assert await ask(process, tenants["b"].urls[0]) == 200
        await until(lambda turn=turn: answered("b") == turn)
        await quiet()
        assert {name for each in operator.reports[seen:] for name in each["tenants"]} == {"b"}
    operator.takes = False
    await until(lambda: not operator.reports[-1]["base"])
    assert (operator.added.keys(), answered("b")) == (tenants.keys(), 2)


async def test_heads_that_are_remembered_take_no_more_memory_however_many_ports_there_are(
    router: MakeRouter,
) -> None:
    """Each port could remember 2.5 MB of them."""
    own = [{"path": "/x", "body": "ok"}]
    ports = {free_port() for _ in range(PORTS)}
    served = [endpoint(f"e{port}", backend("m"), port=port, static=own) for port in ports]
    process = router("--shared", f"--memory-limit={LIMIT}")
    part = {"port": free_port(), "endpoints": served}
    process.path.write_text(json.dumps({"v": 1, "endpoints": [], "tenants": {"a": part}}))
    await process.start()
    before = process.rss()
    for port in ports:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for head in range(200):
            fields = "".join(f"f{place}-{head}: {head}-{place}\r\n" for place in range(44))
            writer.write(f"GET /x HTTP/1.1\r\nhost: {'a' * 900}\r\n{fields}\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
        writer.close()
    assert process.rss() - before < PORTS * MIB


async def test_copies_for_mirrors_of_one_namespace_cost_no_other_what_it_holds(
    router: MakeRouter, upstream: MakeUpstream
) -> None:
    """They would fill the memory, and cannot give way."""

    async def answer(seen: Seen) -> Answer:
        return Answer(body=b"1")

    pod, slow = await upstream(answer), await upstream(hang)
    tenants = {"a": Tenant(pod.target), "b": Tenant()}
    parts = {name: tenant.part() for name, tenant in tenants.items()}
    parts["a"]["endpoints"][0]["mirrors"] = [{"name": "slow", "targets": [slow.target]}]
    process = router("--shared", f"--memory-limit={LIMIT}")
    process.path.write_text(json.dumps({"v": 1, "endpoints": [], "tenants": parts}))
    await process.start()
    body = bytes(MIB)
    held = [asyncio.ensure_future(ask(process, tenants["b"].urls[0], data=body)) for _ in range(HELD_OF_B)]
    while f'held_requests{{backend="",namespace="b"}} {HELD_OF_B}.0' not in await process.metrics():
        pass
    for _ in range(2 * LIMIT // 3 // MIB):
        assert await ask(process, tenants["a"].urls[0], data=body) == 200
    dropped = await process.metrics()
    assert 'reason="in_flight"' in dropped or 'reason="pressure"' in dropped
    parts["b"]["endpoints"][0]["backends"][0]["targets"] = [pod.target]
    process.path.write_text(json.dumps({"v": 1, "endpoints": [], "tenants": parts}))
    assert set(await asyncio.gather(*held)) == {200}


async def test_a_flood_of_one_namespace_costs_no_other_what_it_holds(
    router: MakeRouter, upstream: MakeUpstream
) -> None:
    """Bodies of its own fill the memory; another's, which came first and are as large, stay."""
    tenants = {"a": Tenant(), "b": Tenant()}
    process = router("--shared", f"--memory-limit={LIMIT}")
    settle(process, tenants)
    await process.start()
    body = bytes(MIB // 2)
    held = [asyncio.ensure_future(ask(process, tenants["b"].urls[0], data=body)) for _ in range(HELD_OF_B)]
    while f'held_requests{{backend="",namespace="b"}} {HELD_OF_B}.0' not in await process.metrics():
        pass

    async def unannounced() -> AsyncIterator[bytes]:
        yield body

    flood = []
    for _ in range(MOST_OF_A):
        flood.append(asyncio.ensure_future(ask(process, tenants["a"].urls[0], data=unannounced())))
        await asyncio.wait(flood[-1:], timeout=0.01)
        if number(await process.metrics(), "penstock_router_connections_gave_way_total"):
            break
    assert any(task.done() for task in flood), "expected the flood to be larger than the memory"
    pod = await upstream()
    tenants["b"].targets = (pod.target,)
    settle(process, tenants)
    assert set(await asyncio.gather(*held)) == {200}
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
