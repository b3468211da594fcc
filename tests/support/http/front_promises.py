"""What every front promises, whatever stands behind it: one conformance suite, over real connections."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from penstock_wire.headers import get
from penstock_wire.http import Request, Response
from tests.support.clocks.waiting import SECONDS, until

OK = b"HTTP/1.1 200 OK\r\n"


class Echo:
    """A handler that keeps what it saw; `gate` holds its answers back."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: Request) -> Response:
        self.seen.append(request)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Response(
            status=200,
            headers=((b"x-one", b"1"), (b"x-one", b"2"), (b"x-name", "ü".encode())),
            body=request.target.encode() + b"|" + request.body,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Where requests are taken, and who answers them."""

    address: tuple[str, int]
    echo: Echo


class Client:
    """A raw connection to a front."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, address: tuple[str, int]) -> Client:
        return cls(*await asyncio.open_connection(*address))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body of the next answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), SECONDS)
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        return head, await asyncio.wait_for(self.reader.readexactly(length), SECONDS)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await asyncio.wait_for(self.reader.read(), SECONDS)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def post(target: str = "/p", body: bytes = b"abc", *fields: bytes) -> bytes:
    head = [f"POST {target} HTTP/1.1".encode(), b"Host: x", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


class FrontPromises:
    """Tests of whatever takes requests and has them answered by an echo; `served` is a fixture."""

    async def test_a_request_arrives_as_sent_and_its_answer_too(self, served: Served):
        client = await Client.to(served.address)
        client.send(
            post(
                "/a%2Fb//c?x=%20&y",
                b"\x00\xff",
                b"X-Two: 1",
                b"X-Two: 2",
                b"Connection: x-gone",
                b"X-Gone: 1",
            )
        )
        head, body = await client.answer()
        assert head.startswith(OK)
        assert body == b"/a%2Fb//c?x=%20&y|\x00\xff"
        lower = head.lower()
        assert lower.count(b"x-one: ") == 2
        assert "x-name: ü".encode() in head.replace(b"X-Name", b"x-name")
        (seen,) = served.echo.seen
        assert [value for name, value in seen.headers if name == b"x-two"] == [b"1", b"2"]
        assert {b"x-gone", b"connection", b"content-length"}.isdisjoint({name for name, _ in seen.headers})
        await client.close()

    async def test_a_chunked_body_comes_whole(self, served: Served):
        client = await Client.to(served.address)
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await until(lambda: True)
        client.send(b"2\r\nde\r\n0\r\n\r\n")
        assert (await client.answer())[1] == b"/p|abcde"
        await client.close()

    async def test_connections_are_kept_and_pipelined_requests_answered_in_order(self, served: Served):
        client = await Client.to(served.address)
        client.send(post("/1") + post("/2") + post("/3"))
        assert [(await client.answer())[1] for _ in range(3)] == [b"/1|abc", b"/2|abc", b"/3|abc"]
        await client.close()

    async def test_the_handler_is_cancelled_when_its_client_goes_away(self, served: Served):
        served.echo.gate.clear()
        client = await Client.to(served.address)
        client.send(post())
        await until(lambda: len(served.echo.seen) == 1)
        await client.close()
        await until(lambda: served.echo.cancelled == 1)

    async def test_a_body_cut_in_the_middle_reaches_no_handler(self, served: Served):
        client = await Client.to(served.address)
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
        await client.close()
        other = await Client.to(served.address)
        other.send(post())
        await other.answer()
        assert len(served.echo.seen) == 1
        await other.close()

    @pytest.mark.parametrize(
        ("sent", "status", "reason"),
        [
            (b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", b"400", b"bad_request"),
            (b"GET /p HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", b"400", b"bad_request"),
            (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400", b"bad_request"),
            (
                b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
                b"400",
                b"bad_request",
            ),
            (b"GET /p HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", b"4", b"problem+json"),
        ],
    )
    async def test_what_cannot_be_read_is_told_as_a_problem_and_closes(
        self, served: Served, sent: bytes, status: bytes, reason: bytes
    ):
        await self.check_problem(served, sent, status, reason)

    async def check_problem(self, served: Served, sent: bytes, status: bytes, reason: bytes) -> None:
        """Send what is answered with a problem document and the connection's end, and reaches no handler."""
        client = await Client.to(served.address)
        client.send(sent)
        answer = await client.rest()
        assert answer.split(b" ")[1].startswith(status)
        assert b"application/problem+json" in answer
        assert reason in answer
        assert served.echo.seen == []
        await client.close()

    async def test_a_client_that_expects_to_be_told_to_go_on_is_told(self, served: Served):
        client = await Client.to(served.address)
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        interim = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), SECONDS)
        assert interim.startswith(b"HTTP/1.1 100 ")
        client.send(b"abc")
        assert (await client.answer())[1] == b"/p|abc"
        assert get(served.echo.seen[0].headers, b"expect") is None
        await client.close()
