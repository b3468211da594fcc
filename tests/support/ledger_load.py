"""Open-loop load with a ledger: every request has an id, every execution is recorded.

Run it inside the cluster's network namespace: `python -m tests.support.ledger_load --listen PORT`. It
collects the records of `ledger_model` on PORT (models connect when they load), prints `collecting`, and sends
once told `{"url": …, "rate": requests a second, "count": requests in all or 0}` on standard input. After
`count` requests, or at the next line (or end) of its input, it waits for the answers under way and prints one
JSON summary:

    sent, ok, not_ok {code or error: n}, mismatched (an answer with another's id), lost (no answer),
    duplicated (ids executed more than once), unexecuted (answered 200, never recorded),
    backends {name: n}, pods {name: items executed}, batches, batch_items, labels, p50_ms, p99_ms, late
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import sys
import time
from typing import Any

import aiohttp


class Ledger:
    """What was sent, answered and executed."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered: dict[int, int] = {}
        self.not_ok: collections.Counter[str] = collections.Counter()
        self.samples: list[str] = []
        self.mismatched = 0
        self.executed: collections.Counter[int] = collections.Counter()
        self.pods: collections.Counter[str] = collections.Counter()
        self.backends: collections.Counter[str] = collections.Counter()
        self.labels: collections.Counter[str] = collections.Counter()
        self.batches = 0
        self.batch_items = 0
        self.latencies: list[float] = []
        self.late = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def collect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one model's records until it goes away."""
        self.writers.add(writer)
        try:
            while line := await reader.readline():
                record = json.loads(line)
                self.executed.update(record["ids"])
                self.pods[record["pod"]] += len(record["ids"])
                self.batches += 1
                self.batch_items += len(record["ids"])
        except ConnectionError:
            pass  # a pod that was killed; what it recorded stands
        finally:
            self.writers.discard(writer)
            writer.close()

    async def send(self, session: aiohttp.ClientSession, url: str, identity: int, due: float) -> None:
        """Send one request; its latency counts from when it was due."""
        self.sent += 1
        try:
            async with session.post(url, json={"instances": [{"id": identity}]}) as answer:
                text = await answer.text()
                if answer.status != 200:
                    self.not_ok[str(answer.status)] += 1
                    self.samples.append(f"{time.time():.3f} {identity} {answer.status} {text[:300]}")
                    return
                prediction = json.loads(text)["predictions"][0]
                self.backends[answer.headers.get("x-penstock-backend", "")] += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.not_ok[type(error).__name__] += 1
            self.samples.append(f"{time.time():.3f} {identity} {error!r}")
            return
        self.answered[identity] = self.answered.get(identity, 0) + 1
        self.labels[prediction["label"]] += 1
        self.latencies.append(time.monotonic() - due)
        if prediction["id"] != identity:
            self.mismatched += 1

    def summary(self) -> dict[str, Any]:
        """See the module."""
        ordered = sorted(self.latencies)

        def quantile(q: float) -> float:
            return round(ordered[int(q * (len(ordered) - 1))] * 1000, 2) if ordered else 0.0

        return {
            "sent": self.sent,
            "ok": len(self.answered),
            "not_ok": dict(self.not_ok),
            "samples": self.samples[:5],
            "mismatched": self.mismatched,
            "lost": self.sent - len(self.answered) - sum(self.not_ok.values()),
            "duplicated": sum(1 for count in self.executed.values() if count > 1),
            "unexecuted": sum(1 for identity in self.answered if identity not in self.executed),
            "backends": dict(self.backends),
            "pods": dict(self.pods),
            "labels": dict(self.labels),
            "batches": self.batches,
            "batch_items": self.batch_items,
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "late": self.late,
        }


async def run(listen: int) -> dict[str, Any]:
    """Collect, then send at a steady rate until `count` requests are sent or a line says stop."""
    ledger = Ledger()
    server = await asyncio.start_server(ledger.collect, "0.0.0.0", listen)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("collecting", flush=True)
    order = json.loads(await lines.readline())
    url, rate, count = order["url"], order["rate"], order["count"]
    stop = asyncio.create_task(lines.readline())
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        start = time.monotonic()
        identity = 0
        while not stop.done() and (not count or identity < count):
            due = start + identity / rate
            delay = due - time.monotonic()
            if delay > 0:
                await asyncio.wait({stop}, timeout=delay)
            elif delay < -0.05:
                ledger.late += 1
            identity += 1
            group.create_task(ledger.send(session, url, identity, due))
            if delay <= 0:
                await asyncio.sleep(0)
    await asyncio.sleep(0.3)  # records are sent before answers, but on another connection
    stop.cancel()
    server.close()
    for writer in list(ledger.writers):
        writer.close()
    await asyncio.sleep(0.1)  # their tasks end with them
    return ledger.summary()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=int, required=True, help="port of the collector")
    print(json.dumps(asyncio.run(run(parser.parse_args().listen))))


if __name__ == "__main__":
    main()
