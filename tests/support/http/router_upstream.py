"""A small HTTP server in a pod's place: it keeps a ledger, and can refuse, hang, cut or answer oddly.

It runs in the test's own loop on a real socket, reads real HTTP/1.1 with keep-alive, and notes what it saw.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.support.http.task_server import TaskServer

REFUSED = b"x-penstock-not-admitted: 1\r\n"


@dataclasses.dataclass(slots=True)
class Seen:
    """One request as it came in, header names in lower case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first value of a field."""
        return next((value for key, value in self.headers if key == name), None)

    def values(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for key, value in self.headers if key == name]

    @property
    def identity(self) -> str:
        """Its `x-request-id`."""
        return self.header("x-request-id") or ""


@dataclasses.dataclass(slots=True)
class Answer:
    """The answer to send: raw header lines, each with its line end; `interim` goes before all."""

    status: int = 200
    body: bytes = b"{}"
    headers: bytes = b""
    executed: bool = True
    interim: bytes = b""


class Cut(Exception):
    """Close the connection with no answer; the request counts as executed."""


Behave = Callable[[Seen], Awaitable[Answer]]


async def echo(seen: Seen) -> Answer:
    """Answer with what came in."""
    document = {"id": seen.identity, "target": seen.target, "body": seen.body.decode("latin-1")}
    return Answer(body=json.dumps(document).encode())


async def hang(seen: Seen) -> Answer:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def cut(seen: Seen) -> Answer:
    """Lose the connection after the request."""
    raise Cut


def refuse(reason: str, *, status: int = 503, more: bytes = b"") -> Behave:
    """Refuse as a sidecar does: surely not executed."""

    async def behave(seen: Seen) -> Answer:
        body = json.dumps({"reason": reason}).encode()
        head = REFUSED + b"x-penstock-reason: " + reason.encode() + b"\r\nretry-after: 7\r\n" + more
        return Answer(status=status, body=body, headers=head, executed=False)

    return behave


class UpstreamServer(TaskServer):
    """The server; `behave` may be replaced at any time."""

    def __init__(self, behave: Behave = echo) -> None:
        super().__init__()
        self.behave = behave
        self.seen: list[Seen] = []
        self.executed: Counter[str] = Counter()
        self.running = 0
        self.most_running = 0
        self.abandoned = 0
        """Requests whose client went away before the answer."""

    @property
    def target(self) -> str:
        """As in settings."""
        return f"{self.host}:{self.port}"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                seen = await self._read(reader)
                if not await self._answer(seen, reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> Seen:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ")
        fields = (line.partition(":") for line in lines)
        headers = [(name.lower(), value.strip()) for name, _, value in fields]
        length = next((int(value) for name, value in headers if name == "content-length"), 0)
        return Seen(method, target, headers, await reader.readexactly(length))

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; returns whether the connection goes on."""
        self.seen.append(seen)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        behaving = asyncio.ensure_future(self.behave(seen))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({behaving, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not behaving.done():
                self.abandoned += 1
                self.executed[seen.identity] += 1
                return False
            gone.cancel()  # before the answer, or it would eat the next request's first byte
            await asyncio.gather(gone, return_exceptions=True)
            try:
                answer = behaving.result()
            except Cut:
                self.executed[seen.identity] += 1
                return False
            if answer.executed:
                self.executed[seen.identity] += 1
            writer.write(
                answer.interim
                + f"HTTP/1.1 {answer.status} X\r\ncontent-length: {len(answer.body)}\r\n".encode()
                + answer.headers
                + b"\r\n"
                + (b"" if seen.method == "HEAD" else answer.body)
            )
            await writer.drain()
            return True
        finally:
            self.running -= 1
            for task in (behaving, gone):
                task.cancel()
            await asyncio.gather(behaving, gone, return_exceptions=True)
