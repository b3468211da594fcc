"""Closed-loop load: N connections, each sends its next request when the last was answered.

Usage: `python -m bench.closed_loop PORT CONNECTIONS SECONDS`. It prints one JSON line: requests, errors,
mismatched (an answer with another's item), rate, p50_ms, p99_ms. A tenth of the time before the measurement
warms up.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Client(asyncio.Protocol):
    """One connection."""

    from_time = 0.0
    until = 0.0
    latencies: list[float]
    errors = 0
    mismatched = 0

    def __init__(self, number: int) -> None:
        self.count = number * 10_000_000
        self.buffer = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self.transport = transport
        self.send()

    def send(self) -> None:
        """Send the next request, or end."""
        self.sent = time.perf_counter()
        if self.sent > Client.until:
            self.transport.close()
            return
        self.count += 1
        self.body = b'{"instances":[%d]}' % self.count
        self.transport.write(  # type: ignore[attr-defined]  # a BaseTransport by the Protocol's signature
            b"POST /predict HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(self.body), self.body)
        )

    def data_received(self, data: bytes) -> None:
        """Take the answer, then send again."""
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        found = _LENGTH.search(self.buffer, 0, end)
        length = int(found[1]) if found else 0
        if len(self.buffer) < end + 4 + length:
            return
        if self.buffer[9:12] != b"200":
            Client.errors += 1
        elif b"[%d]" % self.count not in self.buffer[end:]:
            Client.mismatched += 1
        elif self.sent >= Client.from_time:
            Client.latencies.append(time.perf_counter() - self.sent)
        self.buffer = b""
        self.send()

    def connection_lost(self, _: Exception | None) -> None:
        """End."""
        if not self.done.done():
            self.done.set_result(None)


async def main(port: int, connections: int, seconds: float) -> dict[str, float]:
    """Run and summarise."""
    loop = asyncio.get_running_loop()
    Client.latencies = []
    now = time.perf_counter()
    Client.from_time, Client.until = now + seconds / 10, now + seconds * 1.1
    clients = [
        (await loop.create_connection(lambda number=number: Client(number), "127.0.0.1", port))[1]
        for number in range(connections)
    ]
    await asyncio.gather(*(client.done for client in clients))
    ordered = sorted(Client.latencies)
    return {
        "requests": len(ordered),
        "errors": Client.errors,
        "mismatched": Client.mismatched,
        "rate": len(ordered) / seconds,
        "p50_ms": ordered[len(ordered) // 2] * 1000 if ordered else 0.0,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000 if ordered else 0.0,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
