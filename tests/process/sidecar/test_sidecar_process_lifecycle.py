"""How a real sidecar process ends, and how it outlives its model and its clients: no request without its end.

The model writes each item that it is given to a ledger before it answers. So the ledger, which outlives a
model that is killed, says of each request whether it was executed.
"""

from __future__ import annotations

import asyncio
import collections
import json
import resource
import signal
import socket
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock_sidecar import app
from penstock_sidecar.config import parse
from penstock_sidecar.metrics import class_label
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.hanging_sidecar import HANG_SECONDS
from tests.support.processes.sidecar_process import HELD, Pair, Reply, got, until

Start = Callable[..., Awaitable[Pair]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    pairs: list[Pair] = []

    async def begin(*flags: str, model: tuple[str, ...] = (), **more: Any) -> Pair:
        pair = Pair(tmp_path, *flags, model_flags=(f"--ledger={tmp_path / 'ledger'}", *model))
        pairs.append(pair)
        return await pair.start(**more)

    yield begin
    for pair in pairs:
        await pair.stop()


class Load:
    """Clients that send one request after the other, each with its own number, until they are stopped."""

    def __init__(self, pair: Pair, ledger: Path, clients: int = 24) -> None:
        self.pair = pair
        self.ledger = ledger
        self.numbers = iter(range(1_000_000))
        self.stopped = False
        self.path = "/v1/models/m:predict"
        self.ends: dict[int, Reply | Exception] = {}
        self.sent: set[int] = set()
        self.clients = [asyncio.create_task(self.client()) for _ in range(clients)]

    async def client(self) -> None:
        while not self.stopped:
            number = next(self.numbers)
            self.sent.add(number)
            try:
                self.ends[number] = await self.pair.predict(number, path=self.path)
            except aiohttp.ClientError as error:
                self.ends[number] = error
                await asyncio.sleep(0.01)

    async def served(self, more: int) -> None:
        """Wait for so many further answers of the model."""

        def good() -> int:
            return sum(isinstance(end, Reply) and end.status == 200 for end in self.ends.values())

        wanted = good() + more
        await until(
            lambda: asyncio.sleep(0, good() >= wanted),
            details=lambda: f"{good()} of {wanted}: {self.kinds()}",
        )

    def kinds(self) -> collections.Counter[str]:
        """How many have ended how, for who reads of a failure."""
        return collections.Counter(
            str(end.status) if isinstance(end, Reply) else repr(end) for end in self.ends.values()
        )

    async def stop(self) -> None:
        self.stopped = True
        await asyncio.gather(*self.clients)

    def check(self) -> collections.Counter[str]:
        """Each request has one end, and it is true; returns how many ended how."""
        executed = collections.Counter(map(int, self.ledger.read_text().split()))
        assert set(self.ends) == self.sent
        assert max(executed.values()) == 1, "nothing is executed twice"
        kinds: collections.Counter[str] = collections.Counter()
        for number, end in self.ends.items():
            if isinstance(end, Exception):
                # Refused, or closed while the client just sent: it was not taken.
                kinds["not taken"] += 1
                assert not executed[number], (number, end)
            elif end.status == 200:
                kinds["answered"] += 1
                assert got(end) == [number]
                assert executed[number]
            else:
                kinds[end.reason] += 1
                if "x-penstock-not-admitted" in end.headers:
                    assert not executed[number], (number, end.reason)
        return kinds


async def test_sigterm_under_load_ends_with_a_true_end_for_each_request(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Pair, "sidecar_program", "tests.support.processes.patient_sidecar")
    pair = await start("--propagation-delay=600s", model=("--base-ms=5",), maxBatchSize=4)
    load = Load(pair, tmp_path / "ledger")
    await load.served(200)
    pair.signal()
    await pair.until_state(drain="propagating")
    await load.served(20)
    pair.signal(signal.SIGUSR1)
    assert await pair.sidecar.ended() == 0
    await load.stop()
    kinds = load.check()
    assert kinds["answered"] > 200
    assert set(kinds) <= {"answered", "draining", "not taken"}, kinds


async def test_sigterm_twice_under_load_ends_at_once_and_true(start: Start, tmp_path: Path):
    pair = await start("--propagation-delay=60s", model=("--base-ms=5",), maxBatchSize=2, maxQueuedItems=100)
    load = Load(pair, tmp_path / "ledger")
    await load.served(20)
    load.path = HELD
    await pair.until_state(ongoing=2, queued=len(load.clients) - 2)
    pair.signal()
    await pair.until_state(drain="propagating")
    pair.signal()
    assert await pair.sidecar.ended() == 1
    await until(
        lambda: asyncio.sleep(0, any(isinstance(end, Exception) for end in load.ends.values())),
        details=load.kinds,
    )
    await load.stop()
    kinds = load.check()
    assert set(kinds) == {"answered", "draining", "model_unreachable", "not taken"}


async def test_sigterm_with_a_model_that_hangs_answers_each_at_its_deadline(start: Start):
    pair = await start("--drain-timeout=0s", maxBatchSize=1, defaultTimeoutMs=5000)
    asked = [asyncio.create_task(pair.predict(0, path="/p?hang=1"))]
    await pair.until_run(1)
    late = {"x-penstock-timeout-ms": "600000"}
    asked += [asyncio.create_task(pair.predict(n, path="/p?hang=1", headers=late)) for n in (1, 2)]
    await pair.until_state(ongoing=1, queued=2)
    pair.signal()
    assert await pair.sidecar.ended() == 0
    replies = await asyncio.gather(*asked)
    assert [reply.reason for reply in replies] == ["deadline", "draining", "draining"]


async def test_a_model_that_is_killed_and_started_again_in_the_middle_loses_and_doubles_nothing(
    start: Start, tmp_path: Path
):
    pair = await start(model=("--base-ms=20",), maxBatchSize=4, maxQueuedItems=1000)
    load = Load(pair, tmp_path / "ledger")
    await load.served(100)
    pair.model.process.kill()
    await pair.model.ended()
    await pair.until_ready(ready=False)
    await pair.model.stop()
    await pair.start_model()
    await pair.until_ready()
    await load.served(100)
    await load.stop()
    kinds = load.check()
    assert kinds["answered"] >= 200
    assert set(kinds) == {"answered", "model_unreachable"}, kinds
    assert (await pair.admin_get("/livez")).status == 200
    await pair.until_state(queued=0, ongoing=0)


def connect(pair: Pair) -> socket.socket:
    host, port = pair.data.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    return connection


def post(item: Any, path: str = "/p") -> bytes:
    body = json.dumps({"instances": [item]}).encode()
    fields = f"host: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body


async def test_sigterm_waits_for_a_slow_reader_and_for_one_that_never_reads_not_for_ever(start: Start):
    pair = await start()
    loop = asyncio.get_running_loop()
    slow, never = connect(pair), connect(pair)
    item = "x" * 8_000_000
    try:
        for connection in (slow, never):
            connection.setblocking(False)
            await loop.sock_sendall(connection, post(item))
        await until(lambda: served(pair, 2))
        await pair.until_state(queued=0, ongoing=0)
        pair.signal()
        await pair.until_state(drain="drained")
        answer = b""
        while len(answer) < len(item):
            piece = await loop.sock_recv(slow, 1 << 20)
            assert piece, f"cut after {len(answer)} bytes"
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200")
        assert await pair.sidecar.ended() == 0
    finally:
        slow.close()
        never.close()


async def served(pair: Pair, count: int) -> bool:
    text = (await pair.admin_get("/metrics")).body.decode()
    return f'penstock_sidecar_requests_total{{code="200",reason=""}} {float(count)}' in text


CLIENT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes.fromhex(sys.argv[3]))
print("sent", flush=True)
time.sleep(3600)
"""


async def test_a_client_that_is_killed_leaves_nothing_behind(start: Start):
    """In the middle of its body, in the queue, and with the model."""
    pair = await start(maxBatchSize=1)
    host, port = pair.data.removeprefix("http://").split(":")
    slow = asyncio.create_task(pair.predict("slow", path=HELD))
    await pair.until_state(ongoing=1)
    for data, queued in ((post("half")[:-5], 0), (post("queued"), 1)):
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, host, port, data.hex(), stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"sent\n"
        await pair.until_state(queued=queued)
        client.kill()
        await client.communicate()
        await pair.until_state(queued=0)
    await pair.release()
    assert got(await slow) == ["slow"]
    assert got(await pair.predict("next")) == ["next"]
    assert [run["items"] for run in await pair.runs()] == [["slow"], ["next"]]
    pair.signal()
    assert await pair.sidecar.ended() == 0


def resident(pair: Pair) -> int:
    """Bytes of memory that the sidecar holds."""
    pages = int(Path(f"/proc/{pair.sidecar.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def test_a_hundred_thousand_queued_items_take_little_memory_and_no_more_come_in(start: Start):
    pair = await start(maxBatchSize=1, maxQueuedItems=100_000, defaultTimeoutMs=600_000)
    held = asyncio.create_task(pair.predict("held", path=HELD))
    await pair.until_state(ongoing=1)
    before = resident(pair)
    waiting = [asyncio.create_task(pair.predict(*range(1000))) for _ in range(100)]
    await pair.until_state(queued=100_000)
    # An item is a few bytes of its own, and an object that holds them.
    assert resident(pair) - before < 40_000_000
    for _ in range(20):
        refused = await pair.predict(*range(1000))
        assert (refused.status, refused.reason) == (503, "queue_full")
    assert resident(pair) - before < 40_000_000
    for task in waiting:
        task.cancel()
    await pair.until_state(queued=0)
    await pair.release()
    assert got(await held) == ["held"]


MARKER = "m4rk3r"


async def test_no_log_line_holds_anything_of_a_request_at_any_level(start: Start):
    pair = await start("--log-level=debug", maxBatchSize=4, defaultTimeoutMs=500)
    headers = {
        "x-secret": MARKER,
        "authorization": MARKER,
        "cookie": MARKER,
        "content-type": "application/json",
    }
    queries = ["", "&wrong=1", "&garbage=1", "&nohttp=1", "&cut=1", "&reset=1", "&status=500", "&hang=1"]
    for query in queries:
        path = f"/p?q={MARKER}{query}"
        await asyncio.gather(
            *(pair.ask(path, json={"instances": [MARKER]}, headers=headers) for _ in range(3))
        )
    for body in (f'"{MARKER}', f'{{"{MARKER}": 1}}', f'[1], "{MARKER}": 1, "{MARKER}": 2'):
        assert (await pair.ask(data=f'{{"instances": {body}}}'.encode(), headers=headers)).status in (
            400,
            422,
        )
    await pair.ask(data=MARKER.encode(), headers={**headers, "content-type": f"text/{MARKER}"})
    await pair.ask(f"/p?{MARKER}", method="GET", headers=headers)
    await pair.admin_get(f"/queue?{MARKER}")
    await pair.admin_get("/drain", headers={"x-penstock-drain": MARKER})
    gone = asyncio.create_task(pair.ask(f"/p?hang=1&{MARKER}", json={"instances": [MARKER]}, headers=headers))
    await until(lambda: asyncio.sleep(0, True))
    gone.cancel()
    await pair.model.stop()
    await asyncio.gather(gone, pair.ask(data=b"{}", headers=headers), return_exceptions=True)
    pair.signal()
    await pair.sidecar.ended()
    await pair.sidecar.stop()
    assert len(pair.sidecar.log) > 3
    assert [line for line in pair.sidecar.log if MARKER in line] == []
    assert all({"time", "level", "message"} <= json.loads(line).keys() for line in pair.sidecar.log)


async def test_the_queue_is_shown_without_anything_of_a_request(start: Start):
    pair = await start(maxBatchSize=2, maxConcurrentBatches=2)
    path = f"/v1/{MARKER}:predict"
    for number in range(40):
        await pair.predict(number, path=path)
    asked = [asyncio.create_task(pair.predict(MARKER, path=f"{path}?hold=gate&{MARKER}")) for _ in range(7)]
    await pair.until_load(7)
    shown = await pair.admin_get("/queue")
    assert MARKER not in shown.body.decode()
    ((line,), fits) = shown.document["lines"], shown.document["fit"]
    assert line["items"] == line["requests"] == shown.document["queued"] > 0
    assert (shown.document["slots"], shown.document["drain"]) == (2, "serving")
    assert fits.keys() == {class_label(path)}
    assert fits[class_label(path)]["aMs"] > 0.5
    metrics = (await pair.admin_get("/metrics")).body.decode()
    assert MARKER not in metrics
    assert f'penstock_sidecar_fit_intercept_seconds{{class="{class_label(path)}"}}' in metrics
    assert "penstock_sidecar_slots 2.0" in metrics
    assert (await pair.admin_get("/settings")).document["batching"]["maxQueuedItems"] > 32
    await pair.release()
    assert [got(await task) for task in asked] == [[MARKER]] * 7


async def test_tasks_are_shown_only_where_that_was_asked_for(start: Start):
    pair = await start("--debug")
    slow = asyncio.create_task(pair.predict(MARKER, path=f"{HELD}&{MARKER}"))
    await pair.until_state(ongoing=1)
    shown = await pair.admin_get("/debug/tasks")
    assert MARKER not in shown.body.decode()
    names = {task["name"] for task in shown.document["tasks"]}
    assert {"dispatch", "heartbeat", "model", "readiness", "settings"} <= names
    assert any("heartbeat" in line for task in shown.document["tasks"] for line in task["stack"])
    await pair.release()
    assert got(await slow) == [MARKER]
    plain = await start()
    assert (await plain.admin_get("/debug/tasks")).status == 404


async def test_liveness_fails_when_a_task_of_the_process_ended_or_a_turn_lasted_too_long(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(app, "time", types.SimpleNamespace(monotonic=lambda: 1000.0))
    sidecar = app.Sidecar(parse(["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]))
    assert sidecar._dead() == ""
    sidecar._beat -= 11
    assert sidecar._dead() == "a turn lasted 11 s"
    sidecar._beat += 11

    async def ends() -> None:
        raise RuntimeError("boom")

    sidecar._spawn("dispatch", ends())
    await asyncio.gather(*sidecar._tasks, return_exceptions=True)
    assert sidecar._dead() == "task dispatch has ended"
    await sidecar._close()


async def test_a_stopped_process_answers_no_probe(start: Start):
    """A kubelet's probe times out, which is a failure too. A short stop is forgotten."""
    pair = await start()
    pair.signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        await pair.admin_get("/livez", timeout=aiohttp.ClientTimeout(total=0.3))
    pair.signal(signal.SIGCONT)
    assert (await pair.admin_get("/livez")).status == 200


async def test_a_process_that_hung_says_so_to_who_asked_meanwhile(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """Its loop is really blocked: no answer while it lasts, then a failure; in the end it is well."""
    monkeypatch.setattr(Pair, "sidecar_program", "tests.support.processes.hanging_sidecar")
    pair = await start()
    pair.signal(signal.SIGUSR1)

    async def hangs() -> bool:
        return "hanging" in pair.sidecar.log

    await until(hangs)
    host, port = pair.admin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    pair.signal(signal.SIGUSR2)
    probe = await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()
    assert probe.startswith(b"HTTP/1.1 503 "), probe
    assert b"a turn lasted" in probe

    async def well() -> bool:
        return (await pair.admin_get("/livez")).status == 200

    await until(well)
    assert got(await pair.predict(1)) == [1]
    # NB: a busy machine may have had others, none of them as long.
    entries = [json.loads(line) for line in pair.sidecar.log if "a turn of the event loop was long" in line]
    assert len([line for line in entries if line["seconds"] >= HANG_SECONDS]) == 1, entries
