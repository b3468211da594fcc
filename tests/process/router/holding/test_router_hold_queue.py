"""Requests wait for a pod: how long, how many, who goes first, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import re
import socket
from typing import Any

import pytest

from penstock_router.endpoints import EndpointState, HoldOver
from penstock_router.holding.hold_queue import MAX_HELD_BYTES
from penstock_router.holding.release_window import FIRST_WINDOW
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pool import Pods
from penstock_wire.control.router_settings import Endpoint, WeightedBackend
from penstock_wire.errors import PenstockError, Reason
from tests.support.clocks import fake_loop
from tests.support.clocks.waiting import SECONDS
from tests.support.http.router_upstream import Answer, Seen, echo, refuse
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until


async def held(process: RouterProcess, *counts: int) -> int:
    """Wait until so many requests are held, or one of several numbers of them."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    while True:
        values = re.findall(r"penstock_router_held_requests\{.*?\} ([0-9.]+)", await process.metrics())
        if (count := int(sum(map(float, values)))) in counts:
            return count
        assert asyncio.get_running_loop().time() < deadline, values


async def test_held_requests_are_answered_in_order_when_a_pod_appears(upstream: Any, router: Any) -> None:
    """The first ones at once, and the next two with each answer.

    That is all that a pod can see of the order: those that are under way together have connections of their
    own, and which of these is read first is nobody's to say.
    """
    answers = asyncio.Semaphore(0)

    async def behave(seen: Seen) -> Answer:
        await answers.acquire()
        return await echo(seen)

    server = await upstream(behave)
    process = await router().start(endpoint("e", backend("b")))
    asking = []
    for index in range(20):
        asking.append(asyncio.create_task(process.ask(headers={"x-request-id": f"id-{index}"})))
        await held(process, index + 1)
    process.settle(endpoint("e", backend("b", server.target)))
    before = 0
    for read in range(FIRST_WINDOW, 21, 2):
        await until(lambda wanted=read: len(server.seen) >= wanted)
        together = {seen.identity for seen in server.seen[before:]}
        assert together == {f"id-{index}" for index in range(before, read)}
        before = read
        answers.release()
    for _ in range(20):
        answers.release()
    replies = await asyncio.gather(*asking)
    assert {reply.status for reply in replies} == {200}
    assert {reply.headers["x-penstock-backend"] for reply in replies} == {"b"}
    assert sorted(server.executed) == sorted(f"id-{index}" for index in range(20))


async def test_a_sidecar_learns_which_requests_were_held_and_no_client_can_say_so(
    upstream: Any, router: Any
) -> None:
    server = await upstream(echo)
    process = await router().start(endpoint("e", backend("b")))
    forged = {"x-penstock-held": "1"}
    asking = [asyncio.create_task(process.ask(headers=headers)) for headers in (None, forged)]
    await held(process, 2)
    process.settle(endpoint("e", backend("b", server.target)))
    await asyncio.gather(*asking)
    assert [seen.header("x-penstock-held") for seen in server.seen] == ["1", "1"]
    await process.ask(headers=forged)
    assert server.seen[-1].header("x-penstock-held") is None


async def test_the_first_pod_is_not_buried(upstream: Any, router: Any) -> None:
    """A pod that bears four at a time gets no more from the hold than it bears, and none is lost."""
    slots = 4
    running = 0

    async def behave(seen: Seen) -> Answer:
        nonlocal running
        if running >= slots:
            return await refuse("queue_full")(seen)
        running += 1
        try:
            await asyncio.sleep(0.01)
            return await echo(seen)
        finally:
            running -= 1

    server = await upstream(behave)
    process = await router().start(endpoint("e", backend("b"), retries=0))
    asking = [asyncio.create_task(process.ask()) for _ in range(60)]
    await held(process, 60)
    process.settle(endpoint("e", backend("b", server.target), retries=0))
    replies = await asyncio.gather(*asking)
    assert {reply.status for reply in replies} == {200}
    assert set(server.executed.values()) == {1}
    assert server.most_running <= 16
    await held(process, 0)


async def test_more_than_may_wait_are_refused_with_retry_after(router: Any) -> None:
    process = await router().start(
        endpoint("e", backend("b"), coldStart={"timeoutMs": 60_000, "maxPending": 3})
    )
    asking = [asyncio.create_task(process.ask()) for _ in range(3)]
    await held(process, 3)
    refused = await process.ask()
    assert (refused.status, refused.document["reason"]) == (503, "cold_start_full")
    assert refused.document["detail"] == (
        "expected room among at most 3 requests that wait for a pod (coldStart.maxPending of endpoint e), "
        "found 3 that wait already"
    )
    assert int(refused.headers["retry-after"]) >= 1
    for task in asking:
        task.cancel()
    await held(process, 0)


async def test_clients_that_leave_make_room_though_their_bodies_are_unread(
    upstream: Any, router: Any
) -> None:
    """Nothing is read of such a body while it waits, so the end behind it does not come by itself."""
    cold = {"timeoutMs": 120_000, "maxPending": 21}
    process = await router().start(endpoint("e", backend("b"), coldStart=cold))
    body = bytes(1_500_000)
    host, _, port = process.data.removeprefix("http://").partition(":")
    leaving = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    for _, writer in leaving:
        writer.write(b"POST /e/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    staying = asyncio.create_task(process.ask(data=io.BytesIO(body)))
    await held(process, 21)
    assert (await process.ask()).document["reason"] == "cold_start_full"
    for _, writer in leaving:
        writer.transport.abort()
    await held(process, 1)
    server = await upstream(echo)
    process.settle(endpoint("e", backend("b", server.target), coldStart=cold))
    assert (await staying).status == 200
    (seen,) = server.seen
    assert seen.body == body


async def test_nobody_waits_longer_than_the_cold_start_timeout_or_the_clients_own(router: Any) -> None:
    process = await router().start(endpoint("e", backend("b"), coldStart={"timeoutMs": 300}))
    missing, late = await asyncio.gather(process.ask(), process.ask(headers={"x-penstock-timeout-ms": "100"}))
    assert (missing.status, missing.document["reason"]) == (503, "backend_missing")
    assert "retry-after" in missing.headers
    nothing = "backend b of endpoint e does not exist: no EndpointSlice or target came "
    assert missing.document["detail"].startswith(f"{nothing}while the request was held for 0.")
    assert late.document["detail"].startswith(f"{nothing}within the request's 0.")
    assert (late.status, late.document["reason"]) == (504, "deadline")
    await held(process, 0)


async def test_a_deleted_endpoints_requests_get_404_at_once(router: Any) -> None:
    process = await router().start(endpoint("e", backend("b")), endpoint("f", backend("b")))
    asking = [asyncio.create_task(process.ask()) for _ in range(5)]
    other = asyncio.create_task(process.ask("/f"))
    await held(process, 6)
    process.settle(endpoint("f", backend("b")))
    for reply in await asyncio.gather(*asking):
        assert (reply.status, reply.document["reason"]) == (404, "no_route")
    await held(process, 1)
    other.cancel()


async def test_a_share_of_a_split_waits_for_its_own_backends_pod_to_be_reached(
    upstream: Any, router: Any
) -> None:
    """Whoever was drawn for a backend stays with it, and the other backend's requests are not held up."""
    port, well = free_port(), await upstream()
    process = await router().start(
        endpoint("e", backend("lost", f"127.0.0.1:{port}"), backend("well", well.target), retries=0)
    )
    asking = [asyncio.create_task(process.ask(headers={"x-request-id": f"id-{n}"})) for n in range(20)]
    await until(lambda: len(well.seen) >= 9)  # two equal shares of twenty: ten, or one more or less
    # One of the ten may be out to probe.
    await held(process, 8, 9, 10, 11)  # one of them may be out to probe
    lost = await upstream(port=port)
    replies = await asyncio.gather(*asking)
    assert {reply.status for reply in replies} == {200}
    assert len(lost.seen) + len(well.seen) == 20
    assert min(len(lost.seen), len(well.seen)) >= 9
    assert set((lost.executed + well.executed).values()) == {1}
    assert 'penstock_router_retries_total{reason="connect_failed"}' in await process.metrics()
    await held(process, 0)


async def test_a_pod_that_takes_no_connection_in_time_costs_nobody_an_answer(
    upstream: Any, router: Any
) -> None:
    """Its line of new connections is full: they are neither made nor refused, until it takes them again."""
    with contextlib.ExitStack() as opened:
        port = free_port()
        full = opened.enter_context(socket.create_server(("127.0.0.1", port), backlog=0))
        for _ in range(3):
            other = opened.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        process = await router().start(endpoint("e", backend("b", f"127.0.0.1:{port}"), retries=0))
        asking = [asyncio.create_task(process.ask(headers={"x-request-id": f"id-{n}"})) for n in range(10)]
        await held(process, 9, 10)
    server = await upstream(port=port)
    assert {reply.status for reply in await asyncio.gather(*asking)} == {200}
    assert sorted(server.executed) == sorted(f"id-{n}" for n in range(10))
    assert set(server.executed.values()) == {1}
    await held(process, 0)


async def test_a_router_that_shuts_down_answers_who_waits_for_a_pod_to_be_reached(router: Any) -> None:
    process = await router("--drain-timeout=2s").start(
        endpoint("e", backend("b", f"127.0.0.1:{free_port()}"))
    )
    asking = [asyncio.create_task(process.ask()) for _ in range(5)]
    await held(process, 4, 5)
    process.signal()
    for reply in await asyncio.gather(*asking):
        assert (reply.status, reply.document["reason"]) == (503, "draining")
    assert await process.ended() == 0


async def test_held_requests_move_to_the_backend_that_a_new_split_names(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("old")))
    asking = [asyncio.create_task(process.ask()) for _ in range(5)]
    await held(process, 5)
    process.settle(endpoint("e", backend("old", weight=0), backend("new", server.target)))
    for reply in await asyncio.gather(*asking):
        assert (reply.status, reply.headers["x-penstock-backend"]) == (200, "new")


async def test_the_endpoints_time_begins_when_a_request_leaves_the_hold(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b"), timeoutMs=2000))
    asking = asyncio.create_task(process.ask())
    timed = asyncio.create_task(process.ask(headers={"x-penstock-timeout-ms": "30000"}))
    await held(process, 2)
    # This one's end says that all were held for longer than the endpoint's time.
    assert (await process.ask(headers={"x-penstock-timeout-ms": "2100"})).status == 504
    process.settle(endpoint("e", backend("b", server.target), timeoutMs=2000))
    assert {reply.status for reply in await asyncio.gather(asking, timed)} == {200}
    assert len(server.seen) == 2
    assert all(0 < int(seen.header("x-penstock-timeout-ms") or 0) <= 2000 for seen in server.seen)


async def test_a_draining_only_pod_holds_requests_until_another_appears(upstream: Any, router: Any) -> None:
    draining, fresh = await upstream(refuse("draining")), await upstream()
    process = await router().start(endpoint("e", backend("b", draining.target)))
    asking = asyncio.create_task(process.ask())
    await held(process, 1)
    process.settle(endpoint("e", backend("b", draining.target, fresh.target)))
    assert (await asking).status == 200
    assert (len(draining.seen), len(fresh.seen)) == (1, 1)


def test_a_short_pause_is_not_slept_through_because_a_longer_one_was_set_before() -> None:
    """A pod drains for 5 s; another one, come meanwhile, refuses once: it is asked again in 0.1 s."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        chance = random.Random(1)
        pods = Pods(clock=loop.time, random_source=chance, changed=lambda: None)
        draining, fresh = Address(host="a", port=1), Address(host="b", port=1)
        pods.set_targets({"b": (draining,)})
        pods.refuses(next(iter(pods.ready("b"))))
        settings = Endpoint(name="e", backends=(WeightedBackend(name="b"),))
        state = EndpointState(
            settings, pods=pods, clock=loop.time, random_source=chance, on_held=lambda: None
        )

        def ask(*, again: bool) -> Any:
            return state.acquire(
                size=0,
                sequence=0,
                arrived=loop.time(),
                deadline=None,
                backend="b",
                again=again,
                for_room=again,
            )

        asking = asyncio.create_task(ask(again=False))
        await fake_loop.settle()
        pods.set_targets({"b": (draining, fresh)})
        state.settle()
        place = await asking
        began = loop.time()
        state.give_back(place, answered=False, queue_full=True)
        place = await ask(again=True)
        assert loop.time() - began < 1
        state.give_back(place, answered=True)
        state.remove()

    fake_loop.run(main())


def state_of(settings: Endpoint, *existing: str) -> EndpointState:
    """An endpoint of which these backends exist, without a pod."""
    loop, chance = asyncio.get_running_loop(), random.Random(1)
    pods = Pods(clock=loop.time, random_source=chance, changed=lambda: None)
    pods.set_slices(dict.fromkeys(existing, ()))
    return EndpointState(settings, pods=pods, clock=loop.time, random_source=chance, on_held=lambda: None)


async def held_in(state: EndpointState, size: int = 0) -> PenstockError:
    """What a request gets for which no pod appears."""
    now = asyncio.get_running_loop().time()
    with pytest.raises(HoldOver) as over:
        await state.acquire(size=size, sequence=0, arrived=now, deadline=None, backend=state.enter()[0])
    return over.value


@pytest.mark.parametrize(
    ("weights", "existing", "expected"),
    [
        ({"b": 1}, [], "backend b of endpoint e does not exist: no EndpointSlice or target came"),
        (
            {"a": 1, "b": 9, "c": 0},
            ["c"],
            "backends a, b of endpoint e do not exist: no EndpointSlice or target came",
        ),
        ({"a": 1, "b": 1}, ["b"], "no pod of backend b became ready"),
        ({"a": 0}, ["a"], "no backend of endpoint e got a weight above 0"),
    ],
)
def test_who_waited_in_vain_learns_what_was_missing(
    weights: dict[str, int], existing: list[str], expected: str
) -> None:
    """A backend that does not exist is named, apart from one without a ready pod."""

    async def main() -> None:
        backends = tuple(WeightedBackend(name=name, weight=weight) for name, weight in weights.items())
        error = await held_in(state_of(Endpoint(name="e", backends=backends), *existing))
        assert error.reason == Reason.BACKEND_MISSING
        assert error.detail == f"{expected} while the request was held for 120.000 s"

    fake_loop.run(main())


def test_bodies_that_fill_the_hold_are_what_a_refusal_names() -> None:
    """Though `maxPending` leaves room."""

    async def main() -> None:
        state = state_of(Endpoint(name="e", backends=(WeightedBackend(name="b"),)), "b")
        first = asyncio.create_task(held_in(state, MAX_HELD_BYTES - 10))
        await fake_loop.settle()
        error = await held_in(state, 11)
        assert error.reason == Reason.COLD_START_FULL
        assert error.detail == (
            "expected at most 268435456 bytes of bodies that wait for a pod of endpoint e (a fixed bound), "
            "found 268435446 already and 11 of this request"
        )
        assert (await first).reason == Reason.BACKEND_MISSING

    fake_loop.run(main())
