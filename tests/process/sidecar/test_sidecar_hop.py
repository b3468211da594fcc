"""A sidecar whose requests come over a hop: batched, refused and drained as over HTTP/1.1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.queue.batch_key import KEYS_BYTES, LARGE_BYTES, Keys
from penstock_sidecar.queue.key import BatchKey, Faults
from penstock_wire.control.settings import Batching, Fairness, Priority
from penstock_wire.headers import TIMEOUT_MS, Headers
from penstock_wire.hop.upstream import HopUpstream
from penstock_wire.http import Request, RequestUnread, Response, sending
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import SECONDS, until
from tests.support.processes.sidecar_process import Program

NAMES = st.sampled_from(
    [b"accept", b"traceparent", b"x-request-id", TIMEOUT_MS, b"x-penstock-priority", b"x-tenant", b"x-other"]
)
FIELDS = st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"2", b"x"])), max_size=5).map(tuple)
POLICIES = [
    Batching(),
    Batching(batch_key_headers=("x-tenant", "x-request-id")),
    Batching(priority=Priority(levels=3)),
    Batching(fairness=Fairness(header="x-tenant")),
]


@given(FIELDS, st.lists(FIELDS, min_size=1, max_size=3), st.sampled_from(POLICIES))
def test_shared_and_own_fields_are_read_as_all_of_them_are(
    shared: Headers, owns: list[Headers], batching: Batching
) -> None:
    """In whatever part a field comes."""
    keys, plain = Keys(key_fields=True, batching=batching), Keys(key_fields=True, batching=batching)
    for own in owns:
        request = Request("POST", "/", (*shared, *own), b"")
        request.shared = shared
        read, wanted = keys.read_of(request), plain.read(request.headers)
        for name in ("fields", "shared", "request_id", "timeout_ms", "level", "share"):
            assert getattr(read, name) == getattr(wanted, name), name


def test_requests_that_share_their_fields_share_their_key_s() -> None:
    """The very same object, which is what makes the next look at the key a cheap one."""
    keys = Keys(key_fields=True, batching=Batching())
    shared = ((b"accept", b"*/*"), (b"host", b"a"))
    keys_read = []
    for number in range(3):
        request = Request("POST", "/", (*shared, (b"x-request-id", b"%d" % number), (TIMEOUT_MS, b"9")), b"")
        request.shared = shared
        keys_read.append(keys.read_of(request))
    assert [each.request_id for each in keys_read] == [b"0", b"1", b"2"]
    assert all(
        each.fields is keys_read[0].fields and each.shared is keys_read[0].shared for each in keys_read
    )


def test_keys_are_forgotten_by_their_size_but_not_while_in_use_or_failing() -> None:
    """Whether requests are ever cut or not: of one refused, nothing but its key is left."""
    used: set[BatchKey] = set()
    keys = Keys(key_fields=True, batching=Batching(), used=used)

    def key(number: int, size: int) -> BatchKey:
        return keys.key("POST", "/", ((b"authorization", b"%d" % number),), (("p", bytes(size)),))

    waiting, failing, idle, large = key(0, 10), key(1, 10), key(2, 10), key(3, LARGE_BYTES)
    used.add(waiting)
    failing.faults = Faults()
    for number in range(10, 12 + KEYS_BYTES // LARGE_BYTES):
        key(number, LARGE_BYTES)
    assert key(0, 10) is waiting
    assert key(1, 10) is failing
    assert key(2, 10) is not idle
    assert (large.large, waiting.large) == (True, False)


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[tuple[HopUpstream, tuple[str, int], Program]]:
    """A sidecar that batches before a model that answers each item with itself, and a hop to it."""
    bodies: list[list[int]] = []

    async def model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int((b"0" + head.lower().partition(b"content-length: ")[2]).split(b"\r\n")[0])
                items = json.loads(await reader.readexactly(length) or b"{}").get("instances", [])
                bodies.append(items)
                answer = json.dumps({"predictions": items}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(model, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    program = Program(
        "penstock_sidecar",
        "--listen=127.0.0.1:0",
        "--admin=127.0.0.1:0",
        f"--model=http://127.0.0.1:{port}",
        "--reconfigure-path=/-/reconfigure",
        "--propagation-delay=0s",
    )
    ready = dict(part.split("=", 1) for part in (await program.start()).split())
    host, _, number = ready["data"].rpartition(":")
    upstream, address = HopUpstream(H1Upstream()), (host, int(number))

    async def served() -> None:
        while (await predict(upstream, address, 0)).status != 200:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.02)

    await asyncio.wait_for(served(), SECONDS)
    await until(lambda: address in upstream._hops)
    yield upstream, address, program
    await upstream.close()
    await program.stop()
    server.close()
    await asyncio.sleep(0)


async def predict(upstream: HopUpstream, address: tuple[str, int], item: int) -> Response:
    """One request with one item."""
    headers = ((b"host", b"a"), (b"content-type", b"application/json"), (b"x-request-id", b"id-%d" % item))
    body = json.dumps({"instances": [item]}).encode()
    return await sending.send(upstream, *address, Request("POST", "/predict", headers, body), timeout=30)


async def test_requests_of_a_hop_are_batched_and_each_gets_its_own(
    sidecar: tuple[HopUpstream, tuple[str, int], Program],
) -> None:
    """Prediction and id, of hundreds that came in few reads."""
    upstream, address, _ = sidecar
    answers = await asyncio.gather(*(predict(upstream, address, item) for item in range(1, 301)))
    assert [json.loads(answer.body)["predictions"] for answer in answers] == [
        [item] for item in range(1, 301)
    ]
    assert [dict(answer.fields)[b"x-request-id"] for answer in answers] == [
        b"id-%d" % item for item in range(1, 301)
    ]
    assert not upstream._hops[address].busy


async def test_a_closed_path_is_closed_on_a_hop(
    sidecar: tuple[HopUpstream, tuple[str, int], Program],
) -> None:
    """In every spelling that the model could take for it."""
    upstream, address, _ = sidecar
    spellings = ("", "?x", "/", "/../reconfigure")
    for target in [f"/-/reconfigure{more}" for more in spellings] + ["//-/reconfigure", "/%2D/reconfigure"]:
        request = Request("POST", target, ((b"host", b"a"),), b"{}")
        assert (await sending.send(upstream, *address, request, timeout=30)).status == 403, target


async def test_a_sidecar_that_ends_loses_no_request_of_its_hop(
    sidecar: tuple[HopUpstream, tuple[str, int], Program],
) -> None:
    """Each is answered, or said to be draining, or known to be unread; none is lost."""
    upstream, address, program = sidecar
    asked: list[asyncio.Task[Response]] = []
    for item in range(1, 200):
        asked.append(asyncio.create_task(predict(upstream, address, item)))
        if item == 100:
            program.process.terminate()
        await asyncio.sleep(0)
    hop = await asyncio.gather(*asked[:100], return_exceptions=True)
    for answer in hop:
        assert isinstance(answer, RequestUnread) or (
            isinstance(answer, Response) and answer.status in (200, 503)
        )
    await asyncio.gather(*asked, return_exceptions=True)
    assert await program.ended() == 0
