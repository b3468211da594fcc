"""Lists bring the store to what is there, and a list that failed is made up for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import BACKEND, DEPLOYMENT, Kind
from penstock_operator.reconcile.relist import LISTED, Found, Relister
from tests.support.clocks.hand_clock import HandClock
from tests.support.worlds.operator_harness import Harness, backend

PAUSE = 400.0
VERSION = "7"


class Listing:
    """A relister whose lists are scripted."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.lists = self.looks = 0
        self.broken = False
        self.relister = Relister(
            self.relist, self.look, clock=self.clock, pause=lambda: PAUSE, log=lambda *_, **__: None
        )
        self.task = asyncio.create_task(self.relister.run())

    async def relist(self) -> Found:
        self.lists += 1
        if self.broken:
            raise Unavailable(500, "induced")
        return Found()

    def look(self) -> None:
        self.looks += 1

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_a_list_now_and_then_looks_at_everything() -> None:
    """The last resort of a level-triggered loop: each period one list and one look at every key."""
    listing = Listing()
    await listing.clock.advance(PAUSE - 1)
    assert (listing.lists, listing.looks) == (0, 0)
    await listing.clock.advance(2)
    assert (listing.lists, listing.looks) == (1, 1)
    await listing.clock.advance(PAUSE)
    assert (listing.lists, listing.looks) == (2, 2)
    await listing.end()


async def test_new_watches_bring_a_list_and_no_look_at_everything() -> None:
    """They have reported all existing objects; only deletions are missed."""
    listing = Listing()
    await listing.clock.advance(1)
    listing.relister.soon()
    await listing.clock.advance(LISTED - 1)
    assert listing.lists == 0
    await listing.clock.advance(2)
    assert (listing.lists, listing.looks) == (1, 0)
    await listing.end()


async def test_a_periodic_list_that_failed_is_made_up_for_with_its_look() -> None:
    """However often it fails in between."""
    listing = Listing()
    listing.broken = True
    await listing.clock.advance(PAUSE + 3 * LISTED + 1)
    assert listing.lists == 4
    assert listing.looks == 0
    listing.broken = False
    await listing.clock.advance(LISTED)
    assert (listing.lists, listing.looks) == (5, 1)
    await listing.clock.advance(PAUSE / 2)
    assert (listing.lists, listing.looks) == (5, 1)
    await listing.end()


async def test_what_a_stalled_watch_did_not_tell_is_fetched() -> None:
    """A list of metadata has the versions: what is newer or unknown is read, and looked at."""
    harness = await Harness().applied(backend())
    harness.events = False
    harness.cluster.edit(BACKEND, "n", "m", lambda live: live["spec"].update(replicas=3))
    harness.apply(backend("other"))
    harness.events = True
    relisted = await harness.manager.relist()
    assert relisted == Found(dropped=0, fetched=2)
    await harness.run()
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 3
    assert harness.cluster.find(DEPLOYMENT, "n", "other-backend")
    assert await harness.manager.relist() == Found()


async def test_no_watch_begins_where_a_list_was_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was deleted between the two is still in the store: kopf lists, so that it is looked for soon."""
    harness = Harness()
    made, fails = harness.cluster.list, iter([True])

    async def once(kind: Kind, *where: Any, began: Callable[[str], None], **more: Any) -> Any:
        if kind is DEPLOYMENT and next(fails, False):
            raise Unavailable(500, "induced")
        began(VERSION)
        return await made(kind, *where, **more)

    monkeypatch.setattr(harness.cluster, "list", once)
    with pytest.raises(Unavailable):
        await harness.manager.sync()
    await harness.manager.sync()
    listed = {kind: version for (kind, _), version in harness.manager.listed.items()}
    assert (listed[BACKEND], listed[DEPLOYMENT]) == ("", VERSION)
