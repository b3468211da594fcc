"""Models by `format`, beside a class written by hand, MLServer with scikit-learn, and bare onnxruntime.

`python -m bench.formats` takes three minutes. Servers run on core 0, callers on core 1.

- `sklearn`: the demo's forest, and one of ten trees, to 64 callers that send one image a request; each answer
  is checked. The demo's class and the format stand behind our sidecar; MLServer batches by itself, in
  windows of several lengths.
- `onnx`: two networks of three layers with random weights, on one thread. Their own runs are compared with
  `predict` of the format on the rows of a tensor, and with the CPU of its server for the same rows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import uvloop
from onnx import TensorProto, helper, numpy_helper

from bench import bodies, processes, product, venvs
from bench.processes import Server
from penstock_wire.http import Request
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.sending import send

CALLERS = 64
TREES = (200, 10)
DEMO = processes.ROOT / "examples" / "digits"
WINDOWS = (0.0, 0.005, 0.02)
"""Seconds that MLServer collects a batch for; 0 = it does not batch."""
SIZES = (1, 8, 64)
TURN = 0.02
"""Seconds of one and then the other of two that are compared: longer ones compare the machine's moods."""
NETWORKS = {"small": (784, 512, 512, 10), "large": (784, 2048, 2048, 10)}
"""Widths of layers; a row takes onnxruntime some 10 and 100 µs."""
JSON = ((b"content-type", b"application/json"),)
MLSERVER = "/v2/models/forest/infer"


class Images:
    """Requests with one image each, as `bench.bodies` has forms.

    Args:
        images: numbers.
        answers: of the classifier.
        v2: whether as a tensor.
    """

    def __init__(self, images: Any, answers: list[int], *, v2: bool) -> None:
        self._answers, self._v2 = answers, v2
        self._bodies = [json.dumps(self._document(image.tolist())).encode() for image in images]

    def _document(self, image: list[float]) -> dict[str, Any]:
        if not self._v2:
            return {"instances": [image]}
        return {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, len(image)], "data": image}]}

    def body(self, number: int) -> bytes:
        """A request with this image."""
        return self._bodies[number % len(self._bodies)]

    def holds(self, body: bytes, number: int) -> bool:
        """Whether an answer is this image's."""
        found = json.loads(body)
        answers = found["outputs"][0]["data"] if self._v2 else found["predictions"]
        return bool(np.ravel(answers).tolist() == [self._answers[number % len(self._bodies)]])


# -- scikit-learn --------------------------------------------------------------------------------------


def trained(file: Path, trees: int) -> float:
    """Write a forest as the demo has, and register the forms of its requests.

    Returns:
        Rows a second of scikit-learn alone, with as many at once as there are callers.
    """
    import joblib
    from sklearn.datasets import load_digits
    from sklearn.ensemble import ExtraTreesClassifier

    images, labels = load_digits(return_X_y=True)
    forest = ExtraTreesClassifier(n_estimators=trees, random_state=1).fit(images[:1500], labels[:1500])
    joblib.dump(forest, file)
    asked, answers = images[1500:], forest.predict(images[1500:]).tolist()
    for v2 in (False, True):
        bodies.FORMS[f"images{'-v2' * v2}"] = Images(asked, answers, v2=v2)
    return CALLERS / median(spent(partial(forest.predict, asked[:CALLERS])) for _ in range(20)) * 1e6


@contextlib.contextmanager
def by_sdk(target: str, **arguments: Any) -> Iterator[Server]:
    """A class on the SDK's server."""
    port = processes.free_port()
    command = [sys.executable, "-m", "penstock.serve", target, f"--port={port}"]
    path = os.pathsep.join([str(DEMO), os.environ.get("PYTHONPATH", "")])
    command.append(f"--init-kwargs={json.dumps(arguments)}")
    with processes.running(command, core=0, env={"PYTHONPATH": path}) as (process, log):
        processes.await_line(process, log, "ready ", seconds=60)
        yield Server(port=port, pid=process.pid, form="images")


@contextlib.contextmanager
def by_sidecar(target: str, **arguments: Any) -> Iterator[Server]:
    """A class behind our sidecar."""
    with by_sdk(target, **arguments) as model:
        batching = {"maxBatchSize": CALLERS}
        with processes.sidecar(model, core=0, batching=batching) as server:
            yield server


@contextlib.contextmanager
def by_mlserver(file: Path, window: float) -> Iterator[Server]:
    """MLServer with its runtime for scikit-learn, in the process that serves: with one core another costs."""
    python, port = venvs.ensure("mlserver"), processes.free_port()
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": processes.free_port(),
        "metrics_endpoint": None,
        "parallel_workers": 0,
        "gzip_enabled": False,
    }
    model = {
        "name": "forest",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": str(file)},
        "max_batch_size": CALLERS if window else 0,
        "max_batch_time": window,
    }
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        (Path(folder) / "settings.json").write_text(json.dumps(settings))
        (Path(folder) / "model-settings.json").write_text(json.dumps(model))
        command = [str(python.with_name("mlserver")), "start", folder]
        with processes.running(command, core=0) as (process, log):
            server = Server(port=port, pid=process.pid, path=MLSERVER, form="images-v2")
            processes.await_answer(server, process, log, seconds=60)
            yield server


async def closed(server: Server, seconds: float) -> float:
    """Callers that ask again at once; the answers a second.

    Raises:
        DidNotStartError: an answer was wrong.
    """
    form, numbers, answered = bodies.FORMS[server.form], itertools.count(), 0
    upstream, began = H1Upstream(connect_seconds=30), time.monotonic()

    async def caller() -> None:
        nonlocal answered
        while time.monotonic() < began + seconds:
            number = next(numbers)
            request = Request("POST", server.path, JSON, form.body(number))
            answer = await send(upstream, "127.0.0.1", server.port, request, timeout=60)
            if answer.status != 200 or not form.holds(answer.body, number):
                raise processes.DidNotStartError(f"expected image {number}'s answer, found {answer.body!r}")
            answered += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    took = time.monotonic() - began
    await upstream.close()
    return answered / took


def sklearn(folder: Path, *, rounds: int, seconds: float) -> None:
    """Compare what serves forests of several sizes."""
    for trees in TREES:
        most = trained(folder / "forest.joblib", trees)
        print(
            f"{trees} trees: scikit-learn alone answers {most:.0f} rows/s in batches of {CALLERS}", flush=True
        )
        forest(folder / "forest.joblib", f"{trees} trees", rounds=rounds, seconds=seconds)


def forest(file: Path, what: str, *, rounds: int, seconds: float) -> None:
    """Compare what serves one forest, in turns of a second: longer ones compare the machine's moods."""
    served: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {
        "by hand": partial(by_sidecar, "model:Digits", path=str(file)),
        "format": partial(by_sidecar, "penstock.formats.sklearn:Model", path=str(file), allow_pickle=True),
    }
    for window in WINDOWS:
        name = f"MLServer, {window * 1000:g} ms"
        served[name] = partial(by_mlserver, file, window)
    rates: dict[str, list[float]] = {name: [] for name in served}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(serve()) for name, serve in served.items()}
        for turn in range(1 + max(1, round(rounds * seconds))):
            for name, server in servers.items():
                rate = uvloop.run(closed(server, 1))
                rates[name] += [rate] if turn else []  # the first warms up
    for name, found in rates.items():
        spread = f"{min(found):.0f} to {max(found):.0f}"
        print(f"{what:<10} {name:<16} {median(found):7.0f} answers/s ({spread})", flush=True)
    best = max((name for name in served if name.startswith("MLServer")), key=lambda name: median(rates[name]))
    for other in ("by hand", best):
        ratios = sorted(here / there for here, there in zip(rates["format"], rates[other], strict=True))
        print(f"{what:<10} format ÷ {other}: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


# -- ONNX ----------------------------------------------------------------------------------------------


def network(path: Path, layers: tuple[int, ...]) -> None:
    """Write a network with random weights."""
    draw = np.random.default_rng(1)
    nodes, weights, last = [], [], "x"
    for index, shape in enumerate(itertools.pairwise(layers)):
        weights.append(numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"m{index}"]))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [last := f"r{index}"]))
    graph = helper.make_graph(
        [*nodes, helper.make_node("Softmax", [last], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", layers[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", layers[-1]])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def spent(call: Callable[[], object]) -> float:
    """Microseconds of CPU of one call, in the mean of some milliseconds."""
    count, began, until = 0, time.thread_time(), time.monotonic() + TURN
    while time.monotonic() < until:
        call()
        count += 1
    return (time.thread_time() - began) / count * 1e6


async def asked(server: Server, request: Request, seconds: float) -> float:
    """Microseconds of the server's CPU for a request of one caller, in the mean."""
    upstream, count = H1Upstream(connect_seconds=30), 0
    until = time.monotonic() + seconds
    before = processes.scheduled_seconds(server.pid)
    while time.monotonic() < until:
        answer = await send(upstream, "127.0.0.1", server.port, request, timeout=60)
        if answer.status != 200:
            raise processes.DidNotStartError(f"expected 200, found {answer.status} {answer.body[:200]!r}")
        count += 1
    used = processes.scheduled_seconds(server.pid) - before
    await upstream.close()
    return used / count * 1e6


def requests(rows: Any) -> dict[str, Request]:
    """The same rows as a binary tensor and as JSON."""
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(rows.shape)}
    tensor["parameters"] = {"binary_data_size": rows.nbytes}
    text = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    fields = ((b"inference-header-content-length", b"%d" % len(text)),)
    lists = [[round(value, 4) for value in row] for row in rows.tolist()]
    return {
        "binary": Request("POST", "/v2/models/m/infer", fields, text + rows.tobytes()),
        "JSON": Request("POST", "/predict", JSON, json.dumps({"instances": lists}).encode()),
    }


def onnx_runs(folder: Path, *, rounds: int, seconds: float) -> None:
    """Compare runs of onnxruntime with what the format and its server add, in rounds, in CPU time."""
    from penstock.formats.onnx import Model

    for name, layers in NETWORKS.items():
        file = folder / f"{name}.onnx"
        network(file, layers)
        os.sched_setaffinity(0, {0})  # a session has as many threads as it finds processors
        model = Model(str(file))
        # Another session has its weights elsewhere, which costs up to a fifth more or less.
        bare = model._session  # noqa: SLF001
        with by_sdk("penstock.formats.onnx:Model", path=str(file)) as server:
            for size in SIZES:
                table = np.random.default_rng(size).random((size, layers[0]), np.float32)
                rows = list(table)
                used: dict[str, list[float]] = {part: [] for part in ("bare", "predict", "binary", "JSON")}
                for _ in range(rounds):
                    os.sched_setaffinity(0, {0})
                    until = time.monotonic() + seconds
                    while time.monotonic() < until:
                        used["bare"].append(spent(partial(bare.run, None, {"x": table})))
                        used["predict"].append(spent(partial(model.predict, rows)))
                    os.sched_setaffinity(0, {1})
                    for part, request in requests(table).items():
                        used[part].append(uvloop.run(asked(server, request, seconds / 2)))
                shown = ", ".join(f"{part} {median(found):.0f} µs" for part, found in used.items())
                ratios = sorted(bare / here for bare, here in zip(used["bare"], used["predict"], strict=True))
                print(f"{name:<10} {size:2} rows: {shown}; bare ÷ predict {median(ratios):.3f}", flush=True)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.formats", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each in a round (default 4)")
    parser.add_argument("--only", choices=("sklearn", "onnx"))
    arguments = parser.parse_args()
    built = product.choose()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {built}", flush=True)
    parts = {"sklearn": sklearn, "onnx": onnx_runs}
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            for name, part in parts.items():
                if arguments.only in (None, name):
                    os.sched_setaffinity(0, {1})
                    part(Path(folder), rounds=arguments.rounds, seconds=arguments.seconds)
    except (processes.DidNotStartError, venvs.NotInstalledError) as error:
        print(f"bench.formats: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
