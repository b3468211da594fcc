"""Made-up tokens cost a bounded number of TokenReviews and of bytes, and other clients nothing."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.control import auth
from penstock_operator.control.auth import Caller, ReportAuthenticator
from penstock_operator.control.rate_limit import BURST, SHARED_BURST, RateLimit
from penstock_operator.errors import ReportRefused
from penstock_operator.store import Store
from tests.support.clocks.hand_clock import HandClock
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

    def __init__(self, *, check_peer: bool = True) -> None:
        self.cluster, self.store, self.clock = MemoryCluster(), Store(), HandClock()
        self.asked: list[str] = []
        self.store.put(pod(ip=OWN, **{"penstock.dev/backend": "m"}))
        self.cluster.answer["TokenReview"] = self._review
        self.authenticator = ReportAuthenticator(self.cluster, self.store, self.clock, check_peer=check_peer)

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
