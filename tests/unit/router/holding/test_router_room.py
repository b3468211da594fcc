"""A request that a pod has no room for: another pod is asked, and where none has room it waits for some."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from penstock_router.pods.pool import FULL_SECONDS
from penstock_wire.control.router_settings import ColdStart
from penstock_wire.headers import get
from tests.support.clocks import fake_loop
from tests.support.worlds.router_world import World, statuses

EIGHT = tuple(f"h{index}" for index in range(8))


def world_of(*hosts: str, room: int = 1, seconds: float = 0.01, **more: Any) -> World:
    """A router before pods that take so many requests at once and refuse those beyond."""
    world = World(*hosts, seconds=seconds, **more)
    world.network.room = room
    return world


async def test_all_who_find_no_room_go_in_the_order_of_their_arrival_as_soon_as_there_is_some() -> None:
    """No pod is idle while a request waits: a hundred take as long as thirteen one after another."""
    world = world_of(*EIGHT, seconds=1)
    began = world.loop.time()
    asking = [world.ask(str(number)) for number in range(100)]
    assert statuses(await asyncio.gather(*asking)) == {200: 100}
    assert world.loop.time() - began == pytest.approx(13)
    later = world.network.executed[8:]
    assert later == sorted(later, key=int)
    world.check_nothing_is_left()


async def test_under_lasting_load_few_tries_are_made_in_vain() -> None:
    """Each newcomer asks once, and each pod is asked ten times a second whether it has more room."""
    world = world_of(*EIGHT, seconds=0.1, timeout_ms=600_000, cold=ColdStart(timeout_ms=600_000))
    asking = [world.ask(str(number)) for number in range(900)]
    await asyncio.sleep(0.05)
    before = world.network.refused
    await asyncio.sleep(10)
    assert world.network.refused - before < 2 * 8 * 10 / FULL_SECONDS
    assert len(world.network.executed) >= 99 * 8
    assert statuses(await asyncio.gather(*asking)) == {200: 900}
    world.check_nothing_is_left()


@pytest.mark.parametrize("own_ms", [None, 2000, 200])  # at the last, a pod is asked again
async def test_who_finds_no_room_in_its_time_is_refused_with_retry_after_and_not_executed(
    own_ms: int | None,
) -> None:
    world = world_of("a", "b", seconds=60, timeout_ms=5000)
    long = [world.ask(f"long-{number}") for number in range(2)]
    await fake_loop.settle()
    began = world.loop.time()
    answer = await world.ask("late", timeout_ms=own_ms)
    assert world.loop.time() - began == pytest.approx((own_ms or 5000) / 1000, abs=0.01)
    assert (answer.status, get(answer.headers, b"x-penstock-reason")) == (503, b"queue_full")
    assert get(answer.headers, b"retry-after") == b"7"
    assert "late" not in world.network.executed
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    world.check_nothing_is_left()


@pytest.mark.parametrize("cold", [ColdStart(max_pending=0), ColdStart(timeout_ms=0)])
async def test_where_nothing_may_wait_the_refusal_comes_at_once(cold: ColdStart) -> None:
    """After every pod that may have room was asked, whatever the retries."""
    world = world_of("a", "b", "c", seconds=1, cold=cold, retries=0)
    asking = [world.ask(str(number)) for number in range(3)]
    await fake_loop.settle()
    assert sorted(world.network.executed) == ["0", "1", "2"]
    began = world.loop.time()
    answer = await world.ask("late")
    assert (answer.status, world.loop.time()) == (503, began)
    assert statuses(await asyncio.gather(*asking)) == {200: 3}
    world.check_nothing_is_left()


async def test_no_more_than_may_wait_do() -> None:
    world = world_of("a", seconds=1, cold=ColdStart(max_pending=5))
    asking = [world.ask(str(number)) for number in range(20)]
    assert statuses(await asyncio.gather(*asking)) == {200: 6, 503: 14}
    world.check_nothing_is_left()


async def test_room_that_another_routers_request_leaves_is_found_soon() -> None:
    world = world_of("a", "b")
    world.network.busy.update(a=1, b=1)  # another router's
    asking = [world.ask(str(number)) for number in range(5)]
    await asyncio.sleep(3)
    assert world.network.executed == []
    world.network.busy.clear()
    await asyncio.sleep(1.5 * FULL_SECONDS)
    assert world.network.executed
    assert statuses(await asyncio.gather(*asking)) == {200: 5}
    world.check_nothing_is_left()


async def test_a_pod_that_comes_relieves_those_that_are_full() -> None:
    world = world_of("a", seconds=10)
    asking = [world.ask(str(number)) for number in range(4)]
    await asyncio.sleep(1)
    assert len(world.network.executed) == 1
    world.have("a", "b", "c", "d")
    await asyncio.sleep(1)
    assert len(world.network.executed) == 4
    assert statuses(await asyncio.gather(*asking)) == {200: 4}
    world.check_nothing_is_left()


async def test_two_endpoints_of_one_backend_take_its_room_in_turn() -> None:
    """Whoever has requests with the pods must not keep all the room for its own."""
    world = world_of("a", seconds=1)
    other = world.endpoint("f", chance=random.Random(1))
    mine = [world.ask(f"e-{number}") for number in range(10)]
    await fake_loop.settle()
    theirs = [world.ask(f"f-{number}", state=other) for number in range(10)]
    await asyncio.sleep(10.5)
    names = Counter(identity[0] for identity in world.network.executed)
    assert min(names["e"], names["f"]) >= 4, names
    assert statuses(await asyncio.gather(*mine, *theirs)) == {200: 20}
    world.check_nothing_is_left()


async def test_a_newcomer_asks_a_pod_before_it_waits() -> None:
    """Who has more right to a place, by priority or by share, is for the sidecar to say."""
    world = world_of("a", seconds=1)
    asking = [world.ask(str(number)) for number in range(20)]
    await asyncio.sleep(0.5)
    world.network.first.add("vip")
    vip = world.ask("vip")
    await fake_loop.settle()
    assert world.network.executed == ["0", "vip"]
    assert statuses(await asyncio.gather(vip, *asking)) == {200: 21}
    world.check_nothing_is_left()


async def test_a_client_that_leaves_as_its_turn_comes_gives_it_to_the_next() -> None:
    world = world_of("a", seconds=1)
    first, second, third = (world.ask(name) for name in ("first", "second", "third"))
    await asyncio.sleep(0.5)
    take = world.state._take_room

    def leaves(*arguments: Any) -> bool:
        second.cancel()  # in the turn of the loop in which it is let go
        return take(*arguments)

    world.pods._waiting["b"] = {leaves: None}
    assert (await first).status == 200
    began = world.loop.time()
    assert (await third).status == 200
    assert world.loop.time() - began == pytest.approx(1)
    assert world.network.executed == ["first", "third"]
    await asyncio.gather(second, return_exceptions=True)
    world.check_nothing_is_left()


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_pods_and_clients_do_all_who_stay_are_answered_once(seed: int) -> None:
    """Pods come and go and are filled by others; clients leave. The time is longer than the trouble."""
    chance = random.Random(seed)
    hosts = EIGHT[: chance.choice([1, 2, 8])]

    world = world_of(
        *hosts, seed=seed, room=chance.choice([1, 3]), seconds=0.05, retries=chance.choice([0, 2])
    )
    asked = {}
    gone = []
    for number in range(300):
        if chance.random() < 0.03:
            world.have(*(host for host in hosts if chance.random() < 0.7))
        if chance.random() < 0.05:
            host = chance.choice(hosts)
            world.network.busy[host] += 1  # another router's
            world.loop.call_later(chance.random(), world.network.busy.subtract, {host: 1})
        asked[str(number)] = world.ask(str(number))
        if chance.random() < 0.1:
            gone.append(chance.choice(list(asked.values())))
            gone[-1].cancel()
        await asyncio.sleep(chance.expovariate(40))
    world.have(*hosts)
    await asyncio.gather(*asked.values(), return_exceptions=True)
    ledger = Counter(world.network.executed)
    assert max(ledger.values()) == 1
    for identity, task in asked.items():
        if task.cancelled():
            assert task in gone
        else:
            assert (task.result().status, ledger[identity]) == (200, 1), identity
    world.check_nothing_is_left()
    assert (await world.ask("last")).status == 200


async def test_a_client_that_gave_a_time_waits_no_longer_when_a_pod_goes_meanwhile() -> None:
    """Full, then unreachable: the endpoint's time begins anew with a connection, the client's does not."""
    world = world_of("a", seconds=60, timeout_ms=100_000)
    long = world.ask("long")
    await fake_loop.settle()
    began = world.loop.time()
    asking = world.ask("late", timeout_ms=3000)
    await asyncio.sleep(1)
    world.all_are("refuses", "a")
    assert (await asking).status in (503, 504)
    assert world.loop.time() - began == pytest.approx(3, abs=0.01)
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
