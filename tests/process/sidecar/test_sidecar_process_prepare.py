"""The real sidecar before a real model that must be configured and warmed up first."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.sidecar_process import Pair, got, until

PATH = "/-/reconfigure"
ASKED = b"POST /p HTTP/1.1\r\nhost: m\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    warm = tmp_path / "warmup.yaml"
    warm.write_text(
        "- {path: '/warm?flaky=2', body: {instances: [1]}}\n- {path: /warm, body: {instances: [2]}}\n"
    )
    made = Pair(tmp_path, f"--reconfigure-path={PATH}", f"--warmup={warm}", "--warmup-timeout=10s")
    yield made
    await made.stop()


async def configs_of(pair: Pair) -> list[Any]:
    document = (await pair.ask("/-/runs", method="GET", base=pair.model_url)).document
    configs: list[Any] = document["configs"]
    return configs


async def logged(pair: Pair, text: str) -> str:
    async def look() -> str:
        return next((line for line in pair.sidecar.log if text in line), "")

    entry: str = await until(look)
    return entry


async def test_the_model_is_configured_then_warmed_up_then_ready_and_again_after_a_restart(pair: Pair):
    pair.user_config = {"threshold": 1}
    await pair.start()
    assert (await pair.admin_get("/settings")).document["userConfig"] == "hidden"
    for _ in range(2):
        assert [config["config"] for config in await configs_of(pair)] == [{"threshold": 1}]
        runs = await pair.runs()
        assert [run["items"] for run in runs] == [[1], [1], [1], [2]]
        assert (await configs_of(pair))[0]["after"] == 0
        assert dict(runs[0]["fields"])["x-request-id"] == "warmup-1"
        assert got(await pair.predict(3)) == [3]
        pair.model.process.kill()
        await pair.model.stop()
        await pair.until_ready(ready=False)
        await pair.start_model()
        await pair.until_ready()
    assert "penstock_sidecar_batch_items_count 2.0" in (await pair.admin_get("/metrics")).body.decode()


async def test_a_restart_between_two_probes_is_seen_by_the_connection_that_ended(pair: Pair):
    pair.user_config = {"threshold": 1}
    await pair.start()
    for _ in range(3):
        pair.model.process.kill()
        await pair.model.ended()
        await pair.model.stop()
        await pair.start_model()

        seen: list[int] = []

        async def prepared(seen: list[int] = seen) -> bool:
            seen[:] = [len(await pair.runs()), len(await configs_of(pair))]
            return seen == [4, 1]

        await until(prepared, details=lambda seen=seen: (seen, pair.sidecar.log[-5:]))  # type: ignore[misc]
        await pair.until_ready()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "closing"])
async def test_a_restart_that_the_sidecar_slept_through_is_no_less_a_restart(pair: Pair, kept: bool):
    """It stands still from before the model's end until the next one serves: no connection is refused."""
    if not kept:  # then nothing that ends tells of it either
        pair.model_flags = ("--one-request-each",)
    pair.user_config = {"threshold": 1}
    await pair.start()
    for number in range(3):
        pair.signal(signal.SIGSTOP)
        pair.model.process.kill()
        await pair.model.ended()
        await pair.model.stop()
        await pair.start_model()
        # NB: by hand, so that the kernel has it before the sidecar goes on: it is read first thing.
        body = json.dumps({"instances": [10 + number]}).encode()
        reader, writer = await asyncio.open_connection(*pair.data.removeprefix("http://").split(":"))
        writer.write(ASKED % (len(body), body))
        await writer.drain()
        pair.signal(signal.SIGCONT)
        reply = await reader.read()
        writer.close()

        async def prepared() -> bool:
            return len(await pair.runs()) >= 4

        await until(prepared, details=lambda: pair.sidecar.log[-5:])
        await pair.until_ready()
        assert b'"got": %d' % (10 + number) in reply or b'"model_unreachable"' in reply
        assert got(await pair.predict(20)) == [20]
        runs = [run["items"] for run in await pair.runs()]
        assert runs[:4] == [[1], [1], [1], [2]], "a request came before the warm-up"
        assert runs.count([2]) == 1
        assert [config["after"] for config in await configs_of(pair)] == [0]


async def test_a_model_that_takes_no_connection_for_a_while_is_not_prepared_again(pair: Pair):
    """Its process is there all the time."""
    pair.model_flags = ("--one-request-each", "--backlog=8")
    pair.user_config = {"threshold": 1}
    await pair.start()
    pair.model.process.send_signal(signal.SIGSTOP)
    host, port = pair.model_url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as eviction:
        for _ in range(16):
            waiting = eviction.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, int(port)))
        await pair.until_ready(ready=False)
        assert "cannot connect to" in await logged(pair, "model is not ready")
        pair.model.process.send_signal(signal.SIGCONT)
    await pair.until_ready()
    assert got(await pair.predict(20)) == [20]
    assert [run["items"] for run in await pair.runs()] == [[1], [1], [1], [2], [20]]
    assert len(await configs_of(pair)) == 1


async def test_a_model_that_refuses_its_first_configuration_is_not_ready_and_says_so(pair: Pair):
    pair.user_config = {"refuse": "unknown member threshold"}
    await pair.start(ready=False)

    async def said() -> bool:
        return "unknown member threshold" in (await pair.admin_get("/readyz")).body.decode()

    await until(said)
    reply = await pair.predict(1)
    assert (reply.reason, reply.headers["x-penstock-not-admitted"]) == ("model_unreachable", "1")
    assert "unknown member threshold" in reply.document["detail"]
    assert (await pair.ask("/metadata", method="GET")).reason == "model_unreachable"
    assert await pair.runs() == []
    assert "reconfigure failed" in await logged(pair, "unknown member threshold")
    pair.user_config = {"threshold": 2}
    pair.settle()
    await pair.until_ready()


async def test_a_change_reaches_the_model_with_no_batch_in_it_and_nothing_is_lost(pair: Pair):
    pair.user_config = {"n": 0}
    await pair.start(maxBatchSize=4, maxQueuedItems=10_000)
    stop = asyncio.Event()
    served = 0

    async def client() -> None:
        nonlocal served
        while not stop.is_set():
            assert got(await pair.predict(served, path="/p?ms=5"))
            served += 1

    clients = [asyncio.create_task(client()) for _ in range(16)]
    for number in range(1, 4):
        pair.user_config = {"n": number, "ms": 100}
        pair.settle(maxBatchSize=4, maxQueuedItems=10_000)

        async def taken(number: int = number) -> bool:
            return (await configs_of(pair))[-1].get("config", {}).get("n") == number

        await until(taken)
    before = served
    await until(lambda: asyncio.sleep(0, served > before + 32))
    stop.set()
    await asyncio.gather(*clients)
    configs = await configs_of(pair)
    assert [config["config"]["n"] for config in configs] == [0, 1, 2, 3]
    assert [(config["running"], config["ran_meanwhile"]) for config in configs] == [(0, 0)] * 4


async def test_one_that_is_refused_or_lost_leaves_the_old_one_and_requests_go_on(pair: Pair):
    pair.user_config = {"n": 0}
    await pair.start()
    for config in ({"refuse": "no such thing"}, {"lose": True}):
        pair.user_config = config
        pair.settle(maxBatchSize=7)

        async def taken(config: Any = config) -> bool:
            return (await configs_of(pair))[-1]["config"] == config

        await until(taken)
        assert got(await pair.predict(5)) == [5]
    assert (await pair.admin_get("/readyz")).status == 200
    assert (await pair.admin_get("/settings")).document["batching"]["maxBatchSize"] == 7
    line = json.loads(await logged(pair, "no such thing"))
    assert (line["message"], line["level"]) == ("reconfigure failed", "error")
