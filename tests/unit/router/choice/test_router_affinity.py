"""Requests with one key: where they go, what moves them, and what does not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_router.choice.affinity import Hashed, WeightedChoice, mixed
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pool import FULL_SECONDS, Pods
from penstock_wire.control.router_settings import Endpoint, WeightedBackend
from penstock_wire.control.traffic_rules import AffinityCookie, Match, OnMissing, SessionAffinity
from penstock_wire.headers import REASON, SHARD_KEY, STICKY, get
from tests.support.worlds.router_world import World

KEYS = [f"user-{number}".encode() for number in range(100_000)]
HASHED = [Hashed(key) for key in KEYS]


def shares(weights: dict[str, int], keys: Sequence[Hashed] = HASHED) -> list[str | None]:
    choice = WeightedChoice()
    return [choice.of(key, weights) for key in keys]


def pods_of(*names: str) -> Pods:
    pods = Pods(clock=lambda: 1000.0, random_source=random.Random(1), changed=lambda: None)
    pods.set_slices({"b": tuple(Address(host=name, port=1) for name in names)})
    return pods


def hosts(pods: Pods, keys: Sequence[Hashed]) -> list[str]:
    return [pod.address.host for key in keys if (pod := pods.pick_by_key("b", key)) is not None]


@pytest.mark.parametrize(
    ("before", "after", "moved", "keys"),
    [
        ({"a": 90, "b": 10}, {"a": 80, "b": 20}, 0.10, 100_000),
        ({"a": 80, "b": 20}, {"a": 90, "b": 10}, 0.10, 10_000),
        ({"a": 90, "b": 10}, {"a": 9000, "b": 1000}, 0.0, 10_000),
        ({"a": 1}, {"a": 95, "b": 5}, 0.05, 10_000),
        ({"a": 50, "b": 30, "c": 20}, {"a": 50, "b": 30}, 0.20, 10_000),
    ],
)
def test_new_weights_move_the_difference_and_nothing_else(
    before: dict[str, int], after: dict[str, int], moved: float, keys: int
) -> None:
    """From 90/10 to 80/20 moves 10 +- 1 % of 100 000 keys; a key moves only to who has more than before."""
    pairs = Counter(zip(shares(before, HASHED[:keys]), shares(after, HASHED[:keys]), strict=True))
    away = sum(count for (old, new), count in pairs.items() if old != new)
    assert away / keys == pytest.approx(moved, abs=0.01)
    total = sum(after.values())
    for name, weight in after.items():
        got = sum(count for (_, new), count in pairs.items() if new == name)
        assert got / keys == pytest.approx(weight / total, abs=0.015)
    for old, new in pairs:
        if old != new:
            assert after[str(new)] / total > before.get(str(new), 0) / sum(before.values())


def test_a_lost_pod_moves_its_own_keys_alone_and_a_new_one_takes_its_share() -> None:
    keys = HASHED[:20_000]
    four, three = pods_of("a", "b", "c", "d"), pods_of("a", "b", "d")
    before, after = hosts(four, keys), hosts(three, keys)
    assert {new for old, new in zip(before, after, strict=True) if old != "c" and old != new} == set()
    spread = Counter(new for old, new in zip(before, after, strict=True) if old == "c")
    assert sum(spread.values()) == pytest.approx(5000, abs=250)
    assert all(count == pytest.approx(sum(spread.values()) / 3, abs=200) for count in spread.values())
    # The other way round: what comes back gets just those.
    assert hosts(pods_of("d", "c", "b", "a"), keys) == before


@given(
    st.sets(st.sampled_from("abcdefgh"), min_size=2, max_size=8),
    st.sampled_from("abcdefgh"),
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30),
)
def test_whoever_goes_nobody_elses_keys_move(names: set[str], gone: str, keys: list[bytes]) -> None:
    hashed = [Hashed(key) for key in keys]
    before = hosts(pods_of(*sorted(names)), hashed)
    left = sorted(names - {gone})
    after = hosts(pods_of(*left), hashed)
    assert [new for old, new in zip(before, after, strict=True) if old != gone] == [
        old for old in before if old != gone
    ]


def test_the_mixing_is_a_bijection_without_a_bias() -> None:
    """Equal numbers come of equal ones alone; each bit of one turns each bit of the other half the time."""
    chance = random.Random(1)
    numbers = [chance.randrange(1 << 30) for _ in range(2000)]
    assert len(set(map(mixed, numbers))) == len(set(numbers))
    for bit in range(30):
        turned = [mixed(number) ^ mixed(number ^ 1 << bit) for number in numbers]
        for place in range(30):
            assert 0.44 < sum(bits >> place & 1 for bits in turned) / len(numbers) < 0.56


def test_a_key_goes_to_the_next_pod_while_its_own_is_full_drains_or_cannot_be_reached() -> None:
    now = 1000.0
    pods = Pods(clock=lambda: now, random_source=random.Random(1), changed=lambda: None)
    pods.set_slices({"b": tuple(Address(host=name, port=1) for name in "abcd")})
    key = HASHED[0]
    own = pods.own("b", key)
    assert own is not None
    assert pods.pick_by_key("b", key) is own
    pods.full(own)
    second = pods.pick_by_key("b", key)
    assert second is not own
    now += FULL_SECONDS
    assert pods.pick_by_key("b", key) is own
    pods.refuses(own)
    assert pods.pick_by_key("b", key) is second
    now += 10
    pods.failed(own, "refused")
    assert pods.pick_by_key("b", key) is second
    pods.reached(own)
    assert pods.pick_by_key("b", key, without=[own]) is second
    for pod in pods.ready("b"):
        pods.full(pod)
    assert pods.pick_by_key("b", key) is own, "where none has room, the own one is asked"
    assert pods.own("b", key) is own


def test_a_key_stays_with_its_pod_although_another_would_begin_at_once() -> None:
    """Late binding gives way: `on_room` of others changes nothing for a key."""
    pods = pods_of("a", "b")
    key = HASHED[1]
    own = pods.own("b", key)
    assert own is not None
    other = next(pod for pod in pods.ready("b") if pod is not own)
    pods.on_room((own.address.host, 1), 0, 3, 1)
    pods.on_room((other.address.host, 1), 9, 0, 9)
    assert pods.pick("b") is other
    assert pods.pick_by_key("b", key) is own


def endpoint_of(*names: str, **settings: Any) -> Endpoint:
    return Endpoint(name="e", backends=tuple(WeightedBackend(name=name) for name in names), **settings)


async def asked_for(world: World, *keys: str, name: str = "x-penstock-shard-key") -> list[str]:
    """The pods that answered requests with these keys, one after the other."""
    asked = []
    for key in keys:
        answer = await world.ask(fields=((name.encode(), key.encode()),))
        assert answer.status == 200
        asked.append(world.network.asked[-1])
    return asked


async def test_requests_with_a_key_stick_and_those_that_cannot_are_counted() -> None:
    """By the client's own field, at any endpoint. Another field is no key."""
    world = World("h0", "h1", "h2")
    series = world.state.series("b")
    first = await asked_for(world, *"abcdefgh")
    assert len(set(first)) > 1
    assert await asked_for(world, *"abcdefgh") == first
    assert len(set(await asked_for(world, *["a"] * 20, name="x-other"))) > 1
    assert series.strays == 0
    world.network.room = 1
    world.network.busy[first[0]] = 1  # another router's
    [other] = await asked_for(world, "a")
    assert other != first[0]
    assert series.strays == 1
    assert await asked_for(world, "a") == [other], "while its own is known to have no room"
    world.network.busy[first[0]] = 0
    await asyncio.sleep(FULL_SECONDS)
    assert await asked_for(world, "a") == first[:1]
    assert series.strays == 2
    world.have(*{"h0", "h1", "h2"} - {first[0]})
    [next_] = await asked_for(world, "a")
    assert (next_, series.strays) == (other, 2)


@pytest.mark.parametrize(
    "affinity", [None, SessionAffinity(header="x-user"), SessionAffinity(cookie=AffinityCookie(name="pod"))]
)
async def test_a_model_is_a_key_unless_the_client_has_another(affinity: SessionAffinity | None) -> None:
    world = World("h0", "h1", "h2")
    world.state.update(endpoint_of("b", session_affinity=affinity))
    models = [await asked_for(world, model, name="x-penstock-model-id") for model in "abcdefgh"]
    again = [await asked_for(world, model, name="x-penstock-model-id") for model in "abcdefgh"]
    if affinity is None or affinity.header:
        assert again == models
    assert len({pod for pods in models for pod in pods}) > 1
    for own in ("x-penstock-shard-key", "x-user" if affinity and affinity.header else None):
        if own:
            asked = []
            for model in "abcdefgh":
                await world.ask(fields=((b"x-penstock-model-id", model.encode()), (own.encode(), b"me")))
                asked.append(world.network.asked[-1])
            assert len(set(asked)) == 1
    assert {get(fields, b"x-penstock-model-id") is None for fields in world.network.tried} == {False}


async def test_a_key_that_finds_no_room_anywhere_waits_for_some_wherever_it_is() -> None:
    world = World("h0", "h1", seconds=1)
    world.network.room = 1
    key = ((b"x-penstock-shard-key", b"a"),)
    asking = [world.ask(str(number), fields=key) for number in range(6)]
    answers = await asyncio.gather(*asking)
    assert {answer.status for answer in answers} == {200}
    assert world.loop.time() == pytest.approx(1003, abs=0.3)
    assert world.state.series("b").strays >= 3
    world.check_nothing_is_left()


@pytest.mark.parametrize(
    ("affinity", "field"),
    [
        (SessionAffinity(header="X-User"), ("x-user", "{}")),
        (SessionAffinity(cookie=AffinityCookie(name="pod")), ("cookie", "a=b; pod={}; c=d")),
    ],
)
async def test_the_endpoint_says_what_a_key_is_and_pods_learn_that_it_sticks(
    affinity: SessionAffinity, field: tuple[str, str]
) -> None:
    """The router's own cookie goes no further: it would part each client's requests from all others."""
    world = World("h0", "h1", "h2")
    world.state.update(endpoint_of("b", session_affinity=affinity))
    keys = [field[1].format(key) for key in "abcdefgh"]
    first = await asked_for(world, *keys, name=field[0])
    assert len(set(first)) > 1
    assert await asked_for(world, *keys, name=field[0]) == first
    assert {get(fields, STICKY) for fields in world.network.tried} == {b"1"}
    assert {get(fields, b"cookie") for fields in world.network.tried} == (
        {b"a=b; c=d"} if affinity.cookie else {None}
    )


async def test_a_client_without_the_cookie_gets_one_that_leads_back() -> None:
    """Each client its own, with what the endpoint says of its life; who has one gets no other."""
    world = World("h0", "h1", "h2")
    cookie = AffinityCookie(name="pod", ttl_ms=3_600_000)
    world.state.update(endpoint_of("b", session_affinity=SessionAffinity(cookie=cookie)))
    values = set()
    for _ in range(8):
        answer = await world.ask()
        went = world.network.asked[-1]
        [said] = [value for name, value in answer.headers if name == b"set-cookie"]
        pair, _, rest = said.partition(b"; ")
        assert rest == b"Path=/; HttpOnly; SameSite=Lax; Max-Age=3600"
        values.add(pair)
        again = await world.ask(fields=((b"cookie", pair),))
        assert world.network.asked[-1] == went
        assert get(again.headers, b"set-cookie") is None
    assert len(values) == 8
    assert all(value.startswith(b"pod=") for value in values)


async def test_a_key_chooses_the_backend_too_and_others_are_drawn_as_ever() -> None:
    world = World()
    world.pods.set_slices({name: (Address(host=name, port=1),) for name in "bc"})
    world.state.update(endpoint_of("b", "c"))
    keys = [str(number) for number in range(40)]
    first = await asked_for(world, *keys)
    assert 10 < first.count("b") < 30
    assert await asked_for(world, *keys) == first
    drawn = await asked_for(world, *["a"] * 40, name="x-other")
    assert 19 <= drawn.count("b") <= 21


@pytest.mark.parametrize("on_missing", ["Share", "Fail"])
async def test_what_a_missing_backend_would_get_is_shared_or_fails_at_once(on_missing: OnMissing) -> None:
    """By weight, by key and by rule alike; what is held for one that is deleted, too."""
    world = World()
    world.pods.set_slices({"b": (Address(host="b", port=1),)})
    rule = Match(header="x-group", value="c")
    backends = (WeightedBackend(name="b"), WeightedBackend(name="c", match=(rule,)))
    world.state.update(Endpoint(name="e", backends=backends, on_missing=on_missing))
    began = world.loop.time()
    drawn = [await world.ask() for _ in range(20)]
    keyed = [await world.ask(fields=((SHARD_KEY, b"%d" % number),)) for number in range(40)]
    ruled = [await world.ask(fields=((b"x-group", b"c"),)) for _ in range(2)]
    assert world.loop.time() < began + 2
    refused = [answer for answer in (*drawn, *keyed, *ruled) if answer.status != 200]
    if on_missing == "Share":
        assert not refused
        return
    assert {(answer.status, get(answer.headers, REASON)) for answer in refused} == {(503, b"backend_missing")}
    assert sum(answer.status == 200 for answer in drawn) == pytest.approx(10, abs=2)
    assert 10 < sum(answer.status == 200 for answer in keyed) < 30
    assert [answer.status for answer in ruled] == [503, 503]
    assert b"backend c of endpoint e does not exist" in refused[0].body
    world.pods.set_slices({"b": (Address(host="b", port=1),), "c": ()})
    held = world.ask(fields=((b"x-group", b"c"),))
    await asyncio.sleep(1)
    assert not held.done()
    world.pods.set_slices({"b": (Address(host="b", port=1),)})
    assert (await held).status == 503
    world.check_nothing_is_left()


async def test_a_matched_request_is_held_for_its_backend_whatever_its_weight() -> None:
    """It goes on with the first pod; where the rule goes meanwhile it is drawn anew."""
    world = World()
    of_b = (Address(host="b", port=1),)
    world.pods.set_slices({"b": of_b, "c": ()})
    ruled = WeightedBackend(name="c", weight=0, match=(Match(header="x-group", value="c"),))
    plain = WeightedBackend(name="b")
    world.state.update(Endpoint(name="e", backends=(plain, ruled)))
    asking = [world.ask(fields=((b"x-group", b"c"),)) for _ in range(3)]
    await asyncio.sleep(1)
    assert world.state.held_by_backend() == {"c": 3}
    assert world.state.report()["c"].held == 3
    world.pods.set_slices({"b": of_b, "c": (Address(host="c", port=1),)})
    await asyncio.gather(*asking)
    assert set(world.network.asked) == {"c"}
    world.pods.set_slices({"b": of_b, "c": ()})
    late = world.ask(fields=((b"x-group", b"c"),))
    await asyncio.sleep(1)
    world.state.update(Endpoint(name="e", backends=(plain, WeightedBackend(name="c", weight=0))))
    assert (await late).status == 200
    assert world.network.asked[-1] == "b"
    world.check_nothing_is_left()
