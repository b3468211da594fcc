"""Kubelet's probes of a real router process, whatever its event loop is busy with."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.router_process import Reply, RouterProcess, backend, endpoint, until


@pytest.fixture
def stalling(router: Any, upstream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a router and stall its loop; returns it and the file that ends this."""
    monkeypatch.setattr(RouterProcess, "program", "tests.support.processes.stalling_router")

    async def make(**env: str) -> tuple[RouterProcess, Path]:
        server, goes_on = await upstream(), tmp_path / "goes on"
        process: RouterProcess = router(env={"STALL_UNTIL": str(goes_on), **env})
        await process.start(endpoint("e", backend("b", server.target)))
        assert (await process.ask()).status == 200
        process.signal(signal.SIGUSR1)
        await until(lambda: any("stalls" in line for line in process.log))
        return process, goes_on

    return make


async def probe(process: RouterProcess, path: str) -> Reply:
    """One probe, on a connection of its own, as kubelet's."""
    return await process.ask(path, method="GET", base=process.admin, headers={"connection": "close"})


async def test_a_busy_router_stays_ready(stalling: Any) -> None:
    """The loop makes no turn, and probes are answered; what needs the loop waits for it."""
    process, goes_on = await stalling()
    waiting = [asyncio.create_task(process.ask()), asyncio.create_task(process.metrics())]
    for _ in range(3):
        assert (await probe(process, "/readyz")).status == 200
        assert (await probe(process, "/livez")).status == 200
    assert not any(task.done() for task in waiting)
    goes_on.touch()
    reply, metrics = await asyncio.gather(*waiting)
    assert reply.status == 200
    assert "penstock_router_requests_total" in metrics
    asked = {"base": process.admin, "headers": {"accept": "application/openmetrics-text"}}
    page = await process.ask("/metrics", method="GET", **asked)
    assert "penstock_router_requests" in {family.name for family in families(page.body.decode())}


async def test_a_router_whose_loop_stands_still_is_neither_ready_nor_alive_until_it_goes_on(
    stalling: Any,
) -> None:
    process, goes_on = await stalling(STILL_SECONDS="1.5")

    async def wait_for(status: int) -> None:
        async with asyncio.timeout(SECONDS):
            for path in ("/readyz", "/livez"):
                while (reply := await probe(process, path)).status != status:
                    pass
        if status == 503:
            assert reply.document["detail"] == "the router's event loop stands still"

    await wait_for(503)
    goes_on.touch()
    await wait_for(200)


async def test_an_admin_port_that_is_taken_ends_the_process(router: Any, upstream: Any) -> None:
    first = await router().start(endpoint("e"))
    second: RouterProcess = router(f"--admin={first.admin.removeprefix('http://')}")
    await second.launch(endpoint("e"))
    assert await second.ended() == 1
    await until(lambda: any("cannot listen" in line for line in second.log))
