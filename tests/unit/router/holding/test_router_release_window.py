"""Who of those that are held goes first, and how many at once, to the request."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from penstock_router.endpoints import EndpointState
from penstock_router.holding.release_window import FIRST_WINDOW, Permit, ReleaseWindow
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pod import Pod
from penstock_wire.control.router_settings import ColdStart, Endpoint, WeightedBackend
from tests.support.clocks import fake_loop
from tests.support.worlds.fake_network import Way
from tests.support.worlds.router_world import World, statuses


def numbers(upto: int, *, since: int = 0) -> list[str]:
    return [str(number) for number in range(since, upto)]


async def test_those_that_came_in_the_same_millisecond_keep_their_order_when_they_are_drawn_anew() -> None:
    """The router's clock has whole milliseconds: it does not tell who came first."""
    world = World()
    world.pods.set_slices({})  # no backend at all: they wait in nobody's line
    asking = [world.ask(number) for number in numbers(200)]
    await fake_loop.settle()
    assert world.state.held_by_backend() == {"": 200}
    world.have("a")
    assert statuses(await asyncio.gather(*asking)) == {200: 200}
    assert world.network.executed == numbers(200)
    world.check_nothing_is_left()


async def test_who_was_refused_comes_back_before_those_that_came_after_it_in_the_same_millisecond() -> None:
    world = World()
    state, came = world.state, world.loop.time()

    def place(turn: int, *, refused: bool = False) -> asyncio.Task[Permit]:
        wanted = state.acquire(
            size=0,
            sequence=turn,
            arrived=came,
            deadline=None,
            backend="b",
            again=refused,
            for_room=refused,
        )
        return asyncio.create_task(wanted)

    asking = [place(turn) for turn in range(FIRST_WINDOW + 2)]
    await fake_loop.settle()
    world.have("a")
    await fake_loop.settle()
    assert [task.done() for task in asking] == [True] * FIRST_WINDOW + [False] * 2
    state.give_back(asking[3].result(), answered=False, queue_full=True)
    back = place(3, refused=True)
    await fake_loop.settle()
    state.give_back(asking[0].result(), answered=False)  # room for one
    await asyncio.sleep(1)
    assert [task.done() for task in (back, *asking[FIRST_WINDOW:])] == [True, False, False]
    state.remove()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_a_first_pod_gets_a_first_window_and_two_more_with_each_answer() -> None:
    """One in the answered one's stead, and one since the pod bears it."""
    world = World(seconds=1)
    asking = [world.ask(number) for number in numbers(7 * FIRST_WINDOW)]
    await fake_loop.settle()
    world.have("a")
    for rounds in (1, 1 + 2, 1 + 2 + 4):
        await asyncio.sleep(0.5)
        assert world.network.executed == numbers(rounds * FIRST_WINDOW)
        await asyncio.sleep(0.5)
    assert statuses(await asyncio.gather(*asking)) == {200: 7 * FIRST_WINDOW}
    world.check_nothing_is_left()


def connections_fail(world: World, way: Way) -> None:
    """Every second connection fails, thirty times."""
    ways: list[Way] = [way, "up"]
    coming = itertools.chain(ways * 30, itertools.repeat("up"))
    world.network.on_connect = lambda: world.all_are(next(coming), "a")


def its_slice_flaps(world: World, way: Way) -> None:
    """The pod goes and comes, twice in a second."""

    def flap(left: int) -> None:
        world.have()
        world.have("a")
        if left:
            world.loop.call_later(0.5, flap, left - 1)

    world.loop.call_soon(flap, 20)


@pytest.mark.parametrize(
    ("flaps", "way"), [(connections_fail, "refuses"), (connections_fail, "ignores"), (its_slice_flaps, "up")]
)
async def test_a_pod_that_goes_and_comes_gets_its_first_window_once(
    flaps: Callable[[World, Way], None], way: Way
) -> None:
    """However often; who was let go in vain goes again before those behind it, and all are answered."""
    world = World(seconds=25)
    asking = [world.ask(number) for number in numbers(80)]
    await fake_loop.settle()
    flaps(world, way)
    world.have("a")
    await asyncio.sleep(20)
    assert sorted(world.network.executed, key=int) == numbers(FIRST_WINDOW), "before any answer"
    world.network.on_connect = lambda: world.all_are("up", "a")
    assert statuses(await asyncio.gather(*asking)) == {200: 80}
    assert world.network.executed[FIRST_WINDOW:] == numbers(80, since=FIRST_WINDOW)
    world.check_nothing_is_left()


@pytest.mark.parametrize(
    ("waiting", "pods"),
    [
        pytest.param(80, [("a", "b"), ("a",)] * 10, id="one of two goes and comes"),
        pytest.param(200, [("a",), ("b",)] * 10, id="two come and go in turn"),
        # A pod that is replaced leaves its slice and answers what it has, for as long as that takes.
        pytest.param(40, [("a",), (), ("next",)], id="one follows another, whose answers are not waited for"),
    ],
)
async def test_each_of_two_pods_gets_its_first_window_once(waiting: int, pods: list[tuple[str, ...]]) -> None:
    world = World(seconds=25)
    asking = [world.ask(number) for number in numbers(waiting)]
    await fake_loop.settle()
    for ready in pods:
        world.have(*ready)
        await asyncio.sleep(1)
    assert world.network.executed == numbers(2 * FIRST_WINDOW), "before any answer"
    assert statuses(await asyncio.gather(*asking)) == {200: waiting}
    world.check_nothing_is_left()


async def test_a_pod_that_follows_another_is_not_buried_under_what_that_one_bore() -> None:
    world = World(seconds=1)
    asking = [world.ask(number) for number in numbers(200)]
    await fake_loop.settle()
    world.have("a")
    await asyncio.sleep(2.5)
    world.have()
    await asyncio.sleep(2)
    gone = len(world.network.executed)
    assert gone == (1 + 2 + 4) * FIRST_WINDOW
    world.have("next")
    await asyncio.sleep(0.5)
    assert len(world.network.executed) == gone + FIRST_WINDOW
    assert statuses(await asyncio.gather(*asking)) == {200: 200}
    assert world.network.executed == numbers(200)
    world.check_nothing_is_left()


async def test_the_answers_of_a_pod_that_left_earn_nothing_for_the_one_that_follows() -> None:
    """Nor do its failures: what was with it is no part of the new one's window."""
    world = World(seconds=10)
    asking = [world.ask(number) for number in numbers(100)]
    await fake_loop.settle()
    world.have("a")
    await asyncio.sleep(5)
    world.have()
    await asyncio.sleep(1)
    world.have("next")
    await asyncio.sleep(1)
    assert len(world.network.executed) == 2 * FIRST_WINDOW
    await asyncio.sleep(8.5)  # all of `a` have their answers, none of `next`
    assert sum(task.done() for task in asking) == FIRST_WINDOW
    assert len(world.network.executed) == 2 * FIRST_WINDOW
    assert statuses(await asyncio.gather(*asking)) == {200: 100}
    world.check_nothing_is_left()


async def test_a_pod_of_two_endpoints_that_goes_and_comes_gets_the_first_window_of_each_once() -> None:
    """What one endpoint has with it does not widen the other's window; a probe goes however full that is."""
    world = World(seconds=25)
    other = world.endpoint("f", chance=random.Random(1))
    asking = [world.ask(number, state=state) for number in numbers(80) for state in (world.state, other)]
    await fake_loop.settle()
    connections_fail(world, "refuses")
    world.have("a")
    await asyncio.sleep(20)
    got = len(world.network.executed)
    assert 2 * FIRST_WINDOW <= got <= 2 * (FIRST_WINDOW + 1), "before any answer"
    assert statuses(await asyncio.gather(*asking)) == {200: 160}
    world.check_nothing_is_left()


@pytest.mark.parametrize("seed", range(10))
async def test_however_a_pod_comes_and_goes_no_more_are_with_it_than_its_answers_have_earned(
    seed: int,
) -> None:
    """Connections fail or are ignored by chance, its slice flaps; at the end all are answered."""
    chance = random.Random(seed)

    world = World(seed=seed, seconds=3)
    asking = [world.ask(number) for number in numbers(150)]
    await fake_loop.settle()

    def connects() -> None:
        assert len(world.network.executed) < FIRST_WINDOW + 2 * len(world.answers)
        ways: list[Way] = ["up", "up", "refuses", "ignores"]
        world.all_are(chance.choice(ways), "a")

    world.network.on_connect = connects
    for _ in range(30):
        world.have("a")
        await asyncio.sleep(chance.random())
        world.have()
        await asyncio.sleep(chance.random())
    world.have("a")
    assert statuses(await asyncio.gather(*asking)) == {200: 150}
    assert sorted(world.network.executed, key=int) == numbers(150)
    world.check_nothing_is_left()


def test_pods_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come and go beside one that stays, a window does not grow."""
    monkeypatch.setattr("penstock_router.holding.release_window.MAX_SEEN", 5)
    window, stays = ReleaseWindow(), Pod(Address(host="10.0.0.1", port=8000))
    for number in range(50):
        window.see_pods([stays, Pod(Address(host=f"10.0.1.{number}", port=8000))])
        assert len(window._seen) <= 7
    limit = window.limit
    window.see_pods([stays])
    assert window.limit == limit


async def test_the_first_deadline_goes_first() -> None:
    """Those that set none leave in the order of their arrival, as they have the hold's time."""
    deadlines = dict.fromkeys(["none-1", "30s", "none-2", "70s", "20s", "none-3", *numbers(8)])
    deadlines |= {"30s": 30_000, "70s": 70_000, "20s": 20_000}
    world = World(cold=ColdStart(timeout_ms=60_000))
    asking = [world.ask(name, timeout_ms=by) for name, by in deadlines.items()]
    await fake_loop.settle()
    world.have("a")
    assert statuses(await asyncio.gather(*asking)) == {200: len(asking)}
    assert world.network.executed == ["20s", "30s", "none-1", "none-2", "70s", "none-3", *numbers(8)]
    world.check_nothing_is_left()


@pytest.mark.parametrize(
    ("started_in", "waited", "retry_after"),
    [(None, 0, 5), (20, 0, 20), (20, 12, 8), (20, 25, 5), (0.2, 0, 1)],
)
async def test_what_is_refused_is_told_when_there_should_be_room(
    started_in: float | None, waited: float, retry_after: int
) -> None:
    """What is left of a start that takes as long as the last one; 5 s where nothing is known, or no more."""
    world = World(cold=ColdStart(max_pending=1))
    if started_in is not None:
        first = world.ask("first")
        await asyncio.sleep(started_in)
        world.have("a")
        assert (await first).status == 200
        world.have()
    asking = world.ask("held")
    await asyncio.sleep(waited)
    refused = await world.ask("refused")
    assert refused.status == 503
    assert dict(refused.headers)[b"retry-after"] == str(retry_after).encode()
    world.have("a")
    assert (await asking).status == 200
    world.check_nothing_is_left()


@pytest.mark.parametrize(("started_in", "retry_after"), [(None, 5), (20, 12), (7, 5)])
async def test_who_was_held_for_its_time_is_told_what_is_left_of_the_start(
    started_in: float | None, retry_after: int
) -> None:
    world = World(cold=ColdStart(timeout_ms=25_000))
    if started_in is not None:
        first = world.ask("first")
        await asyncio.sleep(started_in)
        world.have("a")
        assert (await first).status == 200
        world.have()
    less = msgspec.structs.replace(world.state.settings, cold_start=ColdStart(timeout_ms=8000))
    world.state.update(less)
    missing = await world.ask("held")
    assert missing.status == 503
    assert dict(missing.headers)[b"retry-after"] == str(retry_after).encode()
    world.check_nothing_is_left()


async def test_the_first_request_held_for_each_backend_is_news() -> None:
    """The operator is to start that one at once, whatever is held for the others."""
    world, news = World(), list[int]()
    state = EndpointState(
        Endpoint(name="two", backends=(WeightedBackend(name="b"), WeightedBackend(name="c"))),
        pods=world.pods,
        clock=world.loop.time,
        random_source=random.Random(1),
        on_held=lambda: news.append(1),
    )
    world.states.append(state)
    world.pods.set_slices({"b": (), "c": ()})
    asking = [world.ask(number, state=state) for number in numbers(10)]
    await fake_loop.settle()
    assert set(state.held_by_backend()) == {"b", "c"}
    assert {name: counts.held for name, counts in state.report().items()} == state.held_by_backend()
    assert len(news) == 2
    state.remove()
    await asyncio.gather(*asking)


async def test_a_request_that_moves_to_another_backend_while_it_is_held_is_news() -> None:
    """The endpoint names another backend, or its first: that one is to be started at once, too."""
    world, news = World(), list[int]()
    settings = Endpoint(name="e", backends=(WeightedBackend(name="b"),))
    state = EndpointState(
        settings,
        pods=world.pods,
        clock=world.loop.time,
        random_source=random.Random(1),
        on_held=lambda: news.append(1),
    )
    world.states.append(state)
    world.pods.set_slices({})
    asking = [world.ask(number, state=state) for number in numbers(10)]
    await fake_loop.settle()
    assert (state.held_by_backend(), len(news)) == ({"": 10}, 1)
    world.pods.set_slices({"b": (), "c": ()})
    state.settle()
    assert (state.held_by_backend(), len(news)) == ({"b": 10}, 2)
    state.update(msgspec.structs.replace(settings, backends=(WeightedBackend(name="c"),)))
    assert (state.held_by_backend(), len(news)) == ({"c": 10}, 3)
    state.settle()
    assert len(news) == 3
    state.remove()
    await asyncio.gather(*asking)


async def test_a_backend_whose_held_requests_moved_away_gets_requests_at_once_when_it_is_back() -> None:
    """And not by way of the hold for as long as the router lives."""
    world = World()
    world.pods.set_slices({"b": (), "c": ()})
    held = [world.ask(number) for number in numbers(10)]
    await fake_loop.settle()
    of_b = world.state.settings
    world.state.update(msgspec.structs.replace(of_b, backends=(WeightedBackend(name="c"),)))
    world.pods.set_slices({"b": (), "c": (Address(host="a", port=1),)})
    assert statuses(await asyncio.gather(*held)) == {200: 10}
    world.state.update(of_b)
    world.have("a")
    assert world.state.enter() == ("b", True)
    world.check_nothing_is_left()


@pytest.mark.parametrize("leaves", [False, True])
async def test_after_a_refusal_requests_go_to_the_pods_at_once_again(leaves: bool) -> None:
    """Whether another pod took the one that was refused, or its client left before it could wait again."""
    world = World()
    world.network.room = 0 if leaves else 1
    held = [world.ask(number) for number in numbers(1 if leaves else 3)]
    await fake_loop.settle()
    world.have(*("a" if leaves else "abc"))
    if leaves:
        await asyncio.sleep(0.02)
        assert held.pop().cancel()
        await asyncio.sleep(0.02)
        world.network.room = 1
    assert statuses(await asyncio.gather(*held)) == Counter({200: 3} if not leaves else {})
    await asyncio.sleep(1)
    assert world.state.enter() == ("b", True)
    world.check_nothing_is_left()


async def test_a_pod_that_cannot_be_reached_has_not_started() -> None:
    """The tries that find that out do not count as the end of a start."""
    world = World("a", cold=ColdStart(max_pending=2))
    world.all_are("refuses", "a")
    asking = [world.ask(number) for number in numbers(2)]
    await asyncio.sleep(20)
    world.all_are("up", "a")
    assert statuses(await asyncio.gather(*asking)) == {200: 2}
    world.have()
    asking = [world.ask(number) for number in numbers(2)]
    await fake_loop.settle()
    refused = await world.ask("refused")
    assert 15 < int(dict(refused.headers)[b"retry-after"]) <= 21
    world.have("a")
    assert statuses(await asyncio.gather(*asking)) == {200: 2}
