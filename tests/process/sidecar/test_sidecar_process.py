"""The real sidecar process before a real model: batching, bad input, settings, drains, a dying model."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families

from penstock_wire.memory_limit import most_kept
from tests.support.http import client_heads
from tests.support.processes.sidecar_process import HELD, Pair, Program, Reply, got, run, until

JSON = {"content-type": "application/json"}
Start = Callable[..., Awaitable[Pair]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    pairs: list[Pair] = []

    async def begin(*flags: str, env: dict[str, str] | None = None, model: tuple[str, ...] = (), **more: Any):
        pair = Pair(tmp_path, *flags, env=env, model_flags=model)
        pairs.append(pair)
        return await pair.start(**more)

    yield begin
    for pair in pairs:
        await pair.stop()


async def test_concurrent_requests_share_batches_and_each_gets_its_own_answer(start: Start):
    pair = await start(maxBatchSize=8, maxQueuedItems=500)
    first = asyncio.create_task(pair.predict("first", path=HELD))
    await pair.until_state(ongoing=1)
    asked = [asyncio.create_task(pair.predict({"id": i}, [i])) for i in range(100)]
    await pair.until_state(queued=200)
    await pair.release()
    assert got(await first) == ["first"]
    assert [got(await task) for task in asked] == [[{"id": i}, [i]] for i in range(100)]
    runs = await pair.runs()
    assert [len(run["items"]) for run in runs] == [1] + [8] * 25
    assert max(run["running"] for run in runs) == 1
    metrics = (await pair.admin_get("/metrics")).body.decode()
    assert 'penstock_sidecar_requests_total{code="200",reason=""} 101.0' in metrics
    assert "penstock_sidecar_batch_items_sum 201.0" in metrics
    page = await pair.admin_get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert "penstock_sidecar_requests" in {family.name for family in families(page.body.decode())}
    assert (await pair.ask("/metrics", method="HEAD", base=pair.admin)).status == 200


async def test_what_any_client_sends_is_batched(start: Start):
    """Whatever it writes of its connection; what the head says beside that may part batches."""
    pair = await start(maxBatchSize=2 * len(client_heads.HEADS), maxQueuedItems=500)
    host, _, port = pair.data.removeprefix("http://").partition(":")
    first = asyncio.create_task(pair.predict("first", path=HELD))
    await pair.until_state(ongoing=1)

    async def ask(client: str) -> Any:
        body = json.dumps({"instances": [client]}).encode()
        ((status, _, got),) = await client_heads.ask((host, int(port)), client, body)
        return status, json.loads(got)["predictions"]

    asked = [asyncio.create_task(ask(client)) for client in client_heads.HEADS for _ in range(2)]
    await pair.until_state(queued=len(asked))
    await pair.release()
    await first
    assert await asyncio.gather(*asked) == [
        (200, [{"got": name}]) for name in client_heads.HEADS for _ in range(2)
    ]
    runs = (await pair.runs())[1:]
    assert min(len(run["items"]) for run in runs) >= 2


async def test_however_much_clients_have_a_sidecar_keep_it_stays_within_its_memory(start: Start):
    """Bodies that come, bodies that wait, of clients that say no more; another client is served meanwhile."""
    limit = 100 << 20
    pair = await start(f"--memory-limit={limit}", maxBatchSize=1, maxQueuedItems=1000)
    host, _, port = pair.data.removeprefix("http://").partition(":")
    longest = most_kept(limit) // 4
    assert (await pair.ask("/predict", data=io.BytesIO(bytes(longest + 1)))).status == 413
    running = asyncio.create_task(pair.predict("running", path=HELD))
    await pair.until_state(ongoing=1)
    hostile: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    most = 0
    for number in range(40):
        reader, writer = await asyncio.open_connection(host, int(port))
        hostile.append((reader, writer))
        body = b'{"instances": ["%b"]}' % (b"x" * (longest - 100))
        head = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body[: len(body) - number % 2])
        sent, refused = asyncio.ensure_future(writer.drain()), asyncio.ensure_future(reader.read(1))
        await asyncio.wait({sent, refused}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sent, refused):
            task.cancel()
        await asyncio.gather(sent, refused, return_exceptions=True)
        most = max(most, pair.sidecar.rss())
    assert most < limit
    await pair.release()
    assert got(await running) == ["running"]
    assert got(await pair.predict("other")) == ["other"]
    metrics = (await pair.admin_get("/metrics")).body.decode()
    (gave_way,) = re.findall(r"\npenstock_sidecar_connections_gave_way_total (\S+)", metrics)
    assert float(gave_way) > 0
    for _, writer in hostile:
        writer.transport.abort()


async def test_what_a_sidecar_remembers_of_its_requests_stays_small(start: Start):
    """Keys of queues hold parameters, credentials and targets, which clients choose."""
    limit = 100 << 20
    pair = await start(f"--memory-limit={limit}", maxBatchSize=8)
    large = most_kept(limit) // 4 - 1000
    for number in range(30):
        body = b'{"instances": [1], "p": "%d%b"}' % (number, b"x" * large)
        assert (await pair.ask("/predict", data=io.BytesIO(body), headers=JSON)).status == 200
        name = f"{number}-{'x' * 30_000}"
        assert (await pair.predict(1, headers={"authorization": name, name: "y"})).status == 200
    assert pair.sidecar.rss() < limit


async def test_a_request_alone_passes_byte_for_byte_both_ways(start: Start):
    pair = await start()
    body = b' {"instances": [ 9007199254740993, 1E400, "\\u00fc" ], "b": {"y":1,"x":2}}'
    path = "/v1/models/m:predict?fields=1&q=%2F"
    reply = await pair.ask(path, data=body, headers={**JSON, "x-request-id": "mine", "x-tenant": "t"})
    assert (reply.status, reply.headers["x-request-id"]) == (200, "mine")
    assert reply.document["model_version"] == "7"
    assert reply.headers["x-model"] == "m7"
    assert reply.headers["set-cookie"] == "a=b"
    # What only Penstock may say is not taken from a model.
    assert "x-penstock-not-admitted" not in reply.headers
    assert reply.headers["x-penstock-queue"] == "0"
    (run,) = await pair.runs()
    assert (run["body"].encode(), run["target"]) == (body, path)
    fields = dict(run["fields"])
    assert (fields["x-request-id"], fields["x-tenant"]) == ("mine", "t")


async def test_requests_without_items_of_their_own_pass_through(start: Start):
    pair = await start()
    reply = await pair.ask("/v1/models/m", method="GET")
    assert (reply.status, reply.document) == (200, {"path": "/v1/models/m", "method": "GET"})


async def send_raw(pair: Pair, data: bytes, *, end: bool = False) -> bytes:
    host, port = pair.data.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    if end:
        writer.close()
        await writer.wait_closed()
        return b""
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return answer


BAD_BODIES = [
    (b'{"instances": [1]', 400, "bad_json"),
    (b'{"instances": [1], "instances": [2]}', 400, "bad_json"),
    (b'{"instances": ["\xff"]}', 400, "bad_json"),
    (b'{"instances": ' + b"[" * 600 + b"]" * 600 + b"}", 400, "bad_json"),
    (b'{"instances": {"a": 1}}', 422, "bad_shape"),
    (b'{"instances": null}', 422, "bad_shape"),
]
BAD_ANSWERS = [
    ("wrong=1", 502, "bad_answer"),
    ("garbage=1", 502, "bad_answer"),
    ("nohttp=1", 502, "bad_answer"),
    ("cut=1", 502, "model_unreachable"),
    ("reset=1", 502, "model_unreachable"),
]


async def test_bad_input_and_bad_answers_concern_nobody_else(start: Start):
    pair = await start(model=("--base-ms=5",))
    stop = asyncio.Event()
    served: list[Reply] = []

    async def neighbour(number: int) -> None:
        while not stop.is_set():
            served.append(await pair.predict(number))
            assert got(served[-1]) == [number]

    neighbours = [asyncio.create_task(neighbour(number)) for number in range(4)]
    for body, status, reason in BAD_BODIES:
        reply = await pair.ask(data=body, headers=JSON)
        assert (reply.status, reply.reason) == (status, reason), body[:40]
    for query, status, reason in BAD_ANSWERS:
        # All in one batch: the protocol's checks are for batches of several.
        held = asyncio.create_task(pair.predict(query, path=f"/p?hold={query}"))
        await pair.until_state(ongoing=1, queued=len(neighbours))
        path = f"/v1/models/bad:predict?{query}"
        asked = [asyncio.create_task(pair.predict(number, path=path)) for number in range(6)]
        await pair.until_state(queued=len(neighbours) + 6)
        await pair.release(query)
        assert got(await held) == [query]
        replies = await asyncio.gather(*asked)
        # Run again alone, what the checks are not for passes: no prediction at all, or no JSON.
        alone = query in ("wrong=1", "garbage=1")
        for reply in replies:
            if alone:
                assert reply.status == 200, query
            else:
                assert (reply.status, reply.reason) == (status, reason), query
                assert "x-penstock-not-admitted" not in reply.headers
    for reply in await asyncio.gather(
        *(pair.predict(n, path="/v1/models/bad:predict?status=500") for n in range(4))
    ):
        assert (reply.status, reply.document) == (500, {"error": "the model says no"})
        assert reply.headers["x-model"] == "grumpy"
    # Cut in the middle, larger than announced sizes allow, no HTTP at all.
    await send_raw(pair, b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{", end=True)
    huge = await send_raw(pair, b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n{")
    assert huge.startswith(b"HTTP/1.1 413")
    assert b"too_large" in huge
    none = await send_raw(pair, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    assert b" 400 " in none.split(b"\r\n")[0]
    before = len(served)

    async def more() -> bool:
        return len(served) > before + 8

    await until(more)
    stop.set()
    await asyncio.gather(*neighbours)
    await pair.until_state(queued=0, ongoing=0)
    assert (await pair.admin_get("/livez")).status == 200


async def test_a_model_that_hangs_is_answered_at_the_deadline_and_the_next_is_served(start: Start):
    pair = await start(maxBatchSize=4)
    slow = await pair.predict(1, path="/p?hang=1", headers={"x-penstock-timeout-ms": "300"})
    assert (slow.status, slow.reason) == (504, "deadline")
    assert got(await pair.predict(2)) == [2]


@pytest.mark.parametrize("protocol", ["instances", "none"])
async def test_a_timeout_that_cannot_be_read_is_refused_and_reaches_no_model(start: Start, protocol: str):
    """Whoever sends one wants an answer in some time: the default would be another than was asked for."""
    pair = await start(f"--protocol={protocol}", maxBatchSize=4)
    large = "x" * 100_000  # to be taken as a stream
    for items in (1, large):
        refused = await pair.predict(items, headers={"x-penstock-timeout-ms": "abc"})
        assert (refused.status, refused.reason) == (400, "bad_request")
        expected = "expected x-penstock-timeout-ms in whole milliseconds, found 'abc'"
        assert refused.document["detail"] == expected
    assert got(await pair.predict(2)) == [2]
    assert [run["items"] for run in await pair.runs()] == [[2]]


async def test_a_full_queue_refuses_at_once_and_marks_it_unexecuted(start: Start):
    pair = await start(maxBatchSize=1, maxQueuedItems=1)
    slow = [asyncio.create_task(pair.predict(n, path=HELD)) for n in range(2)]
    await pair.until_state(queued=1, ongoing=1)
    refused = await pair.predict(3)
    assert (refused.status, refused.reason) == (503, "queue_full")
    assert refused.headers["x-penstock-not-admitted"] == "unread"
    await pair.release()
    assert [got(await task) for task in slow] == [[0], [1]]


async def test_a_client_that_left_is_never_sent(start: Start):
    pair = await start(maxBatchSize=1)
    slow = asyncio.create_task(pair.predict(0, path=HELD))
    await pair.until_state(ongoing=1)
    gone = asyncio.create_task(pair.predict(1))
    await pair.until_state(queued=1)
    gone.cancel()
    await pair.until_state(queued=0, ongoing=1)
    await pair.release()
    assert got(await slow) == [0]
    assert got(await pair.predict(2)) == [2]
    assert [run["items"] for run in await pair.runs()] == [[0], [2]]


async def test_a_changed_file_is_taken_up_without_restart_and_a_bad_one_changes_nothing(start: Start):
    pair = await start(maxBatchSize=1)
    assert (await pair.admin_get("/settings")).document["batching"]["maxBatchSize"] == 1
    slow = asyncio.create_task(pair.predict(0, path=HELD))
    await pair.until_state(ongoing=1)
    pair.settle(maxBatchSize=16)

    async def size() -> bool:
        document = (await pair.admin_get("/settings")).document
        return bool(document["batching"]["maxBatchSize"] == 16)

    await until(size)
    assert not slow.done()
    await pair.release()
    assert got(await slow) == [0]

    async def settings_shown() -> bool:
        return any("settings refused" in line for line in pair.sidecar.log)

    for cut in ("{ this is: [neither", "# nothing but this\n"):
        pair.settings_path.write_text(cut)
        await until(settings_shown)
        pair.sidecar.log.clear()
    await asyncio.gather(*(pair.predict(n) for n in range(8)))
    assert await size()


async def test_a_file_by_hand_is_refused_at_the_start_and_later_for_what_it_does_not_know(
    start: Start, tmp_path: Path
):
    """It says where and what is near; a start ends, as without the file; a change changes nothing."""
    path = tmp_path / "by-hand.yaml"
    for text in ("No such file or directory", "unknown member maxBachSize: the nearest is maxBatchSize"):
        ended = await run(
            "penstock_sidecar", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", f"--settings={path}"
        )
        assert (ended.code, ended.out) == (2, "")
        assert text in ended.err
        assert str(path) in ended.err
        path.write_text("batching: {maxBachSize: 8}\n")
    pair = await start(maxBatchSize=4, batchWaitTimeout="20ms")
    assert (await pair.admin_get("/settings")).document["batching"]["batchWaitTimeoutMs"] == 20
    pair.settle(maxBachSize=16)

    async def logged() -> bool:
        return any("nearest is maxBatchSize" in line for line in pair.sidecar.log)

    await until(logged)
    assert (await pair.admin_get("/settings")).document["batching"]["maxBatchSize"] == 4


async def test_drain_by_http_needs_the_secret_and_loses_nothing(start: Start):
    pair = await start("--drain-timeout=60s", env={"PENSTOCK_DRAIN_SECRET": "s3cret"}, maxBatchSize=2)
    for headers in ({}, {"x-penstock-drain": "wrong"}):
        assert (await pair.admin_get("/drain", headers=headers)).status == 403
    assert (await pair.admin_get("/readyz")).status == 200
    asked = [asyncio.create_task(pair.predict(n, path=HELD)) for n in range(7)]
    await pair.until_load(7)
    drain = asyncio.create_task(pair.admin_get("/drain", headers={"x-penstock-drain": "s3cret"}))
    await pair.until_state(drain="flushing")
    assert not drain.done()
    await pair.release()
    drained = await drain
    assert (drained.status, drained.body) == (200, b"drained\n")
    assert [got(await task) for task in asked] == [[n] for n in range(7)]
    late = await pair.predict(9)
    assert (late.status, late.reason) == (503, "draining")
    assert late.headers["x-penstock-not-admitted"] == "1"
    assert (await pair.admin_get("/readyz")).status == 503
    pair.signal()
    assert await pair.sidecar.ended() == 0


async def test_what_is_queued_at_the_drain_timeout_is_refused_and_what_runs_is_answered(start: Start):
    pair = await start("--drain-timeout=0s", maxBatchSize=1)
    runs = asyncio.create_task(pair.predict(0, path=HELD))
    await pair.until_state(ongoing=1)
    waits = asyncio.create_task(pair.predict(1))
    await pair.until_state(queued=1)
    drain = asyncio.create_task(pair.admin_get("/drain"))
    refused = await waits
    assert (refused.status, refused.reason) == (503, "draining")
    assert not drain.done()
    await pair.release()
    assert got(await runs) == [0]
    assert (await drain).status == 200


async def test_a_drain_ends_when_the_model_went_away_and_is_ready_again(start: Start):
    pair = await start()
    assert (await pair.admin_get("/drain")).status == 200
    assert (await pair.predict(1)).reason == "draining"
    await pair.model.stop()
    await pair.start_model()
    await pair.until_ready()
    assert got(await pair.predict(2)) == [2]


async def test_a_drain_also_ends_when_the_model_was_gone_before_it_began(start: Start):
    """As when a liveness failure restarts a model whose port had closed."""
    pair = await start()
    await pair.model.stop()
    await pair.until_ready(ready=False)
    assert (await pair.admin_get("/drain")).status == 200
    await pair.start_model()
    await pair.until_ready()
    assert got(await pair.predict(2)) == [2]


async def test_sigterm_finishes_what_was_accepted(start: Start):
    pair = await start(maxBatchSize=2)
    asked = [asyncio.create_task(pair.predict(n, path=HELD)) for n in range(6)]
    await pair.until_load(6)
    pair.signal()
    await pair.until_state(drain="flushing")
    await pair.release()
    assert [got(await task) for task in asked] == [[n] for n in range(6)]
    assert await pair.sidecar.ended() == 0


async def test_sigterm_with_the_model_gone_ends_soon_and_says_so_to_each(start: Start):
    pair = await start("--propagation-delay=60s")
    await pair.model.stop()
    await pair.until_ready(ready=False)
    reply = await pair.predict(1)
    assert (reply.status, reply.reason) == (502, "model_unreachable")
    assert reply.headers["x-penstock-not-admitted"] == "1"
    pair.signal()
    assert await pair.sidecar.ended() == 0


async def test_a_second_sigterm_ends_at_once_with_an_answer_to_each(start: Start):
    pair = await start("--propagation-delay=60s", maxBatchSize=1)
    asked = [asyncio.create_task(pair.predict(n, path="/p?hang=1")) for n in range(2)]
    await pair.until_state(queued=1, ongoing=1)
    pair.signal()
    await pair.until_state(drain="propagating")
    pair.signal(signal.SIGTERM)
    assert await pair.sidecar.ended() == 1
    for outcome in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(outcome, Exception) or outcome.status in (502, 503)


async def test_a_model_that_is_not_ready_makes_the_pod_not_ready_and_back(start: Start):
    pair = await start()
    await pair.ask("/-/ready?on=0", method="PUT", base=pair.model_url)
    await pair.until_ready(ready=False)
    assert "found 503" in (await pair.admin_get("/readyz")).body.decode()
    await pair.ask("/-/ready?on=1", method="PUT", base=pair.model_url)
    await pair.until_ready()


async def test_every_flag_is_also_an_environment_variable_and_bad_ones_are_told(start: Start, tmp_path: Path):
    pair = await start(env={"PENSTOCK_READY_PATH": "/v1/models/m", "PENSTOCK_LOG_LEVEL": "debug"})
    assert next(run["target"] for run in await pair.runs()) == "/v1/models/m"
    for flags, message in [
        (["--model", "ftp://x"], "expected a URL such as http://127.0.0.1:8080, found 'ftp://x'"),
        (["--listen", "8012"], "expected HOST:PORT"),
        (["--drain-timeout", "30"], "expected a duration such as"),
        (["--protocol", "grpc"], "invalid choice"),
    ]:
        program = Program("penstock_sidecar", *flags)
        with pytest.raises(AssertionError):
            await program.start()
        assert await program.ended() == 2
        await program.stop()
        assert any(message in line for line in program.log), program.log
