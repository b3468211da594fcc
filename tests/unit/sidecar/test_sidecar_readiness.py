"""The requests to a model before its pod is ready, and when its configuration changes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock_sidecar.model.readiness import Readiness
from penstock_sidecar.model.reconfigure import MESSAGE, QUIET_SECONDS, Reconfigure
from penstock_sidecar.model.warmup import Warmup
from penstock_wire.control import report
from penstock_wire.http import ConnectionLost, Request, Response
from tests.support.clocks import fake_loop


class World:
    """A model, what feeds it, and a note of all that happens."""

    def __init__(self, *, path: str | None = "/conf", warmup: int = 0, settled: bool = True) -> None:
        self.loop = asyncio.get_running_loop()
        self.refuse: dict[Any, int | Exception] = {}
        self.took = 0.0
        self.events: list[Any] = []
        self.calm = asyncio.Event()
        self.calm.set()
        self.paused = False
        self.reconfigure = Reconfigure(
            path, send=self.send, requests=self, changed=lambda: None, settled=settled
        )
        requests = tuple(Request("POST", f"/warm{n}", (), b"") for n in range(warmup))
        self.readiness = Readiness(
            reconfigure=self.reconfigure,
            warmup=Warmup(requests, timeout=5.0, send=self.send, clock=self.loop.time),
            changed=lambda: self.events.append("ready" if self.readiness.ready else "unready"),
        )
        self.task = asyncio.create_task(self.readiness.run())

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    async def quiet(self) -> None:
        await self.calm.wait()

    async def send(self, request: Request, timeout: float) -> Response:
        if request.target != "/conf":
            self.events.append(request.target)
            return Response(status=200)
        assert self.paused
        assert self.calm.is_set()
        config = msgspec.json.decode(request.body)
        self.events.append(config)
        await asyncio.sleep(self.took)
        answer = self.refuse.get(config, 204)
        if isinstance(answer, Exception):
            raise answer
        return Response(status=answer, body=b'{"detail": "I will not"}' if answer == 422 else b"x" * 9999)

    async def model(self, *, ready: bool = True, gone: bool = False) -> None:
        self.readiness.model_changed(ready=ready, gone=gone)
        await fake_loop.settle()

    async def want(self, config: Any, version: int) -> None:
        self.reconfigure.want(config, version)
        self.readiness.settings_changed()
        await fake_loop.settle()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_with_nothing_to_do_it_is_ready_in_the_same_moment():
    world = World(path=None)
    world.readiness.model_changed(ready=True, gone=False)
    assert world.readiness.ready
    assert world.readiness.message == ""


async def test_the_configuration_comes_first_then_the_warm_up_then_readiness_and_all_again_after_a_restart():
    world = World(warmup=2)
    await world.want("A", 1)
    assert world.events == []
    await world.model()
    once = ["A", "/warm0", "/warm1", "ready"]
    assert world.events == once
    assert world.reconfigure.result == report.Reconfigure(version=1, ok=True)
    await world.model(ready=False)
    await world.model()
    assert world.events == once, "not ready for a while is no restart"
    await world.model(ready=False, gone=True)
    await world.model()
    assert world.events == [*once, "unready", *once]


async def test_it_waits_for_the_settings_where_they_may_bring_a_configuration():
    world = World(settled=False)
    await world.model()
    assert (world.readiness.ready, world.readiness.message) == (False, "no settings yet")
    await world.want(None, 1)
    assert (world.readiness.ready, world.events) == (True, ["ready"])


async def test_a_first_configuration_that_is_refused_is_told_and_tried_again_and_nothing_is_ready():
    world = World(warmup=1)
    world.refuse["A"] = 422
    await world.want("A", 3)
    await world.model()
    wrong = "POST /conf: expected a 2xx, found 422: I will not"
    assert world.reconfigure.result == report.Reconfigure(version=3, ok=False, message=wrong)
    assert world.readiness.message == f"the model did not accept its userConfig: {wrong}"
    await asyncio.sleep(10)
    assert 4 <= world.events.count("A") <= 7
    assert not world.readiness.ready
    assert not world.paused
    await world.want("B", 4)
    assert world.events[-3:] == ["B", "/warm0", "ready"]
    assert world.reconfigure.result == report.Reconfigure(version=4, ok=True)


async def test_a_later_one_that_is_refused_leaves_the_old_one_and_is_not_tried_again():
    world = World()
    world.refuse["B"] = 500
    await world.want("A", 1)
    await world.model()
    await world.want("B", 2)
    await asyncio.sleep(60)
    assert world.events == ["A", "ready", "B"]
    result = world.reconfigure.result
    assert result is not None
    assert (result.version, result.ok) == (2, False)
    assert len(result.message) < MESSAGE + 100
    assert world.readiness.ready
    await world.want("A", 3)
    assert world.events == ["A", "ready", "B"], "it is in force"
    assert world.reconfigure.result == report.Reconfigure(version=3, ok=True)


async def test_a_model_that_is_started_anew_and_refuses_gets_the_last_one_that_it_took():
    world = World()
    world.refuse["B"] = ConnectionLost("lost")
    await world.want("A", 1)
    await world.model()
    await world.want("B", 2)
    await world.model(ready=False, gone=True)
    await world.model()
    assert world.events == ["A", "ready", "B", "unready", "B", "A", "ready"]
    result = world.reconfigure.result
    assert result == report.Reconfigure(version=2, ok=False, message="POST /conf: lost")


async def test_other_settings_bring_no_other_configuration():
    world = World()
    await world.want("A", 1)
    await world.model()
    await world.want("A", 2)
    assert world.events == ["A", "ready"]
    assert world.reconfigure.result == report.Reconfigure(version=1, ok=True)
    await world.want(None, 3)
    assert (world.events, world.reconfigure.result) == (["A", "ready"], None)


async def test_batches_that_do_not_end_only_delay_it(capsys: pytest.CaptureFixture[str]):
    world = World()
    await world.want("A", 1)
    await world.model()
    world.calm.clear()
    await world.want("B", 2)
    assert world.paused
    await asyncio.sleep(QUIET_SECONDS + 0.1)
    assert not world.paused
    assert world.readiness.ready
    world.calm.set()
    await asyncio.sleep(1)
    assert world.events == ["A", "ready", "B"]
    assert world.reconfigure.result == report.Reconfigure(version=2, ok=True)
    assert "batches did not end" in capsys.readouterr().err


async def test_a_model_that_goes_in_the_middle_is_told_anew():
    world = World(warmup=1)
    world.took = 1.0
    await world.want("A", 1)
    await world.model()
    await world.model(ready=False, gone=True)
    await world.model()
    assert world.events == ["A"]
    await asyncio.sleep(5)
    assert world.events == ["A", "A", "/warm0", "ready"]


async def test_changes_while_it_is_told_one_end_with_the_latest():
    world = World()
    world.took = 1.0
    await world.want("A", 1)
    await world.model()
    await asyncio.sleep(2)
    await world.want("B", 2)
    await world.want("C", 3)
    await world.want("D", 4)
    await asyncio.sleep(10)
    assert world.events == ["A", "ready", "B", "D"]
    assert world.reconfigure.result == report.Reconfigure(version=4, ok=True)
