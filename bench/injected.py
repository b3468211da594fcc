"""What injection brings servers of others, and what it costs the API server.

`python -m bench.injected` serves a forest of 100 trees by MLflow's own server and by a FastAPI application,
alone and behind our sidecar with the arguments that injection gives it, in turn; 64 connections of wrk send a
row each. It takes a minute, and some more the first time, which installs the servers.

`python -m bench.injected --cluster penstock` asks the devcluster of that name, which must have the chart, to
create pods with the label and without, in turn: one by one over one connection, then 300 at once. They are
dry runs: admission as ever, but nothing is stored.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bench import processes
from bench.loads import VoidError
from bench.processes import ROOT, DidNotStartError, Server
from bench.run import ensure_wrk
from bench.venvs import NotInstalledError, ensure
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError

APPLICATIONS = {"mlflow": "mlflow.pyfunc.scoring_server.app:app", "fastapi": "bench.peers.serve_fastapi:app"}
PATH = "/invocations"
BODY = json.dumps({"instances": [[0, 0, 5, 13, 9, 1, 0, 0] * 8]})
MODEL = """
import sys, mlflow
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
forest = RandomForestClassifier(100, random_state=0).fit(*load_digits(return_X_y=True))
mlflow.sklearn.save_model(forest, sys.argv[1], serialization_format="cloudpickle", pip_requirements=[])
"""
LUA = """
wrk.method, wrk.body, wrk.headers["Content-Type"] = "POST", %s, "application/json"
function done(summary)
  local e = summary.errors
  io.write(string.format('\\nBENCH {"requests":%%d,"seconds":%%.6f,"errors":%%d}\\n', summary.requests,
    summary.duration / 1e6, e.connect + e.read + e.write + e.status + e.timeout))
end
"""
CONNECTIONS, AT_ONCE, CLIENTS = 64, 300, 20


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.injected", description=__doc__)
    parser.add_argument(
        "--cluster", default="", help="measure creations on this devcluster (default: servers)"
    )
    parser.add_argument("--seconds", type=int, default=5, help="of each run of a server (default 5)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each server (default 2)")
    parser.add_argument(
        "--pods", type=int, default=200, help="creations one by one, of each sort (default 200)"
    )
    arguments = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    try:
        if arguments.cluster:
            creations(Cluster(arguments.cluster), arguments.pods, arguments.rounds)
        else:
            ensure_wrk()
            for name in APPLICATIONS:
                servers(name, arguments.seconds, arguments.rounds)
    except (DevclusterError, DidNotStartError, NotInstalledError, VoidError) as error:
        print(f"bench.injected: {error}", file=sys.stderr)
        return 1
    return 0


# -- servers -------------------------------------------------------------------------------------------


def servers(name: str, seconds: int, rounds: int) -> None:
    """Print the rates of a server alone and behind the sidecar."""
    rates: dict[str, list[float]] = {"alone": [], "injected": []}
    with serving(name) as alone, sidecar(alone) as injected:
        for turn in range(rounds):
            for how, server in (("alone", alone), ("injected", injected)):
                rates[how].append(rate(server, seconds))
                print(f"{name:<8} {how:<9} round {turn + 1}: {rates[how][-1]:8.1f} answers/s", flush=True)
    ratio = median(rates["injected"]) / median(rates["alone"])
    print(f"{name:<8} {ratio:.1f} times the answers of the server alone", flush=True)


@contextlib.contextmanager
def serving(name: str) -> Iterator[Server]:
    """The server as its project has it, on core 0."""
    python, port = ensure("injected"), processes.free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        model = Path(folder) / "model"
        environment = {"__pyfunc_model_path__": str(model), "PYTHONPATH": str(ROOT)}
        if name == "mlflow":
            subprocess.run([python, "-c", MODEL, model], check=True, capture_output=True)
        command = [str(python), "-m", "uvicorn", APPLICATIONS[name], f"--port={port}", "--log-level=warning"]
        with processes.running(command, core=0, env=environment) as (process, log):
            server = Server(port=port, pid=process.pid, path=PATH)
            await_prediction(server, process, log)
            yield server


@contextlib.contextmanager
def sidecar(behind: Server) -> Iterator[Server]:
    """Our sidecar before it, as injection starts it, on core 1."""
    port, admin = processes.free_port(), processes.free_port()
    command = [
        *(sys.executable, "-m", "penstock_sidecar", f"--listen=127.0.0.1:{port}"),
        *(f"--admin=127.0.0.1:{admin}", f"--model=http://127.0.0.1:{behind.port}"),
        *("--protocol=instances", "--ready-path=/ping", "--propagation-delay=0s"),
    ]
    with processes.running(command, core=1, env=processes.without_ours()) as (process, log):
        server = dataclasses.replace(behind, port=port, pid=process.pid)
        await_prediction(server, process, log)
        yield server


def await_prediction(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers (raises DidNotStartError)."""
    deadline, last = time.monotonic() + 90, "no connection"
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        try:
            connection.request("POST", PATH, BODY, {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status == 200 and len(json.load(answer)["predictions"]) == 1:
                return
            last = str(answer.status)
        except (OSError, http.client.HTTPException, ValueError) as error:
            last = repr(error)
        finally:
            connection.close()
        time.sleep(0.2)
    raise DidNotStartError(f"no right answer: {last}; it printed: {log.read_text(errors='replace')[-500:]}")


def rate(server: Server, seconds: int) -> float:
    """Answers a second of 64 connections, on core 1 (raises VoidError where one was an error)."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(LUA % json.dumps(json.dumps(json.loads(BODY))))
        script.flush()
        wrk = ("taskset", "-c", "1", "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "30s")
        done = subprocess.run(
            [*wrk, "-s", script.name, server.url], capture_output=True, text=True, check=False
        )
    line = next((line for line in done.stdout.splitlines() if line.startswith("BENCH ")), None)
    if line is None:
        raise VoidError(f"wrk ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    figures: dict[str, float] = json.loads(line.removeprefix("BENCH "))
    if figures["errors"] or not figures["requests"]:
        raise VoidError(f"errors in a closed loop: {figures}")
    return figures["requests"] / figures["seconds"]


# -- creations -----------------------------------------------------------------------------------------


def pod(labels: dict[str, str]) -> str:
    """A pod of a Deployment, as its ReplicaSet creates it."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "fast-7d4b9c", "controller": True}
    container: dict[str, Any] = {
        "name": "app",
        "image": "app",
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}},
        "env": [{"name": f"NAME_{number}", "value": "x"} for number in range(8)],
    }
    metadata = {
        "generateName": "fast-7d4b9c-",
        "labels": {"app": "fast", "pod-template-hash": "7d4b9c", **labels},
        "ownerReferences": [owner | {"uid": "0b1f5b0e-0000-4000-8000-000000000000"}],
    }
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


PODS = {"plain": pod({}), "labelled": pod({"penstock.dev/inject": "default"})}


def creations(cluster: Cluster, pods: int, rounds: int) -> None:
    """Print how long creations of plain and of labelled pods take."""
    record, pki = cluster.require_alive(), cluster.state.pki
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
    connections = [
        http.client.HTTPSConnection("127.0.0.1", record.api_port, timeout=60, context=context)
        for _ in range(CLIENTS)
    ]

    def create(connection: http.client.HTTPSConnection, sort: str) -> float:
        start = time.perf_counter()
        path = "/api/v1/namespaces/default/pods?dryRun=All"
        connection.request("POST", path, PODS[sort], {"content-type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - start
        if answer.status != 201 or (b'"penstock-sidecar"' in body) != (sort == "labelled"):
            raise VoidError(f"{sort}: {answer.status} {body[:300]!r}")
        return took * 1000

    times: dict[str, list[float]] = {sort: [] for sort in PODS}
    for turn in range(pods + 20):
        for sort in sorted(PODS, reverse=turn % 2 == 0):
            took = create(connections[0], sort)
            if turn >= 20:  # the first ones are slower
                times[sort].append(took)
    for sort, all_of_them in times.items():
        ranks = [sorted(all_of_them)[int(q * (len(all_of_them) - 1))] for q in (0, 0.5, 0.99)]
        print(f"{sort:<9} one by one: least {ranks[0]:.2f}, p50 {ranks[1]:.2f}, p99 {ranks[2]:.2f} ms")
    longer: dict[str, list[float]] = {sort: [] for sort in PODS}
    with ThreadPoolExecutor(CLIENTS) as clients:
        for turn in range(2 * rounds + 1):
            for sort in sorted(PODS, reverse=turn % 2 == 0):
                start = time.perf_counter()

                def share(connection: http.client.HTTPSConnection, sort: str = sort) -> None:
                    for _ in range(AT_ONCE // CLIENTS):
                        create(connection, sort)

                list(clients.map(share, connections))
                if turn:
                    longer[sort].append(time.perf_counter() - start)
    for sort, all_of_them in longer.items():
        print(f"{sort:<9} {AT_ONCE} at once, {CLIENTS} connections: {median(all_of_them):.2f} s")


if __name__ == "__main__":
    sys.exit(main())
