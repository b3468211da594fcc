"""Batches by cost before a real encoder: texts of unequal length through a transformer that computes.

`python -m bench.encoder` makes an encoder of four layers at random, in ONNX form, and serves it by
onnxruntime on core 0; each batch is padded to its longest text, as most servers of embeddings do. Callers
send one text a request from core 1. Four batchers stand before it:

- `cost`: the sidecar as it is, with no setting but a batch's size; it learns from the bytes of the texts.
- `count`: the same sidecar, and items that show nothing: all have the same bytes.
- `budget N`: the rule of servers with a constant token budget: texts in the order of their arrival, as long
  as their number times the longest is at most N. The server's own queue does it, without a hop before it.
- `sorted`: texts that are all there, in the order of their lengths: what no queue can do.
- `infinity`, with `--beside infinity`: Infinity's server and queue around the same encoder (`bench/peers`).
  Its HTTP is part of its CPU, so a second rate counts the encoder's CPU alone.

Lengths are drawn from the distributions of `LENGTHS`. A closed loop of 128 callers comes first, after a
warm-up, with the same texts for all; then an open loop at shares of what sorted texts reach. Rates of the
closed loop are texts a second of the encoder's CPU, which it uses whole, so that another's work on its core
does not count. It takes four minutes for one distribution; without the open loop (`--shares`
and nothing behind it) two.

`--duplicates` asks for each text twice instead, with `reuse: None` and `InFlight`, while one caller in ten
leaves before its answer: the texts that the encoder ran for each answer, and no answer of another text.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import uvloop
from onnx import TensorProto, helper, numpy_helper

from bench import model, processes, product, venvs
from bench.ledger import Ledger, quantile
from bench.open_loop import OpenLoop, arrivals
from bench.padded_encoder import Encoder
from bench.processes import DidNotStartError, Server, Sidecar
from bench.timer import precise

LAYERS, WIDTH, HEADS, LONGEST, BATCH = 4, 128, 4, 512, 32
CALLERS = 128
BUDGETS = (512, 1024, 2048, 4096)
SHARES = (0.6, 0.9, 1.1, 1.5)
OBJECTIVE_MS = 2000.0
FIRST = 100_200
"""Number of the first text that counts."""
SHORT = 64
"""Tokens of a short text, at most."""
INSTANCES = b'{"instances":[{"n":%d,"tokens":%s,"text":"%s"}]}'
OPENAI = b'{"model":"bench","input":"%d %s %s"}'

LENGTHS: dict[str, Callable[[random.Random, int], float]] = {
    "constant": lambda _, __: 128,
    "lognormal": lambda draw, _: draw.lognormvariate(math.log(128), 1.0),
    "bimodal": lambda draw, _: draw.lognormvariate(math.log(400 if draw.random() < 0.1 else 20), 0.2),
    "drifting": lambda draw, number: draw.lognormvariate(math.log(32 * 8 ** (number % 600 / 600)), 0.5),
    "adversarial": lambda _, number: 500 if number % BATCH == 0 else 8,
}
"""A text's length in tokens; arguments: the source of chance, the text's number."""


def length(name: str, number: int) -> int:
    """Tokens of a text, between 1 and `LONGEST`."""
    return min(LONGEST, max(1, round(LENGTHS[name](random.Random(number), number))))


class Texts:
    """Requests with one text each, as `bench.bodies` has forms.

    Args:
        name: of the distribution.
        shown: whether the bytes of an item show its length.
        openai: whether as OpenAI has them, whose embeddings have the text's number first.
    """

    def __init__(self, name: str, *, shown: bool, openai: bool = False) -> None:
        self.name, self.shown = name, shown
        self.form = OPENAI if openai else INSTANCES
        self.begin = b'"embedding":[%d.0,' if openai else b'{"predictions":[[%d,'

    def body(self, number: int) -> bytes:
        """A request with this text: a token is a letter and a blank."""
        tokens = length(self.name, number)
        text = "a " * (tokens if self.shown else 128)
        # NB: a number of eight digits and one of five places, so that items have equal bytes.
        return self.form % (
            10_000_000 + number,
            b"%-5.5s" % (b"%.4f" % tokens),
            text.encode(),
        )

    def holds(self, body: bytes, number: int) -> bool:
        """Whether an answer is this text's."""
        return self.begin % (10_000_000 + number) in body[:96]


# -- the encoder ---------------------------------------------------------------------------------------


def made(path: Path) -> None:
    """Write an encoder with random weights: token ids and their mask in, the mean of the last states out."""
    draw = np.random.default_rng(7)
    constants: dict[str, Any] = {
        "words": draw.standard_normal((32, WIDTH)),
        "places": draw.standard_normal((LONGEST + 2, WIDTH)),
        "scale": np.float32(math.sqrt(WIDTH / HEADS)),
        "ones": np.ones(WIDTH),
        "zeros": np.zeros(WIDTH),
        "far": np.float32(-1e4),
        "one": np.float32(1),
    }
    shapes = {"apart": [0, 0, HEADS, WIDTH // HEADS], "together": [0, 0, WIDTH], "at1": [1], "at2": [2]}
    nodes: list[Any] = []

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    def dense(state: str, inputs: int, outputs: int) -> str:
        name = f"w{len(constants)}"
        constants[name] = draw.standard_normal((inputs, outputs)) / math.sqrt(inputs)
        return node("MatMul", state, name)

    def normal(state: str) -> str:
        return node("LayerNormalization", state, "ones", "zeros")

    mask = node("Unsqueeze", node("Unsqueeze", "mask", "at1"), "at1")
    hidden = node("Mul", node("Sub", "one", mask), "far")
    state = node("Add", node("Gather", "words", "ids"), node("Gather", "places", "positions"))
    for _ in range(LAYERS):
        parts = [node("Reshape", dense(state, WIDTH, WIDTH), "apart") for _ in range(3)]
        query, value = (node("Transpose", part, perm=[0, 2, 1, 3]) for part in (parts[0], parts[2]))
        key = node("Transpose", parts[1], perm=[0, 2, 3, 1])
        scores = node("Add", node("Div", node("MatMul", query, key), "scale"), hidden)
        mixed = node("MatMul", node("Softmax", scores, axis=-1), value)
        mixed = node("Reshape", node("Transpose", mixed, perm=[0, 2, 1, 3]), "together")
        state = normal(node("Add", state, dense(mixed, WIDTH, WIDTH)))
        wide = node("Relu", dense(state, WIDTH, 4 * WIDTH))
        state = normal(node("Add", state, dense(wide, 4 * WIDTH, WIDTH)))
    counted = node("Unsqueeze", "mask", "at2")
    total = node("ReduceSum", node("Mul", state, counted), "at1", keepdims=0)
    nodes.append(
        helper.make_node("Div", [total, node("ReduceSum", counted, "at1", keepdims=0)], ["embedding"])
    )
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "length"]),
            helper.make_tensor_value_info("positions", TensorProto.INT64, ["length"]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["n", "length"]),
        ],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
        + [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in shapes.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


# -- its server ----------------------------------------------------------------------------------------


class Device:
    """Runs batches as they come, or, with a budget, requests in batches of its own.

    Args:
        path: of the encoder.
        budget: tokens of a batch after padding, at most; 0 = a request is a batch.
    """

    def __init__(self, path: str, budget: int) -> None:
        self.encoder, self.budget = Encoder(path), budget
        self.sizes: collections.Counter[int] = collections.Counter()
        self.waiting: collections.deque[tuple[Connection, list[int], list[int]]] = collections.deque()
        self.due = False

    def take(self, connection: Connection, body: bytes) -> None:
        """Queue a request; what has arrived in one turn of the loop is seen before the next batch runs."""
        items = json.loads(body)["instances"]
        numbers = [item["n"] for item in items]
        self.waiting.append((connection, numbers, [round(item["tokens"]) for item in items]))
        self.turn()

    def turn(self) -> None:
        """Run a batch in the loop's next turn."""
        if self.waiting and not self.due:
            self.due = True
            asyncio.get_running_loop().call_later(0, self.run)

    def run(self) -> None:
        """Run the next batch, and answer."""
        self.due = False
        batch = [self.waiting.popleft()]
        while self.waiting and len(batch) < BATCH:
            most = max(max(tokens) for _, _, tokens in [*batch, self.waiting[0]])
            if most * (len(batch) + 1) > self.budget:
                break
            batch.append(self.waiting.popleft())
        numbers = [number for _, some, _ in batch for number in some]
        found = iter(self.encoder.embed(numbers, [tokens for _, _, some in batch for tokens in some]))
        self.sizes[len(numbers)] += 1
        for connection, some, _ in batch:
            rows = [[number, round(float(next(found)[0]), 4)] for number in some]
            connection.answer({"predictions": rows})
        self.turn()


class Connection(model.Connection):
    """A connection of its server."""

    device: Any  # a `Device` of this module

    def request(self, body: bytes, text: int) -> None:
        """Take one request; one without a body asks for the batches."""
        if body:
            self.device.take(self, body)
        else:
            self.answer(self.device.sizes)

    def answer(self, document: Any) -> None:
        """Answer a request."""
        text = json.dumps(document, separators=(",", ":")).encode()
        self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(text), text)
        )


async def serve(port: int, path: str, budget: int) -> None:
    """Serve until ended."""
    device: Any = Device(path, budget)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(device), "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def encoder(path: Path, *, budget: int = 0) -> Iterator[Server]:
    """The encoder's server, on core 0."""
    port = processes.free_port()
    command = [sys.executable, "-m", "bench.encoder", "--serve", str(port), str(path), str(budget)]
    with processes.running(command, core=0) as (process, log):
        processes.await_line(process, log, "ready", seconds=20)
        yield Server(port=port, pid=process.pid)


@contextlib.contextmanager
def batcher(name: str, path: Path) -> Iterator[tuple[Server, Server]]:
    """What is measured: `cost`, `count`, `budget N` or `infinity`, and the encoder behind it."""
    if name == "infinity":
        with infinity(path) as server:
            yield server, server
        return
    if name.startswith("budget"):
        with encoder(path, budget=int(name.split()[1])) as server:
            yield server, server
        return
    with encoder(path) as behind, sidecar(behind) as server:
        yield server, behind


@contextlib.contextmanager
def infinity(path: Path) -> Iterator[Server]:
    """Infinity with the encoder in it, on core 0.

    Raises:
        NotInstalledError: its environment could not be made.
    """
    python, port = venvs.ensure("infinity"), processes.free_port()
    environment = {"BENCH_PORT": str(port), "BENCH_MAX_BATCH": str(BATCH), "BENCH_ENCODER": str(path)}
    environment["PYTHONPATH"] = str(processes.ROOT)
    command = [str(python), str(venvs.REQUIREMENTS / "serve_infinity.py")]
    with processes.running(command, core=0, env=environment) as (process, log):
        processes.await_line(process, log, "ready", seconds=90)
        yield Server(port=port, pid=process.pid, path="/embeddings")


def encoder_seconds(server: Server) -> float:
    """CPU that Infinity's encoder alone has taken so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/-/seconds", timeout=30) as answer:
        return float(answer.read())


@contextlib.contextmanager
def sidecar(behind: Server) -> Iterator[Sidecar]:
    """Our sidecar before it, on core 1."""
    port, admin = processes.free_port(), processes.free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        settings = Path(folder) / "settings.json"
        settings.write_text(json.dumps({"v": 1, "batching": {"maxBatchSize": BATCH}}))
        command = [
            *(sys.executable, "-m", "penstock_sidecar", f"--listen=127.0.0.1:{port}"),
            *(f"--admin=127.0.0.1:{admin}", f"--model=http://127.0.0.1:{behind.port}"),
            *(f"--settings={settings}", "--protocol=instances", "--propagation-delay=0s"),
        ]
        with processes.running(command, core=1, env=processes.without_ours()) as (process, log):
            processes.await_line(process, log, "ready ", seconds=20)
            yield Sidecar(port=port, pid=process.pid, settings=settings, admin=admin)


# -- loads ---------------------------------------------------------------------------------------------


async def closed(
    server: Server,
    texts: Texts,
    first: int,
    *,
    seconds: float = math.inf,
    count: int = sys.maxsize,
    times: int = 1,
    leaving: float = 0.0,
) -> list[tuple[float, int]]:
    """Callers that ask again at once; the latency and the length of each answer, in seconds and tokens.

    Args:
        server: whom they ask.
        texts: what they ask.
        first: the number of the first text.
        seconds: until none asks again.
        count: texts that are asked for.
        times: how many ask for each text, one after the other.
        leaving: the share of requests whose caller closes its connection within 0.2 s, and comes back.
    """
    numbers, found = iter(range(first * times, (first + count) * times)), []
    until, draw = time.monotonic() + seconds, random.Random(first)

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while (start := time.monotonic()) < until and (number := next(numbers, -1)) >= 0:
            number //= times
            body = texts.body(number)
            writer.write(
                b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (server.path.encode(), len(body), body)
            )
            if draw.random() < leaving:
                await asyncio.sleep(0.2 * draw.random())
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                continue
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            answer = await reader.readexactly(int(size[15:]))
            if not texts.holds(answer, number):
                raise DidNotStartError(f"expected the answer of text {number}, found {answer[:200]!r}")
            found.append((time.monotonic() - start, length(texts.name, number)))
        writer.close()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return found


def opened(server: Server, texts: Texts, rate: float, seconds: float) -> tuple[float, list[float]]:
    """Answers in time a second of an open loop, and the latencies of short texts in seconds."""
    ledger = Ledger(OBJECTIVE_MS)
    load = OpenLoop(
        "127.0.0.1",
        server.port,
        "/predict",
        arrivals(rate, seconds, seed=1),
        ledger,
        form=texts,
        timeout=2 * OBJECTIVE_MS / 1000,
        connections=256,
    )
    uvloop.run(load.run())
    summary = ledger.summary(seconds)
    if summary["faults"]:
        raise DidNotStartError(f"an open loop with faults: {summary['faults']}")
    short = [
        entry.ended - entry.intended
        for entry in ledger.entries
        if entry.outcome == "ok" and length(texts.name, entry.number) <= SHORT
    ]
    return summary["goodput_per_s"], sorted(short)


def offline(path: Path, name: str, count: int) -> float:
    """Texts a second where all are there: full batches in the order of their lengths, on core 0."""
    every = sorted((length(name, number), number) for number in range(FIRST, FIRST + count))
    device, kept = Encoder(str(path)), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    try:
        device.embed([0] * BATCH, [LONGEST] * BATCH)
        start = time.process_time()
        for batch in (every[at : at + BATCH] for at in range(0, count, BATCH)):
            device.embed([number for _, number in batch], [tokens for tokens, _ in batch])
        return count / (time.process_time() - start)
    finally:
        os.sched_setaffinity(0, kept)


def duplicates(name: str, path: Path, *, warm: float, count: int) -> None:
    """Print how many texts the encoder runs for each answer where each is asked for twice."""
    texts = Texts(name, shown=True)
    for reuse in ("None", "InFlight"):
        with batcher("cost", path) as (server, behind):
            assert isinstance(server, Sidecar)
            server.change({"maxBatchSize": BATCH, **({} if reuse == "None" else {"reuse": reuse})})
            uvloop.run(closed(server, texts, 0, seconds=warm, times=2))
            before = processes.batch_sizes(behind)
            found = uvloop.run(closed(server, texts, FIRST, count=count, times=2, leaving=0.1))
            sizes = collections.Counter(processes.batch_sizes(behind))
            sizes.subtract(before)
            ran = sum(size * count for size, count in sizes.items())
            print(
                f"{name:<12} reuse: {reuse:<9} {len(found)} answers, all of their texts; "
                f"{ran / len(found):.2f} texts ran for each",
                flush=True,
            )


def of_short(times: list[float]) -> str:
    """The p99 of short texts, if there were any."""
    return f"of short ones {quantile(times, 0.99):.2f} s" if times else "of short ones: there are none"


def compare(
    name: str,
    path: Path,
    *,
    warm: float,
    count: int,
    seconds: float,
    shares: list[float],
    budgets: list[int],
    beside: list[str],
) -> None:
    """Print what each batcher does with texts of one distribution."""
    best = offline(path, name, count)
    print(f"{name:<12} sorted       {best:7.1f} texts/s", flush=True)
    names = ["count", "cost", *(f"budget {budget}" for budget in budgets), *beside]
    rates: dict[str, float] = {}
    good: dict[str, list[str]] = collections.defaultdict(list)
    for each in names:
        texts = Texts(name, shown=each in ("cost", *beside), openai=each in beside)
        with batcher(each, path) as (server, behind):
            uvloop.run(closed(server, texts, 0, seconds=warm if each == "cost" else warm / 5))
            before, sizes = processes.cpu_seconds(behind.pid), processes.batch_sizes(behind)
            spent = processes.cpu_seconds(server.pid)
            alone = encoder_seconds(server) if each in beside else 0.0
            found = uvloop.run(closed(server, texts, FIRST, count=count))
            spent = processes.cpu_seconds(server.pid) - spent
            rates[each] = len(found) / (processes.cpu_seconds(behind.pid) - before)
            batches = sum(processes.batch_sizes(behind).values()) - sum(sizes.values())
            times = sorted(took for took, _ in found)
            short = sorted(took for took, tokens in found if tokens <= SHORT)
            print(
                f"{name:<12} {each:<12} {rates[each]:7.1f} texts/s, {rates[each] / best:.2f} of sorted, "
                f"{len(found) / batches:.1f} a batch; p99 {quantile(times, 0.99):.2f} s, "
                f"{of_short(short)}, longest {times[-1]:.2f} s"
                + (
                    f"; {spent / len(found) * 1e6:.0f} µs of the sidecar a text"
                    if server is not behind
                    else f"; {len(found) / (encoder_seconds(server) - alone):.1f} texts/s of its encoder"
                    if each in beside
                    else ""
                ),
                flush=True,
            )
            if not isinstance(server, Sidecar) or not shares:
                continue
            server.change({"maxBatchSize": BATCH, "latencyObjectiveMs": OBJECTIVE_MS})
            for share in shares:
                goodput, short = opened(server, texts, share * best, seconds)
                good[each].append(f"{share:4.0%}: {goodput:6.1f} in time/s, p99 {of_short(short)}")
    for each in ("count", *beside):
        print(f"{name:<12} cost ÷ {each} {rates['cost'] / rates[each]:.3f}")
    if budgets:
        most = max((rate, each) for each, rate in rates.items() if each.startswith("budget"))
        print(f"{name:<12} cost ÷ {most[1]}, the best constant: {rates['cost'] / most[0]:.2f}")
    for each, lines in good.items():
        for line in lines:
            print(f"{name:<12} {each:<12} offered {line}", flush=True)


def main() -> int:
    """Measure, or serve; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.encoder", description=__doc__)
    parser.add_argument("--serve", nargs=3, metavar=("PORT", "FILE", "BUDGET"), help="be the server")
    parser.add_argument("--lengths", nargs="*", default=["lognormal"], choices=sorted(LENGTHS))
    parser.add_argument(
        "--warm", type=float, default=15.0, help="seconds of learning before a figure counts (15)"
    )
    parser.add_argument("--count", type=int, default=1200, help="texts of the closed loop (1200)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each open loop (15)")
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES), help="of sorted, open loop")
    parser.add_argument("--budgets", nargs="*", type=int, default=list(BUDGETS), help="tokens of a batch")
    parser.add_argument(
        "--beside", nargs="*", default=[], choices=["infinity"], help="servers of others, installed here"
    )
    parser.add_argument("--duplicates", action="store_true", help="measure `reuse` instead")
    arguments = parser.parse_args()
    if arguments.serve:
        port, path, budget = arguments.serve
        uvloop.run(serve(int(port), path, int(budget)))
        return 0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    precise()
    print(f"build: {product.choose()}")
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        path = Path(folder) / "encoder.onnx"
        made(path)
        try:
            for name in arguments.lengths:
                times = {"warm": arguments.warm, "count": arguments.count}
                if arguments.duplicates:
                    duplicates(name, path, **times)
                else:
                    compare(
                        name,
                        path,
                        **times,
                        seconds=arguments.seconds,
                        shares=arguments.shares,
                        budgets=arguments.budgets,
                        beside=arguments.beside,
                    )
        except (DidNotStartError, venvs.NotInstalledError) as error:
            print(f"bench.encoder: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
