"""A model server for tests, as a program of its own: it records what it ran and misbehaves on demand.

`python -m tests.support.models.model_server [--port N] [--base-ms 1] [--item-ms 0.01]` prints `ready
HOST:PORT`; `--one-request-each` ends each connection with its answer, `--backlog` connections wait for being
taken. A POST that names `instances` is a prediction; the answer to an item is `{"got": item}`. Every other
request is answered with its path and method. What else it does is said in the request's query: `status=500`,
`wrong=1` (one prediction too few), `garbage=1` (no JSON), `nohttp=1` (no HTTP), `cut=1` (half a body, then
the end), `reset=1` (the end at once), `hang=1` (no answer), `hold=NAME` (answers when `POST
/-/release?gate=NAME` has come, which opens that gate for good), `ms=50` (takes that long: never a bound on
what a test does meanwhile, that is what gates are for), `fields=1` (fields and members of its own), `flaky=2`
(the first two answers to this path are 500). `GET /-/runs` lists the runs; `PUT /-/ready?on=0` makes it not
ready.

`POST /-/reconfigure` takes a configuration: `{"refuse": "why"}` is refused with that message, `{"ms": 50}`
takes that long, `{"lose": true}` ends the connection.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import uvloop


class Record:
    """The runs of the model, and its state."""

    def __init__(self, *, base: float, item: float, keep_alive: bool = True) -> None:
        self.base = base
        self.item = item
        self.keep_alive = keep_alive
        self.runs: list[dict[str, Any]] = []
        self.running = 0
        self.ready = True
        self.connections = 0
        self.ledger: Path | None = None
        self.configs: list[dict[str, Any]] = []
        self.flaked: dict[str, int] = {}
        self.gates: collections.defaultdict[str, asyncio.Event] = collections.defaultdict(asyncio.Event)


class Connection(asyncio.Protocol):
    """One connection: bodies with a length only, one request at a time."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.buffer = b""
        self.busy = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass of asyncio's
        self.record.connections += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.step()

    def step(self) -> None:
        if self.busy:
            return
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = [
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])
        ]
        length = int(dict(fields).get("content-length", "0"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, target, _ = lines[0].split(" ", 2)
        self.busy = True
        task = asyncio.ensure_future(self.handle(method, target, fields, rest[:length]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def handle(self, method: str, target: str, fields: list[tuple[str, str]], body: bytes) -> None:
        path, _, query = target.partition("?")
        options = dict(parse_qsl(query))
        if path == "/-/runs":
            record = self.record
            answer = {"runs": record.runs, "connections": record.connections, "configs": record.configs}
            self.answer(200, answer)
        elif path == "/-/ready":
            self.record.ready = options["on"] == "1"
            self.answer(200, {})
        elif path == "/-/release":
            self.record.gates[options["gate"]].set()
            self.answer(200, {})
        elif path == "/-/reconfigure":
            await self.reconfigure(json.loads(body))
        elif method == "POST" and predicts(body):
            await self.predict(target, options, fields, body)
        elif path == "/":
            self.answer(200 if self.record.ready else 503, {})
        else:
            self.record.runs.append({"target": target, "fields": fields, "method": method, "hex": body.hex()})
            self.answer(200, {"path": path, "method": method})
        self.busy = False
        self.step()

    async def reconfigure(self, config: Any) -> None:
        record, said = self.record, config if isinstance(config, dict) else {}
        entry = {"config": config, "running": record.running, "after": len(record.runs)}
        record.configs.append(entry)
        await asyncio.sleep(said.get("ms", 0) / 1000)
        entry["ran_meanwhile"] = len(record.runs) - entry["after"]
        if "lose" in said:
            self.transport.abort()
        elif "refuse" in said:
            self.answer(422, {"title": "no", "detail": said["refuse"]})
        else:
            self.answer(204, {})

    async def predict(
        self, target: str, options: dict[str, str], fields: list[tuple[str, str]], body: bytes
    ) -> None:
        record = self.record
        document = json.loads(body)
        items = document["instances"]
        record.running += 1
        run = {
            "target": target,
            "items": items,
            "fields": fields,
            "body": body.decode(),
            "running": record.running,
        }
        record.runs.append(run)
        if record.ledger is not None:
            with record.ledger.open("a") as file:
                file.writelines(json.dumps(item) + "\n" for item in items)
        try:
            seconds = (
                float(options["ms"]) / 1000 if "ms" in options else record.base + record.item * len(items)
            )
            await asyncio.sleep(seconds)
            if "hold" in options:
                await record.gates[options["hold"]].wait()
            if "hang" in options:
                await asyncio.sleep(3600)
        finally:
            record.running -= 1
        flaked = record.flaked.get(target, 0)
        if flaked < int(options.get("flaky", "0")):
            record.flaked[target] = flaked + 1
            self.answer(500, {"error": "not warm yet"})
        elif "reset" in options:
            self.transport.abort()
        elif "nohttp" in options:
            self.transport.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            self.transport.close()
        elif "cut" in options:
            self.transport.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"predictions": [1')
            self.transport.close()
        elif "status" in options:
            self.answer(int(options["status"]), {"error": "the model says no"}, [("x-model", "grumpy")])
        elif "garbage" in options:
            self.answer(200, None)
        else:
            predictions = [{"got": item} for item in items]
            if "wrong" in options:
                predictions.pop()
            more = {"model_version": "7"} if "fields" in options else {}
            answer_fields = [
                ("x-model", "m7"),
                ("set-cookie", "a=b"),
                ("etag", '"1"'),
                ("x-penstock-not-admitted", "1"),
            ]
            self.answer(
                200, {"predictions": predictions, **more}, answer_fields if "fields" in options else []
            )

    def answer(self, status: int, document: Any, fields: list[tuple[str, str]] | None = None) -> None:
        body = b"this is { no JSON" if document is None else json.dumps(document).encode()
        body = b"" if status == 204 else body
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in fields or []]
        lines += [] if self.record.keep_alive else ["connection: close"]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        if not self.record.keep_alive:
            self.transport.close()


def predicts(body: bytes) -> bool:
    """Whether a body is a JSON object with `instances`."""
    try:
        document = json.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and "instances" in document


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    record = Record(
        base=arguments.base_ms / 1000,
        item=arguments.item_ms / 1000,
        keep_alive=not arguments.one_request_each,
    )
    record.ledger = arguments.ledger
    server = await loop.create_server(
        lambda: Connection(record), "127.0.0.1", arguments.port, backlog=arguments.backlog
    )
    host, port = server.sockets[0].getsockname()[:2]
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print(f"ready {host}:{port}", flush=True)
    await stop.wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger", type=Path, help="file that each item is written to before it is answered")
    parser.add_argument("--base-ms", type=float, default=1.0)
    parser.add_argument("--item-ms", type=float, default=0.01)
    parser.add_argument("--one-request-each", action="store_true")
    parser.add_argument("--backlog", type=int, default=100)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
