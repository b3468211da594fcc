"""Another pod is tried only where nothing was executed; the servers' ledgers are the judges."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from prometheus_client import generate_latest

from penstock_router.forwarding.retry import MAX_MOVES
from penstock_wire.headers import get
from tests.support.clocks import fake_loop
from tests.support.http.router_upstream import Answer, Seen, UpstreamServer, cut, echo, hang, refuse
from tests.support.http.stream_peer import Scripted, Wire, says, scripted, unread
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import backend, endpoint, until
from tests.support.worlds.router_world import World

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def executed(*servers: UpstreamServer) -> Counter[str]:
    return sum((server.executed for server in servers), Counter())


async def garbage(seen: Seen) -> Answer:
    """Answer what is no HTTP."""
    return Answer(headers=b"no colon\r\n")


@pytest.mark.parametrize("reason", ["draining", "queue_full", "deadline"])
async def test_a_refusal_that_was_not_admitted_is_tried_on_another_pod(
    upstream: Any, router: Any, reason: str
) -> None:
    refusing, well = await upstream(refuse(reason)), await upstream()
    process = await router().start(endpoint("e", backend("b", refusing.target, well.target)))
    replies = await asyncio.gather(*(process.ask() for _ in range(50)))
    assert {reply.status for reply in replies} == {200}
    assert len(well.seen) == 50
    assert set(executed(refusing, well).values()) == {1}
    assert len(refusing.seen) >= 1
    assert f'penstock_router_retries_total{{reason="{reason}"}}' in await process.metrics()
    # Those that a pod has counted are marked for the next one; a pod that drains counts none.
    refused = {seen.header("x-request-id") for seen in refusing.seen} if reason != "draining" else set()
    assert {seen.header("x-request-id") for seen in well.seen if seen.header("x-penstock-retry")} == refused
    assert not any(seen.header("x-penstock-retry") for seen in refusing.seen)


async def test_a_request_is_handed_back_so_often_and_no_more(upstream: Any, router: Any) -> None:
    """Then it goes over HTTP/1.1, where a sidecar hands none back; a pod that does has refused it."""
    moving = await upstream(refuse("moved"))
    process = await router().start(endpoint("e", backend("b", moving.target), retries=1))
    assert (await process.ask()).status == 503
    assert len(moving.seen) == MAX_MOVES + 2
    well = await upstream()
    process = await router().start(endpoint("e", backend("b", moving.target, well.target), retries=1))
    replies = await asyncio.gather(*(process.ask() for _ in range(50)))
    assert {reply.status for reply in replies} == {200}


def test_a_try_that_is_not_made_is_not_counted() -> None:
    """The time of a request is over when it comes back: it is answered, and no pod is asked again."""

    async def main() -> None:
        world = World("a", timeout_ms=1000)
        world.network.handed_back.update(("in-time", "late"))
        assert (await world.ask("in-time")).status == 200
        world.network.back_after = 1.0
        answer = await world.ask("late")
        assert (answer.status, get(answer.headers, b"x-penstock-reason")) == (504, b"deadline")
        assert 'penstock_router_retries_total{reason="moved"} 1.0' in generate_latest(world.metrics).decode()
        assert world.state.report()["b"].retries == 1
        world.check_nothing_is_left()

    fake_loop.run(main())


async def test_a_pod_that_drains_is_left_alone_at_once(upstream: Any, router: Any) -> None:
    refusing, well = await upstream(refuse("draining")), await upstream()
    process = await router().start(endpoint("e", backend("b", refusing.target, well.target), retries=0))
    for _ in range(60):
        assert (await process.ask()).status == 200
    assert len(refusing.seen) == 1


@pytest.mark.parametrize("reason", ["model_unreachable", "not_ready"])
async def test_a_pod_whose_model_takes_nothing_is_passed_over(
    upstream: Any, router: Any, reason: str
) -> None:
    """It refuses at once, so that it always has room: without this it would get every request first.

    No retry is needed: its requests wait for a pod.
    """
    refusing, well = await upstream(refuse(reason)), await upstream()
    process = await router().start(endpoint("e", backend("b", refusing.target, well.target), retries=0))
    for _ in range(60):
        assert (await process.ask()).status == 200
    assert len(refusing.seen) < 20
    assert len(well.seen) == 60


@pytest.mark.parametrize(("retries", "status"), [(1, 200), (0, 502)])
async def test_a_request_that_a_pod_ended_its_connection_before_is_tried_again(
    router: Any, retries: int, status: int
) -> None:
    """A pod that ends closes its idle connections; one may have been used in that moment."""

    async def end_unread(wire: Wire) -> None:
        await wire.head()
        await wire.send(OK)
        assert await unread(wire)
        wire.reset()

    serve = says(OK)
    async with scripted(Scripted()) as peer:
        peer.scripts = [end_unread, serve]
        pod = backend("b", f"127.0.0.1:{peer.port}")
        process = await router().start(endpoint("e", pod, retries=retries))
        assert [(await process.ask(method="GET")).status for _ in range(2)] == [200, status]
        assert ('reason="connection_closed"' in await process.metrics()) == (retries > 0)


async def test_a_pod_that_cannot_be_reached_is_passed_over(upstream: Any, router: Any) -> None:
    nobody, well = free_port(), await upstream()
    process = await router().start(endpoint("e", backend("b", f"127.0.0.1:{nobody}", well.target)))
    replies = await asyncio.gather(*(process.ask() for _ in range(50)))
    assert {reply.status for reply in replies} == {200}
    assert 'reason="connect_failed"' in await process.metrics()


@pytest.mark.parametrize(
    ("behave", "timeout_ms", "status", "reason"),
    [
        (cut, 60_000, 502, "model_unreachable"),
        (hang, 1500, 504, "deadline"),
        (garbage, 60_000, 502, "bad_answer"),
    ],
)
async def test_what_may_have_been_executed_is_never_sent_again(
    upstream: Any, router: Any, behave: Any, timeout_ms: int, status: int, reason: str
) -> None:
    first, second = await upstream(behave), await upstream(behave)
    process = await router().start(
        endpoint("e", backend("b", first.target, second.target), retries=5, timeoutMs=timeout_ms)
    )
    replies = await asyncio.gather(*(process.ask() for _ in range(20)))
    assert {reply.status for reply in replies} == {status}
    assert {reply.document["reason"] for reply in replies} == {reason}
    await until(lambda: len(executed(first, second)) == 20)
    assert set(executed(first, second).values()) == {1}


async def test_an_error_of_the_model_is_an_answer(upstream: Any, router: Any) -> None:
    async def error(seen: Seen) -> Answer:
        return Answer(status=503, body=b"busy", headers=b"retry-after: 3\r\ncontent-type: text/x\r\n")

    first, second = await upstream(error), await upstream(error)
    process = await router().start(endpoint("e", backend("b", first.target, second.target), retries=3))
    reply = await process.ask()
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (503, b"busy", "3")
    assert reply.headers["content-type"] == "text/x"
    assert len(first.seen) + len(second.seen) == 1


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_tries_are_counted_and_the_last_refusal_is_the_answer(
    upstream: Any, router: Any, retries: int
) -> None:
    servers = [await upstream(refuse("deadline")) for _ in range(4)]
    process = await router().start(
        endpoint("e", backend("b", *(server.target for server in servers)), retries=retries)
    )
    reply = await process.ask()
    assert (reply.status, reply.document, reply.headers["retry-after"]) == (503, {"reason": "deadline"}, "7")
    assert reply.headers["x-penstock-reason"] == "deadline"
    assert sum(len(server.seen) for server in servers) == retries + 1
    assert max(len(server.seen) for server in servers) == 1


@pytest.mark.parametrize("retries", [0, 5])
async def test_where_nothing_may_wait_each_pod_is_asked_for_room_once_and_a_refusal_is_the_answer(
    upstream: Any, router: Any, retries: int
) -> None:
    """Whatever the retries: a refusal for want of room is not counted as a try."""
    servers = [await upstream(refuse("queue_full", status=429)) for _ in range(4)]
    process = await router().start(
        endpoint(
            "e",
            backend("b", *(server.target for server in servers)),
            retries=retries,
            coldStart={"maxPending": 0},
        )
    )
    reply = await process.ask()
    assert (reply.status, reply.document, reply.headers["retry-after"]) == (
        429,
        {"reason": "queue_full"},
        "7",
    )
    assert reply.headers["x-penstock-reason"] == "queue_full"
    assert [len(server.seen) for server in servers] == [1, 1, 1, 1]


async def test_a_pod_is_asked_for_room_once_however_long_the_others_take_to_refuse(
    upstream: Any, router: Any
) -> None:
    """A pod counts as full for 0.1 s; a round of many or slow pods takes longer, and must end."""

    async def slow(seen: Seen) -> Answer:
        await asyncio.sleep(0.08)
        return await refuse("queue_full")(seen)

    servers = [await upstream(slow) for _ in range(4)]
    process = await router().start(
        endpoint("e", backend("b", *(server.target for server in servers)), coldStart={"maxPending": 0})
    )
    assert (await process.ask()).status == 503
    assert [len(server.seen) for server in servers] == [1, 1, 1, 1]


async def test_the_only_pod_is_tried_again_when_it_could_not_be_reached(upstream: Any, router: Any) -> None:
    port = free_port()
    process = await router().start(
        endpoint("e", backend("b", f"127.0.0.1:{port}"), retries=1, coldStart={"timeoutMs": 500})
    )
    failed = await process.ask()
    assert (failed.status, failed.document["reason"]) == (502, "model_unreachable")
    assert f"127.0.0.1:{port}" in failed.document["detail"]
    server = await upstream(port=port)
    assert (await process.ask()).status == 200
    assert len(server.seen) == 1


async def test_a_client_that_leaves_takes_its_request_back(upstream: Any, router: Any) -> None:
    server = await upstream(hang)
    process = await router().start(endpoint("e", backend("b", server.target)))
    asking = asyncio.create_task(process.ask())
    await until(lambda: server.running)
    asking.cancel()
    await until(lambda: server.abandoned == 1)
    server.behave = echo
    assert (await process.ask()).status == 200
    assert 'code="499",endpoint="e"' in await process.metrics()


async def test_no_request_is_executed_twice_in_a_storm_of_refusals_cuts_and_errors(
    upstream: Any, router: Any
) -> None:
    def storm(offset: int) -> Any:
        turns = itertools.count(offset)
        kinds = [echo, refuse("queue_full"), cut, echo, refuse("deadline"), echo, echo]

        async def behave(seen: Seen) -> Answer:
            return await kinds[next(turns) % len(kinds)](seen)

        return behave

    servers = [await upstream(storm(index)) for index in range(3)]
    process = await router().start(
        endpoint("e", backend("b", *(server.target for server in servers)), retries=2)
    )

    async def ask(index: int) -> tuple[str, int]:
        identity = f"id-{index}"
        return identity, (await process.ask(headers={"x-request-id": identity})).status

    results = dict(await asyncio.gather(*(ask(index) for index in range(400))))
    ledger = executed(*servers)
    assert max(ledger.values()) == 1
    assert set(results.values()) <= {200, 502, 503}
    for identity, status in results.items():
        # 200 and 502 (cut) were executed; a refusal never was.
        assert ledger[identity] == (0 if status == 503 else 1), (identity, status)
