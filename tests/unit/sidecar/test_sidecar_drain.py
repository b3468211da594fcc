"""The drain as a machine of its own: its phases, its way back, and its end, on a loop whose time jumps."""

from __future__ import annotations

import asyncio
import math

import pytest

from penstock_sidecar.drain import Drain, Phase
from penstock_wire.errors import PenstockError, Reason


class World:
    """A dispatcher and a front that note what a drain does to them."""

    def __init__(
        self, *, propagation_delay: float = 5.0, timeout: float = 30.0, grace: float | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun = self.loop.time()
        self.quiet = asyncio.Event()
        self.quiet.set()
        self.connected = -math.inf
        self.refusing: PenstockError | None = None
        self.refused_queued: list[float] = []
        self.events: list[tuple[float, str]] = []
        self.drain = Drain(
            requests=self,
            connections=self,
            propagation_delay=propagation_delay,
            timeout=timeout,
            changed=lambda: self.note(self.drain.phase.value),
            grace=grace,
        )

    def note(self, event: str) -> None:
        self.events.append((round(self.loop.time() - self.begun, 3), event))

    async def idle(self) -> None:
        await self.quiet.wait()

    def refuse(self, error: PenstockError | None) -> None:
        self.refusing = error

    def refuse_queued(self, error: PenstockError) -> int:
        assert error.reason is Reason.DRAINING
        assert error.not_admitted
        self.note("refused queued")
        return 1

    def close_keepalive(self, *, idle: bool = True) -> None:
        self.note("idle closed" if idle else "keepalive off")

    def open_keepalive(self) -> None:
        self.note("keepalive on")


async def test_an_idle_pod_takes_requests_for_the_propagation_delay_and_then_is_drained():
    world = World()
    world.drain.begin()
    await asyncio.sleep(4.9)
    assert world.drain.phase is Phase.PROPAGATING
    assert world.refusing is None
    await world.drain.drained()
    assert world.events == [
        (0, "propagating"),
        (0, "keepalive off"),
        (5, "flushing"),
        (5, "idle closed"),
        (5, "drained"),
    ]
    assert world.refusing is not None
    assert world.refusing.reason is Reason.DRAINING


async def test_it_is_drained_when_the_queue_is_empty_and_takes_requests_until_then():
    world = World()
    world.quiet.clear()
    world.drain.begin()
    await asyncio.sleep(12)
    assert world.drain.phase is Phase.FLUSHING
    assert world.refusing is None
    world.quiet.set()
    await world.drain.drained()
    assert world.events[-1] == (12, "drained")


@pytest.mark.parametrize(("last", "over"), [(2, 7), (8, 13), (60, 35)])
async def test_clients_that_still_connect_are_served(last: int, over: int):
    """Endpoints may follow late: until none has connected for the propagation delay, or until the timeout."""
    world = World()
    world.drain.begin()
    for second in range(last + 1):
        world.connected = world.loop.time()
        assert (world.refusing is None) == (second < over)
        await asyncio.sleep(1)
    await world.drain.drained()
    assert world.events[-1] == (over, "drained")


@pytest.mark.parametrize(("timeout", "at"), [(30.0, 35), (0.0, 5)])
async def test_at_the_timeout_the_queued_are_refused_and_the_ongoing_run_on(timeout: float, at: float):
    world = World(timeout=timeout)
    world.quiet.clear()
    world.drain.begin(final=True)
    await asyncio.sleep(at + 20)
    assert (at, "refused queued") in world.events
    assert world.drain.phase is Phase.FLUSHING
    assert world.refusing is not None
    world.quiet.set()
    await world.drain.drained()
    assert world.events[-1] == (at + 20, "drained")


class TestComingBack:
    async def test_when_the_model_went_away_and_is_ready_again(self):
        world = World()
        world.drain.begin()
        await world.drain.drained()
        # Readiness that lasts is not a sign of a restart.
        world.drain.model_changed(ready=True, gone=False)
        # Nor is a readiness that fails for a while.
        world.drain.model_changed(ready=False, gone=False)
        world.drain.model_changed(ready=True, gone=False)
        assert world.drain.phase is Phase.DRAINED
        world.drain.model_changed(ready=False, gone=False)
        world.drain.model_changed(ready=False, gone=True)
        world.drain.model_changed(ready=False, gone=False)
        world.drain.model_changed(ready=True, gone=False)
        assert world.drain.phase is Phase.SERVING
        assert world.refusing is None
        assert world.events[-2:] == [(5, "keepalive on"), (5, "serving")]
        # The next one is a drain like the first.
        world.drain.begin()
        await world.drain.drained()
        assert world.drain.phase is Phase.DRAINED

    async def test_when_no_sigterm_came_within_grace_and_five_seconds(self):
        world = World()
        world.quiet.clear()
        world.drain.begin()
        await asyncio.sleep(69.9)
        assert world.drain.draining
        await asyncio.sleep(0.2)
        assert world.drain.phase is Phase.SERVING
        await world.drain.drained()

    async def test_never_once_the_process_was_told_to_end(self):
        world = World()
        world.drain.begin()
        await asyncio.sleep(1)
        world.drain.begin(final=True)
        world.drain.model_changed(ready=False, gone=True)
        world.drain.model_changed(ready=True, gone=False)
        await asyncio.sleep(1000)
        assert world.drain.phase is Phase.DRAINED
        assert [event for _, event in world.events].count("propagating") == 1


async def test_hurry_skips_the_rest_of_the_propagation_delay():
    world = World()
    world.drain.begin(final=True)
    await asyncio.sleep(1)
    world.drain.hurry()
    await world.drain.drained()
    assert world.events[-1] == (1, "drained")


async def test_grace_is_what_the_operator_renders():
    assert World(propagation_delay=5, timeout=30).drain.grace == 65


@pytest.mark.parametrize(
    ("grace", "left"),
    [(None, 65 - 2.0), (30.0, 30 - 2.0), (4.0, 4 - 1.0)],
    ids=["rendered", "given", "short"],
)
async def test_what_is_left_is_counted_from_the_drains_beginning_and_less_than_the_grace(
    grace: float | None, left: float
):
    world = World(grace=grace)
    world.quiet.clear()
    world.drain.begin()
    assert world.drain.left == pytest.approx(left)
    await asyncio.sleep(2.0)
    # The hook that began it is followed by SIGTERM: a kubelet does not begin anew either.
    world.drain.begin(final=True)
    assert world.drain.left == pytest.approx(left - 2.0)
    world.quiet.set()
    await world.drain.drained()


@pytest.mark.parametrize("turns", range(6))
async def test_it_comes_back_also_in_the_moment_in_which_the_queue_is_empty(turns: int):
    """Python 3.11's `wait_for` swallows a cancellation when what it waits for has just come."""
    world = World(propagation_delay=0.0)
    world.quiet.clear()
    world.drain.begin()
    await asyncio.sleep(1)
    assert world.drain.phase is Phase.FLUSHING
    world.drain.model_changed(ready=False, gone=True)
    world.quiet.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    world.drain.model_changed(ready=True, gone=False)
    await asyncio.sleep(1)
    assert world.drain.phase is Phase.SERVING
    assert world.refusing is None
