"""HTTP's rules through a real router: before a server that speaks HTTP/1.1, and before a real sidecar.

The suite and the tables are those of `wire` (tests/process/wire/test_wire_http.py, test_http_server_rfc.py
and test_http_client_rfc.py). One router, one sidecar and one server stand for all cases.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock_wire.addresses import join
from penstock_wire.http import Request, Response
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS
from tests.support.http.answer_rules import CLOSED, GOOD, INCOMPLETE, READ, REFUSED
from tests.support.http.front_promises import Echo, FrontPromises, Served
from tests.support.http.raw_client import until_closed
from tests.support.http.server_rules import REFUSED as REQUESTS_REFUSED
from tests.support.http.server_rules import TAKEN
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until
from tests.support.processes.router_sidecar import end_sidecar, start_sidecar

pytestmark = pytest.mark.asyncio(loop_scope="module")
BEHIND = ("server", "sidecar")
PROBE = "/-/ready"
SETTLED = b"GET %b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
OURS = re.compile(rb"x-|via$|date$|content-length$|connection$|server-timing$|transfer-encoding$")
"""Fields that Penstock adds, to requests or to answers."""
ITS_OWN = {"9110 15.5.14: a body beyond the limit"}
"""Rules of a server that an endpoint keeps otherwise: its limit does not end the connection."""


class Origin:
    """The server behind the router: each test says what it does with requests; it answers probes itself."""

    def __init__(self) -> None:
        self.echo = Echo()
        self.front = H1Front()

    async def __call__(self, request: Request) -> Response:
        if request.target == PROBE:
            return Response(200)
        return await self.echo(request)


class RawOrigin:
    """A server that answers once with the test's own bytes, and else with `GOOD`."""

    def __init__(self) -> None:
        self.answer: bytes | None = None
        self.ends = False
        self.server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                answer, ends = GOOD, False
                if f" {PROBE} ".encode() not in head and self.answer is not None:
                    answer, ends = self.answer, self.ends
                    self.answer = None
                writer.write(answer)
                if ends:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def close(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        await until(lambda: not self._connections)


@dataclasses.dataclass(frozen=True, slots=True)
class Through:
    """All that stands for a module's tests.

    Args:
        ports: of the endpoints, by who is asked behind the router; raw ones have `raw ` before.
    """

    router: RouterProcess
    origin: Origin
    raw: RawOrigin
    ports: dict[str, int]

    def address(self, behind: str) -> tuple[str, int]:
        return "127.0.0.1", self.ports[behind]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def through(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Through]:
    folder: Path = tmp_path_factory.mktemp("conformance")
    origin, raw = Origin(), RawOrigin()
    listener = await origin.front.listen("127.0.0.1", 0, origin)
    raw.server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    targets = {
        "server": join(*listener.address),
        "raw server": join(*raw.server.sockets[0].getsockname()[:2]),
    }
    settings = folder / "sidecar.json"
    settings.write_text('{"v": 1, "backend": "b"}')
    sidecars = []
    for name in ("", "raw "):
        process, targets[f"{name}sidecar"] = await start_sidecar(
            targets[f"{name}server"], settings, "--protocol=none", f"--ready-path={PROBE}"
        )
        sidecars.append(process)
    ports = {name: free_port() for name in targets}
    router = await RouterProcess(folder).start(
        *(
            endpoint(f"e{number}", backend(f"b{number}", target), port=ports[name], maxBodyBytes=100_000)
            for number, (name, target) in enumerate(targets.items())
        )
    )
    made = Through(router, origin, raw, ports)
    for name in targets:  # sidecars learn first that their model is there
        while b" 200 OK\r\n" not in await until_closed(made.address(name), SETTLED % b"/first"):
            pass
    yield made
    await router.stop()
    for process in sidecars:
        await end_sidecar(process)
    await origin.front.close(0)
    await raw.close()


@pytest_asyncio.fixture(loop_scope="module", params=BEHIND)
async def served(request: pytest.FixtureRequest, through: Through) -> Served:
    through.origin.echo = echo = Echo()
    return Served(through.address(request.param), echo)


class TestRouter(FrontPromises):
    """The suite of fronts."""


@pytest.mark.parametrize("rule", [rule for rule in REQUESTS_REFUSED if rule not in ITS_OWN])
async def test_what_a_server_must_refuse_is_refused(served: Served, rule: str) -> None:
    """See tests/process/wire/test_http_server_rfc.py."""
    sent, status = REQUESTS_REFUSED[rule]
    answer = await until_closed(served.address, sent + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"content-length: ") == 1
    assert b"connection: close\r\n" in answer
    assert not served.echo.seen


async def test_a_body_beyond_the_limit_is_refused_and_read_as_a_body(served: Served) -> None:
    """What looks like a request within it is none."""
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    body = smuggled + bytes(100_001 - len(smuggled))
    sent = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n" + body
    answer = await until_closed(served.address, sent + SETTLED % b"/next")
    first, second = answer.split(b"HTTP/1.1 ")[1:]
    assert (first[:3], second[:3]) == (b"413", b"200")
    assert [request.target for request in served.echo.seen] == ["/next"]


@pytest.mark.parametrize("rule", TAKEN)
async def test_what_a_server_must_take_is_taken(served: Served, rule: str) -> None:
    """See tests/process/wire/test_http_server_rfc.py. A server behind gets a Host, whoever sent none."""
    sent, expected = TAKEN[rule]
    answer = await until_closed(served.address, sent)
    assert answer.startswith(b"HTTP/1.1 200 ")
    (seen,) = served.echo.seen
    method, target, fields, body = expected
    got = {name: value for name, value in seen.headers if name in (b"x", b"y", b"z") or not OURS.match(name)}
    assert b"host" in got
    assert got == {b"host": got[b"host"], **fields}
    assert (seen.method, seen.target, seen.body) == (method, target, body)


async def asked(address: tuple[str, int], sent: bytes) -> bytes:
    """All that comes back for bytes until the router closes the connection, or cuts it."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    answer = b""
    try:
        async with asyncio.timeout(SECONDS):
            while piece := await reader.read(65536):
                answer += piece
    except ConnectionResetError:
        pass
    finally:
        writer.close()
    return answer


def read(answer: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """The final answer that a client got: its status, its model's fields, its body."""
    while answer.startswith(b"HTTP/1.1 1"):
        _, _, answer = answer.partition(b"\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    start, *lines = head.split(b"\r\n")
    fields = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
    if (b"transfer-encoding", b"chunked") in fields:
        pieces = []
        while size := int(body.split(b"\r\n", 1)[0], 16):
            _, _, body = body.partition(b"\r\n")
            pieces.append(body[:size])
            body = body[size + 2 :]
        body = b"".join(pieces)
    mine = [(name, value) for name, value in fields if name == b"x" or name == b"x-a" or not OURS.match(name)]
    return int(start.split()[1]), mine, body


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("rule", REFUSED)
async def test_an_answer_that_must_not_be_forwarded_is_an_error_of_ours(
    through: Through, behind: str, rule: str
) -> None:
    """See tests/process/wire/test_http_client_rfc.py; the next request gets its own answer."""
    address = through.address(f"raw {behind}")
    through.raw.answer, through.raw.ends = REFUSED[rule], False
    answer = await asked(address, SETTLED % b"/bad")
    if answer.startswith(b"HTTP/1.1 200 "):  # its head was good, and went out: so it is cut
        assert not answer.endswith(b"0\r\n\r\n")
    else:
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"\r\nx-penstock-reason: bad_answer\r\n" in answer
    assert read(await until_closed(address, SETTLED % b"/next")) == (200, [], b"ok")


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("rule", INCOMPLETE)
async def test_an_incomplete_answer_is_never_passed_on_as_whole(
    through: Through, behind: str, rule: str
) -> None:
    """See tests/process/wire/test_http_client_rfc.py."""
    address = through.address(f"raw {behind}")
    through.raw.answer, through.raw.ends = INCOMPLETE[rule], True
    answer = await asked(address, SETTLED % b"/cut")
    while answer.startswith(b"HTTP/1.1 1"):
        _, _, answer = answer.partition(b"\r\n\r\n")
    if answer.startswith(b"HTTP/1.1 200 "):
        assert not answer.endswith(b"0\r\n\r\n")
    else:
        assert answer.startswith(b"HTTP/1.1 502 ")
    assert read(await until_closed(address, SETTLED % b"/next")) == (200, [], b"ok")


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("rule", READ)
async def test_an_answer_is_passed_on_as_it_is_meant(through: Through, behind: str, rule: str) -> None:
    """See tests/process/wire/test_http_client_rfc.py; what is behind it is never another's answer."""
    method, sent, expected, connections = READ[rule]
    address = through.address(f"raw {behind}")
    through.raw.answer, through.raw.ends = sent, connections == CLOSED
    request = (SETTLED % b"/read").replace(b"GET", method.encode())
    assert read(await until_closed(address, request)) == expected
    assert read(await until_closed(address, SETTLED % b"/next")) == (200, [], b"ok")
