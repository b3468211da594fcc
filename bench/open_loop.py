"""Open-loop load: requests are sent when they are due, however the server does, each on a free connection.

Usage: `python -m bench.open_loop http://127.0.0.1:PORT/predict --rate 1000 --seconds 5`. It prints one JSON
object; exit code 0 = it counts, 3 = void (sends were late or the generator was too busy), 4 = an answer was
another's or came twice. Latencies count from the intended send time, so a server that stalls cannot hide
the requests it kept away.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import itertools
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop

from bench import bodies
from bench.ledger import Entry, Ledger
from bench.timer import Timer, precise, urgent

MOST_CONNECTIONS = 12_000
AT_ONCE = 50  # requests given up in one turn, so that sends are not late


class Connection(asyncio.Protocol):
    """One connection, one request at a time.

    Args:
        load: the run it works for.
    """

    def __init__(self, load: OpenLoop) -> None:
        self.load = load
        self.entry: Entry | None = None
        self.transport: Any = None
        self.keep = True
        self.reset()

    def reset(self) -> None:
        """Await the next answer."""
        self.parser = httptools.HttpResponseParser(self)
        self.parts: list[bytes] = []
        self.reason = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits for this connection."""
        self.transport = transport
        if self.entry:
            self.write(self.entry)
        else:
            self.load.idle.append(self)

    def send(self, entry: Entry) -> None:
        """Send a request, once connected."""
        self.entry = entry
        if self.transport:
            self.write(entry)

    def write(self, entry: Entry) -> None:
        """Put a request on the wire."""
        self.transport.write(self.load.message(entry.number))

    def data_received(self, data: bytes) -> None:
        """Take a piece of an answer."""
        if not self.entry:
            self.load.ledger.duplicated += 1
            self.transport.abort()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.finish("mismatched", "unreadable")
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep our reason word."""
        if name.lower() == b"x-penstock-reason":
            self.reason = value

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self.parts.append(body)

    def on_message_complete(self) -> None:
        """Enter the answer in the ledger; the connection is free again."""
        if not self.entry:
            self.load.ledger.duplicated += 1
            self.transport.abort()
            return
        status = self.parser.get_status_code()
        keep = self.parser.should_keep_alive()
        if 200 <= status < 300:
            own = self.load.bodies.holds(b"".join(self.parts), self.entry.number)
            self.finish("ok" if own else "mismatched", str(status))
        else:
            word = "refused" if status in (429, 503) else "error"
            self.finish(word, f"{status} {self.reason.decode('latin-1')}".strip())
        if keep:
            self.parts, self.reason = [], b""
            self.load.idle.append(self)
        else:
            self.transport.close()

    def finish(self, outcome: str, detail: str) -> None:
        """End the entry."""
        entry, self.entry = self.entry, None
        if entry and not entry.outcome:
            entry.ended, entry.outcome, entry.detail = time.monotonic(), outcome, detail
            self.load.open -= 1

    def connection_lost(self, _: Exception | None) -> None:
        """The requests under way are lost."""
        self.load.connections.discard(self)
        self.finish("lost", "connection ended")


class OpenLoop:
    """A run.

    Args:
        host: where to connect.
        port: where to connect.
        path: what to post to.
        times: seconds after the start at which to send.
        ledger: where it is written.
        form: the form of bodies.
        timeout: seconds after which a request is given up.
        connections: how many to open before the start.
        kind: what a connection is.
        first_number: the first request's item; the others follow.
    """

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        times: Iterator[float],
        ledger: Ledger,
        *,
        form: bodies.Form,
        timeout: float,
        connections: int,
        kind: type[Connection] = Connection,
        first_number: int = 1_000,
    ) -> None:
        self.kind = kind
        self.where = host, port
        self.first_number = first_number
        self.path = path.encode()
        self.times = times
        self.ledger = ledger
        self.bodies = form
        self.timeout = timeout
        self.first_connections = connections
        self.idle: list[Connection] = []
        self.connections: set[Connection] = set()
        self.waiting: list[asyncio.Task[Any]] = []
        self.open = 0
        self.asked: collections.deque[tuple[Entry, Connection]] = collections.deque()
        self.done = False

    def message(self, number: int) -> bytes:
        """A request's bytes."""
        body = self.bodies.body(number)
        return (
            b"POST %b HTTP/1.1\r\nhost: bench\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (self.path, len(body), body)
        )

    async def run(self) -> None:
        """Send everything, then wait until all is answered or given up."""
        self.loop = asyncio.get_running_loop()
        for _ in range(self.first_connections):
            self.connect(None)
        await asyncio.gather(*self.waiting)
        self.waiting.clear()
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection among 10 000 entries would make sends late
        timer = Timer(self.loop, self.tick)
        self.timer = timer
        self.started = time.monotonic() + 0.02
        busy = time.process_time()
        self.next = self.started + next(self.times)
        timer.at(self.next)
        while not self.done or self.open:
            await asyncio.sleep(0.01)
            self.expire()
            if not self.done:
                ended = time.monotonic()
                self.ledger.cpu_share = (time.process_time() - busy) / max(1e-9, ended - self.started)
        timer.close()
        gc.enable()
        # NB: every request has its answer now; wait a moment for answers that come twice.
        await asyncio.sleep(0.05)
        for connection in list(self.connections):
            if connection.transport:
                connection.transport.abort()

    def stop(self) -> None:
        """Send no more than what is due next."""
        self.times = iter(())

    def tick(self) -> None:
        """Send all that is due."""
        now = time.monotonic()
        while self.next <= now:
            entry = Entry(len(self.ledger.entries) + self.first_number, self.next)
            self.ledger.entries.append(entry)
            self.open += 1
            self.dispatch(entry)
            entry.sent = time.monotonic()
            following = next(self.times, None)
            if following is None:
                self.done = True
                return
            self.next = self.started + following
        self.timer.at(self.next)

    def dispatch(self, entry: Entry) -> None:
        """Send on a free connection, else on a new one."""
        while self.idle:
            connection = self.idle.pop()
            if connection in self.connections and not connection.transport.is_closing():
                self.asked.append((entry, connection))
                connection.send(entry)
                return
        if len(self.connections) < MOST_CONNECTIONS:
            self.connect(entry)
        else:
            entry.ended, entry.outcome, entry.detail = time.monotonic(), "lost", "no connection left"
            self.open -= 1

    def connect(self, entry: Entry | None) -> None:
        """Open a connection for a request, or for later."""
        connection = self.kind(self)
        self.connections.add(connection)
        connection.entry = entry
        if entry:
            self.asked.append((entry, connection))
        task = self.loop.create_task(self.open_connection(connection))
        self.waiting.append(task)
        if len(self.waiting) > 1000:
            self.waiting = [task for task in self.waiting if not task.done()]

    async def open_connection(self, connection: Connection) -> None:
        """Connect."""
        try:
            await self.loop.create_connection(lambda: connection, *self.where)
        except OSError as failed:
            self.connections.discard(connection)
            connection.finish("lost", f"connect: {type(failed).__name__}")

    def expire(self) -> None:
        """Give up what is too old: its connection ends, as a client's does that leaves."""
        limit = time.monotonic() - self.timeout
        for _ in range(AT_ONCE):
            if not self.asked or self.asked[0][0].intended > limit:
                return
            entry, connection = self.asked.popleft()
            if connection.entry is entry:
                connection.finish("timeout", f"{self.timeout:g} s")
                if connection.transport:
                    connection.transport.abort()


def arrivals(rate: float, seconds: float, *, seed: int | None) -> Iterator[float]:
    """Seconds after the start: Poisson with a seed, at even distances without.

    Args:
        rate: requests a second.
        seconds: how long.
        seed: of the Poisson process; None = constant.
    """
    if seed is None:
        yield from (index / rate for index in range(int(rate * seconds)))
        return
    draw = random.Random(seed)
    at = 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        yield at


def measure(
    url: str,
    rate: float,
    seconds: float,
    *,
    objective_ms: float,
    seed: int | None = 1,
    form: str = "instances",
    timeout: float = 2.0,
    connections: int = 256,
) -> Ledger:
    """Run a load in this process; returns its ledger (see `arrivals`, `OpenLoop`)."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    first = arrivals(rate, seconds, seed=seed)
    ledger = Ledger(objective_ms)
    load = OpenLoop(
        parts.hostname,
        parts.port,
        parts.path or "/",
        itertools.chain(first),
        ledger,
        form=bodies.FORMS[form],
        timeout=timeout,
        connections=connections,
    )
    uvloop.run(load.run())
    return ledger


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--objective-ms", type=float, default=1000.0, help="answers within it are good")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--constant", action="store_true", help="even distances instead of Poisson")
    parser.add_argument("--form", choices=sorted(bodies.FORMS), default="instances")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds until a request is given up")
    parser.add_argument("--connections", type=int, default=256, help="opened before the start")
    parser.add_argument("--latencies", action="store_true", help="also all latencies of good answers, in ms")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    precise()
    urgent()  # other work on this core must not make sends late
    ledger = measure(
        arguments.url,
        arguments.rate,
        arguments.seconds,
        objective_ms=arguments.objective_ms,
        seed=None if arguments.constant else arguments.seed,
        form=arguments.form,
        timeout=arguments.timeout,
        connections=arguments.connections,
    )
    summary = ledger.summary(arguments.seconds)
    if arguments.latencies:
        summary["latencies_ms"] = [
            round((e.ended - e.intended) * 1000, 3) for e in ledger.entries if e.outcome == "ok"
        ]
    print(json.dumps(summary))
    return 4 if summary["faults"] else 3 if summary["void"] else 0


if __name__ == "__main__":
    sys.exit(main())
