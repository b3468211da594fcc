"""Open-loop load with a ledger: every request has an id, every execution is recorded.

Run it inside the cluster's network namespace: `python -m tests.support.ledger.ledger_load --listen PORT`. It
collects the records of `ledger_model` on PORT (0: any; models connect when they load), prints `collecting
PORT`, and sends once told `{"url": …, "rate": requests a second, "count": requests in all or 0, "calls":
whether every second one is a call over gRPC, all on one channel, "fresh": whether each request has a
connection of its own}` on standard input. A line `{"mark": NAME}`
begins a part of the run under that name; the answer to it is `{"answered": n, "open": n, "earlier": n}`: the
last are open and were sent before the part began. After `count` requests, or at any other line (or the end)
of its input, it waits for the answers under way and prints one JSON summary; then another run may be asked
for. Ids go on over all runs.

    sent, ok, not_ok {code or outcome: n}, mismatched (an answer with another's id), lost (no answer),
    duplicated (ids executed more than once, and answers to nothing), unexecuted (answered 200, not recorded),
    errors [{at, sent, part, detail, body}] (`time.monotonic` of the end and of the sending; at most 5 000),
    backends {name: n}, pods {name: items executed}, batches, batch_items, labels, p50_ms, p99_ms,
    late_p99_ms, late_max_ms, cpu_share,
    parts [{name, seconds, sent, not_ok, most_open (requests at once), least_rate (answers a second, in the
    slowest 5 s), p50_ms, p99_ms, max_ms, backends {name: n} (who answered what was sent within the part)}]
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import collections
import contextlib
import itertools
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

import grpc
import grpc.aio
import uvloop

from bench.ledger import Entry, Ledger, quantile
from bench.open_loop import Connection, OpenLoop
from bench.timer import precise, urgent
from tests.support.http.grpc_messages import call, message

MOST_ERRORS = 5_000
TIMEOUT_SECONDS = 60.0
CONNECTIONS = 32
RECORDED_WITHIN = 60.0
"""Seconds that the record of an answer may take: its model sent it first, but over another connection."""
RATE_WINDOW_SECONDS = 5.0
"""Over so long the rate of answers is taken."""
QUIET_SECONDS = 0.3
"""Seconds without a record after a run that end the wait for more."""


class Executed:
    """The records of the models, over all runs."""

    def __init__(self) -> None:
        self.ids: collections.Counter[int] = collections.Counter()
        self.pods: collections.Counter[str] = collections.Counter()
        self.batches = 0
        self.batch_items = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def collect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one model's records until it goes away."""
        self.writers.add(writer)
        try:
            # NB: a line that was cut off by the model's end is none.
            while (line := await reader.readline()).endswith(b"\n"):
                record = json.loads(line)
                self.ids.update(record["ids"])
                self.pods[record["pod"]] += len(record["ids"])
                self.batches += 1
                self.batch_items += len(record["ids"])
        except ConnectionError:
            pass  # a pod that was killed; what it recorded stands
        finally:
            self.writers.discard(writer)
            writer.close()


class Ids:
    """`{"instances": [{"id": 7}]}` → `{"predictions": [{"id": 7, "label": …}]}`."""

    def __init__(self) -> None:
        self.labels: collections.Counter[str] = collections.Counter()

    def body(self, number: int) -> bytes:
        """A request with this id."""
        return b'{"instances":[{"id":%d}]}' % number

    def holds(self, body: bytes, number: int) -> bool:
        """Whether an answer is this id's."""
        try:
            (prediction,) = json.loads(body)["predictions"]
            self.labels[prediction["label"]] += 1
            return bool(prediction["id"] == number)
        except (ValueError, KeyError, TypeError):
            return False


class Observed(Connection):
    """A connection that also keeps the backends' names, and what errors said."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        super().on_header(name, value)
        if name.lower() == b"x-penstock-backend":
            backend = value.decode()
            self.run.backends[backend] += 1
            if self.entry:
                self.run.backend_of[self.entry.number] = backend

    def on_message_complete(self) -> None:
        """See httptools."""
        status = self.parser.get_status_code()
        if self.entry and not 200 <= status < 300:
            self.run.bodies_of_errors[self.entry.number] = b"".join(self.parts)[:2000].decode(
                errors="replace"
            )
        super().on_message_complete()

    @property
    def run(self) -> Run:
        """The run it works for."""
        return cast("Run", self.load)


class Run(OpenLoop):
    """One run."""

    def __init__(self, order: dict[str, Any], executed: Executed, first_number: int) -> None:
        self.executed = executed
        self.backends: collections.Counter[str] = collections.Counter()
        self.backend_of: dict[int, str] = {}
        self.bodies_of_errors: dict[int, str] = {}
        self.marks: list[tuple[float, str]] = []
        self.ids = Ids()
        self.before = executed.batches, executed.batch_items, collections.Counter(executed.pods)
        self.head = b"connection: close\r\nhost:" if order.get("fresh") else b"host:"
        self.channel: grpc.aio.Channel | None = None
        self.calls: set[asyncio.Task[None]] = set()
        where = urlsplit(order["url"])
        if order.get("calls"):
            self.channel = grpc.aio.insecure_channel(f"{where.hostname}:{where.port or 80}")
        rate, count = float(order["rate"]), int(order["count"])
        numbers: Iterator[int] = iter(range(count)) if count else itertools.count()
        super().__init__(
            where.hostname or "",
            where.port or 80,
            where.path,
            (number / rate for number in numbers),
            Ledger(objective_ms=TIMEOUT_SECONDS * 1000),
            form=self.ids,
            timeout=TIMEOUT_SECONDS,
            connections=0 if order.get("fresh") else CONNECTIONS,
            kind=Observed,
            first_number=first_number,
        )

    def message(self, number: int) -> bytes:
        """See `OpenLoop`."""
        return super().message(number).replace(b"host:", self.head, 1)

    def dispatch(self, entry: Entry) -> None:
        """See `OpenLoop`."""
        if self.channel is None or entry.number % 2:
            super().dispatch(entry)
            return
        calling = self.loop.create_task(self._call(self.channel, entry))
        self.calls.add(calling)
        calling.add_done_callback(self.calls.discard)

    async def _call(self, channel: grpc.aio.Channel, entry: Entry) -> None:
        """Send an id over gRPC; an error without details of ours is a lost answer."""
        request = message("ModelInferRequest")(model_name="predict", id=str(entry.number))
        request.inputs.add(name="id", datatype="INT64", shape=[1])
        request.inputs[0].contents.int64_contents.append(entry.number)
        try:
            answer = await call(channel, "ModelInfer", request, timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            trailing = dict(error.trailing_metadata() or ())
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            own = "grpc-status-details-bin" in trailing
            outcome, detail = ("error" if own else "timeout" if late else "lost"), error.code().name
            self.bodies_of_errors[entry.number] = str(error.details())[:2000]
        else:
            outputs = dict(
                zip([each.name for each in answer.outputs], answer.raw_output_contents, strict=True)
            )
            own = (answer.id, int.from_bytes(outputs["id"], "little")) == (str(entry.number), entry.number)
            outcome, detail = ("ok" if own else "mismatched"), "OK"
            self.ids.labels[outputs["label"][4:].decode()] += 1
        entry.ended, entry.outcome, entry.detail = time.monotonic(), outcome, detail
        self.open -= 1

    def mark(self, name: str) -> None:
        """A part of the run begins, or goes on."""
        if not self.marks or self.marks[-1][1] != name:
            self.marks.append((time.monotonic(), name))

    def summary(self) -> dict[str, Any]:
        """See the module."""
        entries, executed = self.ledger.entries, self.executed.ids
        ids = range(self.first_number, self.first_number + len(entries))
        outcomes = collections.Counter(entry.outcome for entry in entries)
        wrong = [entry for entry in entries if entry.outcome in ("error", "refused")]
        late = sorted((entry.sent - entry.intended) * 1000 for entry in entries)
        batches, batch_items, pods = self.before
        return {
            "sent": len(entries),
            "ok": outcomes["ok"],
            "not_ok": dict(collections.Counter(entry.detail.split()[0] for entry in wrong)),
            "mismatched": outcomes["mismatched"],
            "lost": outcomes["lost"] + outcomes["timeout"],
            "duplicated": sum(executed[each] > 1 for each in ids) + self.ledger.duplicated,
            "unexecuted": self.unexecuted(),
            "errors": [self._error(entry) for entry in entries if entry.outcome != "ok"][:MOST_ERRORS],
            "backends": dict(self.backends),
            "pods": dict(self.executed.pods - pods),
            "labels": dict(self.ids.labels),
            "batches": self.executed.batches - batches,
            "batch_items": self.executed.batch_items - batch_items,
            **_latencies(entries, 0.5, 0.99),
            "late_p99_ms": round(quantile(late, 0.99), 2),
            "late_max_ms": round(late[-1], 2) if late else 0.0,
            "cpu_share": round(self.ledger.cpu_share, 3),
            "parts": self._parts(),
        }

    def unexecuted(self) -> int:
        """Answers to requests that no model has recorded."""
        ids = self.executed.ids
        return sum(entry.outcome == "ok" and not ids[entry.number] for entry in self.ledger.entries)

    def _part_of(self, entry: Entry) -> str:
        return next((name for at, name in reversed(self.marks) if at <= entry.intended), "")

    def _error(self, entry: Entry) -> dict[str, Any]:
        return {
            "at": entry.ended,
            "sent": entry.intended,
            "part": self._part_of(entry),
            "detail": f"{entry.outcome} {entry.detail}",
            "body": self.bodies_of_errors.get(entry.number, ""),
        }

    def _parts(self) -> list[dict[str, Any]]:
        last = max((entry.intended for entry in self.ledger.entries), default=0.0)
        ends = [*(at for at, _ in self.marks), last][1:]
        parts = []
        for (begin, name), end in zip(self.marks, ends, strict=False):
            mine = [entry for entry in self.ledger.entries if begin <= entry.intended < end]
            parts.append(
                {
                    "name": name,
                    "seconds": round(end - begin, 1),
                    "sent": len(mine),
                    "not_ok": sum(entry.outcome != "ok" for entry in mine),
                    "most_open": most_open(self.ledger.entries, begin, end),
                    "least_rate": round(least_rate(self.ledger.entries, begin, end), 1),
                    **_latencies(mine, 0.5, 0.99, 1.0),
                    "backends": self._backends(begin, end),
                }
            )
        return parts

    def _backends(self, begin: float, end: float) -> dict[str, int]:
        there = [entry for entry in self.ledger.entries if begin <= entry.sent < end]
        return dict(collections.Counter(self.backend_of.get(entry.number, "") for entry in there))

    def earlier(self) -> int:
        """Requests that were sent before this part of the run began, and are not answered yet."""
        begin = self.marks[-1][0] if self.marks else 0.0
        return sum(0 < entry.sent < begin and not entry.outcome for entry in self.ledger.entries)


def most_open(entries: list[Entry], begin: float, end: float) -> int:
    """The most requests that were sent and not yet answered at one moment of a time, its ends included.

    Args:
        begin: of the time, by `time.monotonic`.
    """
    there = [entry for entry in entries if entry.sent <= end and entry.ended >= begin]
    # One that is sent as another ends counts beside it: a bound is never too low.
    moments = sorted([(entry.sent, 0) for entry in there] + [(entry.ended, 1) for entry in there])
    counts = itertools.accumulate(-1 if ended else 1 for at, ended in moments if at <= end)
    return max(counts, default=0)


def least_rate(entries: list[Entry], begin: float, end: float) -> float:
    """The rate of good answers in the slowest `RATE_WINDOW_SECONDS` of a time, in answers a second.

    Args:
        begin: of the time, by `time.monotonic`.
        end: of the time; where that is less than a window away, the rate over the whole time.
    """
    ends = sorted(entry.ended for entry in entries if entry.outcome == "ok")
    window = min(RATE_WINDOW_SECONDS, end - begin)
    if window <= 0:
        return 0.0
    # The count falls only where an answer leaves the window, so the slowest one begins right behind one.
    begins = [begin, end - window, *(at for at in ends if begin <= at <= end - window)]
    counts = [bisect.bisect_left(ends, at + window) - bisect.bisect(ends, at) for at in begins]
    return min(counts) / window


def _latencies(entries: list[Entry], *shares: float) -> dict[str, float]:
    ordered = sorted((entry.ended - entry.intended) * 1000 for entry in entries if entry.outcome == "ok")
    names = {share: "max_ms" if share == 1.0 else f"p{share * 100:.0f}_ms" for share in shares}
    return {name: round(quantile(ordered, share), 2) for share, name in names.items()}


async def serve(listen: int) -> None:
    """Collect, and make one run after another, until the input ends."""
    executed = Executed()
    server = await asyncio.start_server(executed.collect, "0.0.0.0", listen)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print(f"collecting {server.sockets[0].getsockname()[1]}", flush=True)
    number = 1
    while line := await lines.readline():
        run = Run(json.loads(line), executed, number)
        listening = asyncio.create_task(_until_stopped(run, lines))
        await run.run()
        if run.channel is not None:
            await run.channel.close()
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        number += len(run.ledger.entries)
        await _recorded(run)
        print(json.dumps(run.summary()), flush=True)
    server.close()
    for writer in list(executed.writers):
        writer.close()
    await asyncio.sleep(0.1)  # their tasks end with them


async def _recorded(run: Run) -> None:
    """Wait until what was answered is recorded, which comes on other connections, and nothing more comes."""
    ends = time.monotonic() + RECORDED_WITHIN
    news = -1
    while time.monotonic() < ends and (run.unexecuted() or news != run.executed.batches):
        news = run.executed.batches
        await asyncio.sleep(QUIET_SECONDS)


async def _until_stopped(run: Run, lines: asyncio.StreamReader) -> None:
    while line := (await lines.readline()).strip():
        if not line.startswith(b"{"):
            break
        run.mark(json.loads(line)["mark"])
        answered = len(run.ledger.entries) - run.open
        progress = {"answered": answered, "open": run.open, "earlier": run.earlier()}
        print(json.dumps(progress), flush=True)
    run.stop()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=int, required=True, help="port of the collector")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    precise()
    urgent()  # other work on this core must not make sends late
    uvloop.run(serve(arguments.listen))


if __name__ == "__main__":
    main()
