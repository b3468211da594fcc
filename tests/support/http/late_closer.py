"""A model that ends connections as uvicorn does: behind some answers, a little later, without saying so.

uvicorn ends a connection when an application raises. Where that has sent an answer before (Starlette's own
handler of exceptions sends 500, and raises again) the answer's head says nothing of it, the exception is
logged first, and what comes meanwhile is not read.
"""

from __future__ import annotations

import json

from tests.support.http.stream_peer import Scripted, Wire, unread


class LateCloser(Scripted):
    """The server; it answers each of `instances` with itself.

    Args:
        status: the answer to a batch that holds `"bad"`.

    `runs` has the items of each request that was read, `unread` counts connections that were closed with a
    request unread.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
        self.runs: list[list[object]] = []
        self.unread = 0
        self.scripts = [self.play]

    async def play(self, wire: Wire) -> None:
        while True:
            head = await wire.head()
            if head.startswith(b"GET "):
                await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                continue
            lines = head.lower().split(b"\r\n")
            length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            items = json.loads(await wire.reader.readexactly(length))["instances"]
            self.runs.append(items)
            failed = "bad" in items
            answer = {"error": "oh"} if failed else {"predictions": [{"got": item} for item in items]}
            body = json.dumps(answer).encode()
            status = self.status if failed else 200
            fields = b"content-type: application/json\r\ncontent-length: %d" % len(body)
            await wire.send(b"HTTP/1.1 %d X\r\n%b\r\n\r\n%b" % (status, fields, body))
            if failed:
                self.unread += await unread(wire)
                wire.reset()
                return
