"""The Lease is renewed however busy the loop and all other connections are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.clock import Clock, LoopClock
from penstock_operator.errors import LeaseLost
from penstock_operator.kinds import CONFIG_MAP, LEASE
from penstock_operator.kube.cluster import Connection, KubernetesCluster
from penstock_operator.kube.lease import Elector, LeaseTimes
from penstock_operator.kube.lease_thread import STUCK, LeaseThread
from tests.support.clocks.hand_clock import HandClock
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.tiny_apiserver import TinyApiserver

TIMES = LeaseTimes(duration=90, renew_within=60, retry=0.01, again=0.01)


class Renewals(TinyApiserver):
    """An apiserver in a thread that counts the writes of the Lease."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.news = threading.Condition()
        self.cluster.watchers.append(self._count)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="apiserver", daemon=True)

    def _count(self, _event: str, obj: dict[str, Any]) -> None:
        if obj["kind"] == LEASE.kind:
            with self.news:
                self.count += 1
                self.news.notify_all()

    def more(self, number: int = 3) -> None:
        """Wait, the whole thread of the caller, for so many renewals more."""
        with self.news:
            wanted = self.count + number
            assert self.news.wait_for(lambda: self.count >= wanted, SECONDS)

    async def there(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def open(self, *, gate: bool) -> None:
        """Let ordinary calls through, or not."""
        (self.gate.set if gate else self.gate.clear)()

    async def begin(self) -> None:
        self._thread.start()
        await self.there(self.__aenter__())

    async def end(self) -> None:
        await self.there(self.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


@pytest.fixture
async def server() -> AsyncIterator[Renewals]:
    running = Renewals()
    await running.begin()
    yield running
    await running.end()


Keep = Callable[..., LeaseThread]


@pytest.fixture
async def keep(server: Renewals, tmp_path: Path) -> AsyncIterator[Keep]:
    """Makes a keeper of the Lease; it is closed afterwards."""
    config = tmp_path / "kubeconfig"
    config.write_text(server.kubeconfig())
    made: list[LeaseThread] = []

    def make(clock: Clock, seen: Callable[[Callable[[], bool]], None] = lambda _: None) -> LeaseThread:
        def elect(cluster: Connection, working: Callable[[], bool]) -> Elector:
            seen(working)
            return Elector(
                cluster, namespace="n", name="l", identity="one", clock=LoopClock(), times=TIMES,
                working=working,
            )  # fmt: skip

        made.append(LeaseThread(lambda: KubernetesCluster.connect(str(config)), elect, clock=clock))
        return made[-1]

    yield make
    for keeper in made:
        await keeper.close()


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_is_renewed_while_every_other_call_hangs(
    server: Renewals, keep: Keep, tmp_path: Path
) -> None:
    """More calls than the ordinary client has connections, none of them answered: Lease taken, and kept."""
    ordinary = await KubernetesCluster.connect(str(tmp_path / "kubeconfig"), timeout=600)
    await server.there(server.open(gate=False))
    calls = [asyncio.create_task(ordinary.get(CONFIG_MAP, "n", "c")) for _ in range(150)]
    keeper = keep(LoopClock())
    await keeper.acquire()
    holding = asyncio.create_task(keeper.hold())
    await asyncio.to_thread(server.more)
    assert keeper.until > LoopClock().time()
    assert not any(call.done() for call in calls)
    await server.there(server.open(gate=True))
    assert set(await asyncio.gather(*calls)) == {None}
    await ended(holding)
    await ordinary.close()


async def test_it_is_renewed_while_the_acting_loop_computes(server: Renewals, keep: Keep) -> None:
    """Not one turn of the loop that acts, and the Lease goes on."""
    keeper = keep(LoopClock())
    await keeper.acquire()
    holding = asyncio.create_task(keeper.hold())
    await asyncio.sleep(0)
    before = keeper.until
    server.more()  # blocks this loop, which is the one that acts
    assert keeper.until > before
    await ended(holding)


async def test_a_loop_that_shows_no_life_is_not_kept_the_leader(keep: Keep) -> None:
    """After `STUCK` seconds without a turn the acting loop does not count as working until it has one."""
    clock, ended = HandClock(), asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    keeper = keep(clock, lambda working: loop.call_soon_threadsafe(ended.set_result, working))
    await keeper.acquire()
    working = await ended
    clock.turn(STUCK - 1)
    assert working()
    clock.turn(2)
    assert not working()  # not one turn of this loop since the keeper was made
    await asyncio.sleep(0)
    assert working()


async def test_whoever_waited_long_to_lead_has_all_of_that_time_too(keep: Keep) -> None:
    """The loop of a standby was well for hours: nothing is held against it when it begins to act."""
    clock, led = HandClock(), asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    keeper = keep(clock, lambda working: loop.call_soon_threadsafe(led.set_result, working))
    await keeper.acquire()
    working = await led
    clock.turn(3600)
    holding = asyncio.create_task(keeper.hold())
    await asyncio.sleep(0)
    assert working()
    await ended(holding)


async def test_a_released_lease_is_nobodys(server: Renewals, keep: Keep) -> None:
    """A planned end releases it through the same thread; it was not held before it was asked for."""
    keeper = keep(LoopClock())
    assert keeper.until == float("-inf")
    await keeper.release()
    with pytest.raises(LeaseLost):
        await keeper.hold()
    await keeper.acquire()
    await keeper.release()
    assert keeper.until == float("-inf")
    assert server.cluster.find(LEASE, "n", "l")["spec"]["holderIdentity"] == ""
