"""Made-up tokens cost a bounded number of TokenReviews and of bytes, and other clients nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_operator.control import auth
from penstock_operator.control.auth import (
    KEEP_LONGEST,
    KEEP_YES,
    REVIEWS_AT_ONCE,
    Caller,
    ReportAuthenticator,
)
from penstock_operator.control.rate_limit import BURST, SHARED_BURST, RateLimit
from penstock_operator.control.server import MAX_REPORTERS, most_reporters
from penstock_operator.errors import ReportRefused
from penstock_operator.kinds import Kind
from penstock_operator.store import Store
from tests.support.clocks.hand_clock import HandClock
from tests.support.clocks.waiting import until
from tests.support.processes.control_server import pod, token, verdict
from tests.support.worlds.memory_cluster import MemoryCluster

OWN, OTHER = "127.0.0.1", "10.9.9.9"


def test_an_address_gets_its_burst_and_then_so_many_a_second() -> None:
    """Others have their own; time that passed counts up to the burst."""
    clock = HandClock()
    limit = RateLimit(clock, burst=3, per_second=0.5)
    assert [limit.take("a") for _ in range(4)] == [True, True, True, False]
    assert limit.take("b")
    clock.turn(2)
    assert [limit.take("a") for _ in range(2)] == [True, False]
    clock.turn(1000)
    assert [limit.take("a") for _ in range(4)] == [True, True, True, False]


def test_only_so_many_addresses_are_remembered() -> None:
    """Those that have been quiet make room; while none has, a new one waits."""
    clock = HandClock()
    limit = RateLimit(clock, burst=2, per_second=1, sources=2)
    assert limit.take("a")
    assert limit.take("b")
    assert not limit.take("c")
    assert limit.take("a")
    clock.turn(1)
    assert limit.take("c")
    assert not limit.take("b")


class World:
    """An authenticator, and how often the apiserver was asked."""

    def __init__(self, *, check_peer: bool = True, **more: Any) -> None:
        self.cluster, self.store, self.clock = MemoryCluster(), Store(), HandClock()
        self.asked: list[str] = []
        self.store.put(pod(ip=OWN, **{"penstock.dev/backend": "m"}))
        self.cluster.answer["TokenReview"] = self._review
        self.authenticator = ReportAuthenticator(
            self.cluster, self.store, self.clock, check_peer=check_peer, **more
        )

    def _review(self, review: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(review["spec"]["token"])
        known = review["spec"]["token"] == token()
        return review | {"status": verdict() if known else verdict(authenticated=False)}

    async def report(self, bearer: str, peer: str) -> Caller | str:
        """The caller, or the word of the refusal."""
        try:
            return await self.authenticator.authenticate(
                authorization=f"Bearer {bearer}", peer=peer, router=False
            )
        except ReportRefused as refusal:
            return f"{refusal.status} {refusal.reason}"


async def test_new_tokens_of_one_address_are_reviewed_up_to_a_limit() -> None:
    """Beyond it 429, without a question to the apiserver; a pod elsewhere is let in all the same."""
    world = World()
    statuses = [await world.report(f"made-up-{number}", OTHER) for number in range(100)]
    assert statuses == ["401 bad_token"] * int(BURST) + ["429 too_many_tokens"] * (100 - int(BURST))
    assert len(world.asked) == BURST
    assert isinstance(await world.report(token(), OWN), Caller)
    world.clock.turn(5)
    for number in range(100, 200):
        await world.report(f"made-up-{number}", OTHER)
    assert len(world.asked) == BURST + 1 + 5


async def test_an_address_that_all_pods_share_gets_what_they_need() -> None:
    """Still bounded, and one that is known costs nothing."""
    world = World(check_peer=False)
    assert isinstance(await world.report(token(), OTHER), Caller)
    statuses = [await world.report(f"made-up-{number}", OTHER) for number in range(int(SHARED_BURST))]
    assert statuses == ["401 bad_token"] * (int(SHARED_BURST) - 1) + ["429 too_many_tokens"]
    assert isinstance(await world.report(token(), OTHER), Caller)


async def test_a_known_token_is_let_in_however_many_others_its_address_sent() -> None:
    """Whoever shares an address with a flood keeps what was found of him."""
    world = World()
    await world.report(token(), OWN)
    for number in range(100):
        await world.report(f"made-up-{number}", OWN)
    assert await world.report("made-up-99", OWN) == "429 too_many_tokens"
    assert isinstance(await world.report(token(), OWN), Caller)


async def test_verdicts_are_bounded_and_a_flood_drives_out_no_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """From however many addresses it comes."""
    monkeypatch.setattr(auth, "MAX_VERDICTS", 10)
    world = World()
    await world.report(token(), OWN)
    for number in range(100):
        assert await world.report(f"made-up-{number}", f"10.0.0.{number}") == "401 bad_token"
        assert len(world.authenticator._verdicts) <= 10
    asked = len(world.asked)
    assert isinstance(await world.report(token(), OWN), Caller)
    assert len(world.asked) == asked


async def test_positive_verdicts_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes; its pod costs another review."""
    monkeypatch.setattr(auth, "MAX_VERDICTS", 10)
    world = World()
    world.cluster.answer["TokenReview"] = lambda review: review | {"status": verdict()}
    for number in range(50):
        world.clock.turn(1)
        assert isinstance(await world.report(token(mark=str(number)), OWN), Caller)
        assert len(world.authenticator._verdicts) <= 10


async def test_a_start_does_not_flood_the_apiserver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few TokenReviews are under way at once; a pod whose turn is later is refused, and let in then."""
    monkeypatch.setattr(auth, "REVIEW_PATIENCE", 0.0)
    world, gate, most = World(), asyncio.Event(), 0
    create, under_way = world.cluster.create, 0

    async def slow(kind: Kind, review: dict[str, Any]) -> dict[str, Any]:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await gate.wait()
        under_way -= 1
        return await create(kind, review)

    monkeypatch.setattr(world.cluster, "create", slow)
    world.cluster.answer["TokenReview"] = lambda review: review | {"status": verdict()}
    tokens = [token(mark=str(number)) for number in range(3 * REVIEWS_AT_ONCE)]
    reports = [world.report(each, f"10.0.0.{number}") for number, each in enumerate(tokens)]
    assert set(await asyncio.gather(*reports)) == {"503 no_review"}
    gate.set()
    await until(lambda: not world.authenticator._running)
    assert most == REVIEWS_AT_ONCE
    assert all([isinstance(await world.report(each, OWN), Caller) for each in tokens])


class Gated(World):
    """A world whose apiserver takes reviews, and answers once `gate` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        super().__init__(**more)
        self.gate, self.begun = asyncio.Event(), list[str]()
        create = self.cluster.create

        async def slow(kind: Kind, review: dict[str, Any]) -> dict[str, Any]:
            self.begun.append(review["spec"]["token"])
            await self.gate.wait()
            return await create(kind, review)

        monkeypatch.setattr(self.cluster, "create", slow)
        monkeypatch.setattr(auth, "REVIEW_PATIENCE", 0.0)

    async def flood(self, size: int, mark: str = "made-up") -> None:
        """Report with tokens of no namespace, each from another address."""
        reports = [self.report(f"{mark}-{number}", f"10.0.{number}.1") for number in range(size)]
        assert set(await asyncio.gather(*reports)) == {"503 no_review"}


async def test_tenants_take_turns_at_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many made-up tokens others sent before, the next place is another namespace's."""
    world = Gated(monkeypatch)
    await world.flood(10 * REVIEWS_AT_ONCE)
    assert await world.report(token(), OWN) == "503 no_review"
    waiting = list(world.authenticator._running.values())
    for task in waiting[REVIEWS_AT_ONCE : 2 * REVIEWS_AT_ONCE]:
        task.cancel()  # as they end with the loop: each place goes on
    world.gate.set()
    await until(lambda: not world.authenticator._running)
    assert token() in world.begun[: REVIEWS_AT_ONCE + 2]
    assert len(world.begun) == 9 * REVIEWS_AT_ONCE + 1
    assert world.authenticator._places == REVIEWS_AT_ONCE
    assert isinstance(await world.report(token(), OWN), Caller)


async def test_of_too_many_that_wait_those_of_the_largest_tenant_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused as if they had waited for too long."""
    world = Gated(monkeypatch, waiting=10)
    await world.flood(REVIEWS_AT_ONCE + 9)
    assert await world.report(token(), OWN) == "503 no_review"
    await world.flood(50, "more")
    assert len(world.authenticator._waiting) == 10
    assert len(world.authenticator._running) == REVIEWS_AT_ONCE + 10
    world.gate.set()
    await until(lambda: not world.authenticator._running)
    assert token() in world.begun
    assert len(world.begun) == REVIEWS_AT_ONCE + 10


async def test_verdicts_that_have_ended_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So they do not count as pods, for which verdicts would hold for longer."""
    assert auth.MAX_VERDICTS > MAX_REPORTERS
    monkeypatch.setattr(auth, "FEW_VERDICTS", 128)
    world = World()
    world.cluster.answer["TokenReview"] = lambda review: review | {"status": verdict()}
    for number in range(1000):
        world.clock.turn(1)
        assert isinstance(await world.report(token(mark=str(number)), OWN), Caller)
    assert KEEP_YES <= len(world.authenticator._verdicts) <= 128


async def test_many_pods_are_reviewed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than the apiserver should review in a minute, verdicts hold for longer, and end apart."""
    world = World()
    world.cluster.answer["TokenReview"] = lambda review: review | {"status": verdict()}
    monkeypatch.setattr(auth, "REVIEWS_PER_SECOND", 0.25)
    kept = []
    for number in range(100):
        world.clock.turn(1)  # its address gets one a second
        assert isinstance(await world.report(token(mark=str(number)), OWN), Caller)
        *_, (end, _) = world.authenticator._verdicts.values()
        kept.append(end - world.clock.time())
    assert kept[:15] == [KEEP_YES] * 15
    assert 180 <= min(kept[60:]) < max(kept) == KEEP_LONGEST
    assert len(set(kept[40:70])) == 30


@pytest.mark.parametrize(
    ("mebibytes", "expected"), [(512, 5_242), (1024, 10_485), (8192, 40_000), (None, 40_000)]
)
def test_connections_of_reports_take_half_of_the_memory(mebibytes: int | None, expected: int) -> None:
    """Where there is more, more pods can report."""
    assert most_reporters(None if mebibytes is None else mebibytes * 1024 * 1024) == expected
