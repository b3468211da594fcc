"""Restarts of a model and what prepares it, together: each process gets all of it once, before all else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.model.readiness import Readiness
from penstock_sidecar.model.reconfigure import Reconfigure
from penstock_sidecar.model.warmup import Warmup
from penstock_wire.http import ConnectFailed, ConnectionLost, Request, Response, UpstreamError
from tests.support.models.probed_model import World

WARM = (Request("POST", "/warm1", (), b""), Request("POST", "/warm2", (), b""))
BATCH = Request("POST", "/predict", (), b"")


class Processes(World):
    """One process after the other at one port, which notes what comes to each.

    Args:
        fails: which process answers 500 to what path.
    """

    def __init__(self, *warmup: Request, fails: tuple[int, str] = (0, "")) -> None:
        self.fails = fails
        self.got: dict[int, list[str]] = {}
        self.process = 1
        self.down = False
        self.quiet_now = asyncio.Event()
        self.quiet_now.set()
        self.loop = asyncio.get_running_loop()
        super().__init__()
        self.reconfigure = Reconfigure(
            "/conf", send=self.model.prepare, requests=self, changed=lambda: None, settled=False
        )
        made = Warmup(warmup, timeout=10, send=self.model.prepare, clock=self.loop.time)
        self.readiness = Readiness(reconfigure=self.reconfigure, warmup=made, changed=lambda: None)
        self.preparing = asyncio.create_task(self.readiness.run())

    def pause(self) -> None:
        """Send nothing more."""

    def resume(self) -> None:
        """Send again."""

    async def quiet(self) -> None:
        await self.quiet_now.wait()

    def _unprepared(self) -> str:
        return self.readiness.unprepared

    def _changed(self) -> None:
        super()._changed()
        self.readiness.model_changed(ready=self.model.ready, gone=self.model.gone)

    def want(self, config: object) -> None:
        self.reconfigure.want(config, 1)
        self.readiness.settings_changed()

    async def _answer(
        self, request: Request, timeout: float, connected: Callable[[], object] | None
    ) -> Response:
        """Each request on a connection of its own, which takes 1 ms, as its answer does."""
        await asyncio.sleep(0.001)
        if self.down:
            raise ConnectFailed("refused")
        process = self.process
        self.listening.now = process
        if connected is not None:
            connected()
        if request.target != "/ready":
            said = request.target + request.body.decode()
            self.got.setdefault(process, []).append(said)
        await asyncio.sleep(0.001)
        if self.down or process != self.process:
            raise ConnectionLost("cut")
        return Response(500 if self.fails == (process, request.target) else 200)

    def restart(self) -> None:
        """Another process takes this one's place at once: no connection is refused."""
        self.process += 1
        self.listening.now = self.process

    async def close(self) -> None:
        self.preparing.cancel()
        await asyncio.gather(self.preparing, return_exceptions=True)
        await super().close()


async def test_a_model_that_goes_while_its_warm_up_waits_for_another_try():
    """The next one is sent its userConfig first, and all of its warm-up."""
    world = Processes(*WARM, fails=(1, "/warm2"))
    world.want({"n": 1})
    await asyncio.sleep(10)  # 5 s lie between two tries by now
    world.restart()
    await asyncio.sleep(20)
    assert world.readiness.ready
    assert world.got[2] == ['/conf{"n":1}', "/warm1", "/warm2"]


async def test_a_model_that_goes_while_a_user_config_waits_for_quiet():
    """It waited for another process's batches: the next one gets it once, and not from there."""
    world = Processes()
    world.want({"n": 1})
    await asyncio.sleep(5)
    assert world.readiness.ready
    world.quiet_now.clear()
    world.want({"n": 2})
    await asyncio.sleep(1)
    world.restart()
    await asyncio.sleep(5)
    assert world.model.ready
    world.quiet_now.set()
    await asyncio.sleep(20)
    assert world.readiness.ready
    assert world.got == {1: ['/conf{"n":1}'], 2: ['/conf{"n":2}']}


async def test_a_model_that_goes_just_before_it_is_given_another_user_config():
    """The configuration that it had before is not sent again."""
    world = Processes()
    world.want({"n": 1})
    await asyncio.sleep(5)
    assert world.readiness.ready
    world.restart()
    world.want({"n": 2})
    await asyncio.sleep(20)
    assert world.readiness.ready
    assert world.got == {1: ['/conf{"n":1}'], 2: ['/conf{"n":2}']}


@given(
    lives=st.lists(st.integers(min_value=0, max_value=400), min_size=1, max_size=5),
    gaps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 40, 60, 300]), min_size=5, max_size=5),
    first=st.integers(min_value=0, max_value=5),
)
async def test_whenever_a_model_is_started_anew_nothing_comes_to_it_before_it_was_prepared(
    lives: list[int], gaps: list[int], first: int
):
    """Each lives for so many ms, refuses for so many, while requests come; the last is served by."""

    async def client(world: Processes, outcomes: list[Response | UpstreamError], pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            try:
                outcomes.append(await world.model.send(BATCH, 10))
            except UpstreamError as error:
                outcomes.append(error)

    world = Processes(*WARM)
    outcomes: list[Response | UpstreamError] = []
    await asyncio.sleep(first / 10)
    world.want({"n": 1})
    asked = [asyncio.create_task(client(world, outcomes, pause)) for pause in (0.007, 0.011)]
    for life, gap in zip(lives, gaps, strict=False):
        await asyncio.sleep(life / 1000)
        world.down = gap > 0
        if world.down:
            world.listening.now = 0
            await asyncio.sleep(gap / 1000)
        world.restart()
        world.down = False
    await asyncio.sleep(3)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert world.readiness.ready
    assert isinstance(outcomes[-1], Response)
    assert world.got[world.process][3] == "/predict"
    for got in world.got.values():
        prepared = [said for said, _ in itertools.groupby(got)][:3]
        assert prepared == ['/conf{"n":1}', "/warm1", "/warm2"][: len(prepared)]
        assert got[:3] == prepared, "something was sent twice"
        assert set(got[3:]) <= {"/predict"}


@pytest.mark.parametrize("gap", [0, 0.01])
async def test_a_model_that_nothing_prepares_is_sent_to_at_once(gap: float):
    """A process that took another's place is then not reported."""
    world = Processes()
    world.want(None)
    await asyncio.sleep(1)
    world.down = gap > 0
    await asyncio.sleep(gap)
    world.restart()
    world.down = False
    assert (await world.model.send(BATCH, 10)).status == 200
    assert world.got == {2: ["/predict"]}
