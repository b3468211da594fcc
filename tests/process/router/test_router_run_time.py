"""Settings that change while the router runs, its ports, its end."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import Any

import aiohttp
import pytest

from tests.support.clocks.waiting import SECONDS
from tests.support.http.router_upstream import Answer, Seen
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until


class Slow:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, seen: Seen) -> Answer:
        await self.go.wait()
        return Answer()


def own(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def refused(port: int) -> None:
    """Wait until nobody listens on a port."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except (ConnectionRefusedError, ConnectionResetError):  # reset: met in the moment of closing
            return
        writer.close()
        assert asyncio.get_running_loop().time() < deadline, f"port {port} is still listened on"
        await asyncio.sleep(0.01)


async def test_weights_change_between_two_requests(upstream: Any, router: Any) -> None:
    first, second = await upstream(), await upstream()

    def split(a: int, b: int) -> dict[str, Any]:
        return endpoint("e", backend("a", first.target, weight=a), backend("b", second.target, weight=b))

    process = await router().start(split(1, 0))
    for _ in range(50):
        assert (await process.ask()).headers["x-penstock-backend"] == "a"
    process.settle(split(0, 1))
    await process.until_routes(lambda routes: routes[0]["backends"][1]["weight"] == 1)
    for _ in range(50):
        assert (await process.ask()).headers["x-penstock-backend"] == "b"


async def test_endpoints_come_and_go_with_their_ports(upstream: Any, router: Any) -> None:
    server = await upstream()
    first, second = free_port(), free_port()
    process = await router().start(endpoint("e", backend("b", server.target), port=first))
    process.settle(
        endpoint("e", backend("b", server.target), port=first),
        endpoint("f", backend("b", server.target), port=second),
    )
    await until(lambda: any('"ports bound"' in line and str(second) in line for line in process.log))
    assert (await process.ask("/", base=own(second))).status == 200
    assert (await process.ask("/f/")).status == 200
    process.settle(endpoint("f", backend("b", server.target), port=second))
    await refused(first)
    assert (await process.ask("/e")).status == 404
    assert (await process.ask("/", base=own(second))).status == 200


async def test_a_deleted_endpoint_answers_what_is_under_way(upstream: Any, router: Any) -> None:
    slow = Slow()
    server = await upstream(slow)
    port = free_port()
    process = await router().start(endpoint("e", backend("b", server.target), port=port))
    asking = asyncio.create_task(process.ask("/", base=own(port)))
    await until(lambda: server.running)
    process.settle(endpoint("f"))
    await refused(port)
    slow.go.set()
    assert (await asking).status == 200


async def test_clients_of_an_endpoint_that_leaves_are_sent_away(upstream: Any, router: Any) -> None:
    """Each answer closes its connection, and none is lost; an endpoint that comes back keeps connections."""
    server = await upstream()
    port = free_port()

    def document(**more: Any) -> dict[str, Any]:
        return endpoint("e", backend("b", server.target), port=port, **more)

    process = await router().start(document())
    async with aiohttp.ClientSession() as session:

        async def kept() -> bool:
            async with session.get(f"http://127.0.0.1:{port}/") as answer:
                assert answer.status == 200
                return answer.headers.get("connection") != "close"

        assert await kept()
        process.settle(document(leaving=True))
        async with asyncio.timeout(SECONDS):
            while await kept():
                pass
        assert not await kept(), "a new connection has one answer, too"
        process.settle(document())
        async with asyncio.timeout(SECONDS):
            while not await kept():
                pass


async def test_two_endpoints_swap_ports_in_one_change(upstream: Any, router: Any) -> None:
    first, second = await upstream(), await upstream()
    port, other = free_port(), free_port()

    def both(a: int, b: int) -> list[dict[str, Any]]:
        return [
            endpoint("a", backend("a", first.target), port=a),
            endpoint("b", backend("b", second.target), port=b),
        ]

    process = await router().start(*both(port, other))
    process.settle(*both(other, port))
    await process.until_routes(lambda routes: routes[0]["port"] == other)
    assert (await process.ask(base=own(port))).headers["x-penstock-backend"] == "b"
    assert (await process.ask(base=own(other))).headers["x-penstock-backend"] == "a"


async def test_a_port_that_is_taken_fails_its_endpoint_alone_and_is_tried_again(
    upstream: Any, router: Any
) -> None:
    server = await upstream()
    taken, free = free_port(), free_port()
    with socket.create_server(("127.0.0.1", taken)):
        process = await router().start(
            endpoint("bad", backend("b", server.target), port=taken),
            endpoint("good", backend("b", server.target), port=free),
            endpoint("twin", backend("b", server.target), port=free),
        )
        errors = {route["endpoint"]: route.get("error") for route in await process.routes()}
        assert errors["bad"].startswith(f"port {taken} cannot be bound")
        assert errors["good"] is None
        assert errors["twin"] == f"port {free} is taken by endpoint good"
        assert any('"endpoint has no port"' in line and errors["twin"] in line for line in process.log)
        assert (await process.ask(base=own(free))).status == 200
        assert (await process.ask("/bad/x")).status == 200
        assert (await process.ask("/readyz", method="GET", base=process.admin)).status == 200
    await process.until_routes(lambda routes: "error" not in routes[0])
    assert (await process.ask(base=own(taken))).status == 200


async def test_it_is_not_ready_without_settings(router: Any) -> None:
    """One with an operator waits for them."""
    process: RouterProcess = router(f"--report-to=http://127.0.0.1:{free_port()}")
    await process.launch()
    await until(lambda: any("cannot be read" in line for line in process.log))
    process.settle(endpoint("e"), version=1)
    await process.ready()
    assert (await process.ask("/readyz", method="GET", base=process.admin)).status == 200


async def test_alone_a_settings_file_that_is_missing_ends_the_process(router: Any) -> None:
    """While it runs, a file that vanishes leaves the settings that were in effect."""
    process: RouterProcess = router()
    await process.launch()
    assert await process.ended() == 2
    await until(lambda: any("cannot be read" in line and "router.json" in line for line in process.log))
    process = await router().start(endpoint("e"))
    process.path.unlink()
    await until(lambda: any("cannot be read" in line for line in process.log))
    assert [route["endpoint"] for route in await process.routes()] == ["e"]


def test_alone_it_needs_a_settings_file() -> None:
    done = subprocess.run([sys.executable, "-m", "penstock_router"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected --settings FILE or --report-to URL" in done.stderr


async def test_a_front_door_that_cannot_be_bound_ends_the_process(router: Any) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        process: RouterProcess = router(f"--listen=127.0.0.1:{squatter.getsockname()[1]}")
        await process.launch(endpoint("e"))
        assert await process.ended() == 1
    await until(lambda: any("cannot listen" in line for line in process.log))


async def test_sigterm_finishes_what_is_under_way_and_loses_nothing(
    upstream: Any, router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients with kept connections, requests under way and newcomers within the propagation delay."""
    slow = Slow()
    server, held_back = await upstream(), await upstream(slow)
    monkeypatch.setattr(RouterProcess, "program", "tests.support.processes.patient_router")
    process = await router("--propagation-delay=600s").start(
        endpoint("e", backend("b", server.target)), endpoint("slow", backend("s", held_back.target))
    )
    under_way = [asyncio.create_task(process.ask("/slow")) for _ in range(10)]
    await until(lambda: held_back.running == 10)
    stopping = asyncio.Event()
    statuses: list[int] = []

    async def client() -> None:
        while not stopping.is_set():
            statuses.append((await process.ask()).status)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    await until(lambda: len(statuses) > 50)
    process.signal()
    await until(lambda: any("drain begins" in line for line in process.log))
    unready = await process.ask("/readyz", method="GET", base=process.admin)
    assert (unready.status, unready.document["reason"]) == (503, "draining")
    before = len(statuses)
    await until(lambda: len(statuses) > before + 50)
    stopping.set()  # the routers of the Service without this one are known by now
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    process.signal(signal.SIGUSR1)
    await refused(int(process.data.rpartition(":")[2]))
    slow.go.set()
    assert {reply.status for reply in await asyncio.gather(*under_way)} == {200}
    assert await process.ended() == 0


async def test_a_router_that_drains_still_follows_its_settings(upstream: Any, router: Any) -> None:
    """Who has not yet learned that it ends gets what the endpoint is by then."""
    old, new = await upstream(), await upstream()
    process = await router("--propagation-delay=600s").start(endpoint("e", backend("old", old.target)))
    process.signal()
    await until(lambda: any("drain begins" in line for line in process.log))
    process.settle(endpoint("e", backend("new", new.target)))
    await process.until_routes(lambda routes: routes[0]["backends"][0]["name"] == "new")
    assert (await process.ask()).headers["x-penstock-backend"] == "new"
    assert not old.seen
    process.signal()
    assert await process.ended() == 0


async def test_held_requests_are_told_when_the_router_ends(router: Any) -> None:
    process = await router("--drain-timeout=800ms").start(endpoint("e", backend("b")))
    asking = asyncio.create_task(process.ask())
    while "held_requests{" not in await process.metrics():
        pass
    process.signal()
    reply = await asking
    assert (reply.status, reply.document["reason"]) == (503, "draining")
    assert "x-penstock-not-admitted" not in reply.headers
    assert await process.ended() == 0


async def test_a_second_sigterm_ends_it_at_once(upstream: Any, router: Any) -> None:
    server = await upstream(Slow())
    process = await router("--propagation-delay=300s").start(endpoint("e", backend("b", server.target)))
    asking = asyncio.create_task(process.ask())
    await until(lambda: server.running)
    process.signal()
    await until(lambda: any("drain begins" in line for line in process.log))
    process.signal()
    assert await process.ended() == 0
    ended = (await asyncio.gather(asking, return_exceptions=True))[0]
    assert isinstance(ended, aiohttp.ClientError) or ended.status == 502


async def test_sighup_reads_the_settings_again(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target)))
    before = sum("settings applied" in line for line in process.log)
    process.signal(signal.SIGHUP)
    await until(lambda: sum("settings applied" in line for line in process.log) > before)
    assert (await process.ask()).status == 200
