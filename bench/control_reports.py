"""Measures the cost of reports for the operator: 2 000 pods, a report a second, TLS, kept connections.

`python -m bench.control_reports` starts the control server in a process of its own (`--serve`), and real
reporters in others (`--play`), each with a token and a connection of its own; a player begins further ones as
fast as its own handshakes allow. TokenReviews are answered in the server's process after `_REVIEW_SECONDS`;
their calls to the apiserver are not in the figure. The interval of reports follows the server's load, as an
operator's does.
`--bare` measures a server that reads the body and gives a constant answer: what our front and TLS cost alone,
in the same minute on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import uvloop

from bench.figures import Figures
from bench.processes import cpu_seconds, rss_mb
from penstock_operator.clock import LoopClock
from penstock_operator.control.auth import ReportAuthenticator
from penstock_operator.control.load_monitor import LoadMonitor
from penstock_operator.control.rate_limit import RateLimit
from penstock_operator.control.recommendation import Recommendations
from penstock_operator.control.server import ControlServer
from penstock_operator.desired.settings import Versioned
from penstock_operator.kinds import Kind
from penstock_operator.kube.cluster import Cluster, Obj
from penstock_operator.metrics import Metrics
from penstock_operator.reports import Reports
from penstock_operator.store import Store
from penstock_wire.control.documents import digest
from penstock_wire.control.report import Fit, Items, SidecarReport, Totals, encode
from penstock_wire.control.reporter import Reporter
from penstock_wire.http import Exchange, Response
from penstock_wire.process import raise_file_limit, set_log_level

PODS_OF_A_BACKEND = 4
PODS_OF_A_PLAYER = 2500
_SETTLE = 8.0
_REVIEW_SECONDS = 0.02
_BEGINNING = 32
"""Pods of a player that have not reported yet."""
_TAKEN = 'penstock_operator_reports_total{kind="sidecar",outcome="taken"}'
_FIRST = 'penstock_operator_reports_total{kind="pod",outcome="first"}'
_ANSWER = Response(200, ((b"content-type", b"application/json"),), b'{"v":1,"nextReportMs":1000}')


class _Reviews:
    """Of a cluster only what the authenticator asks: a token is its pod's."""

    async def create(self, _kind: Kind, obj: Obj) -> Obj:
        await asyncio.sleep(_REVIEW_SECONDS)
        pod = _claims(obj["spec"]["token"])["pod"]
        extra = {
            "authentication.kubernetes.io/pod-name": [pod],
            "authentication.kubernetes.io/pod-uid": [f"uid-{pod}"],
        }
        user = {"username": "system:serviceaccount:n:m-backend", "extra": extra}
        return {"status": {"authenticated": True, "audiences": ["penstock-operator"], "user": user}}


def _claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    return claims


def _token(pod: str) -> str:
    """Of the form and about the size of the apiserver's."""
    claims = {"pod": pod, "exp": time.time() + 86_400, "filler": "x" * 500}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"{'h' * 90}.{body}.{'s' * 340}"


def _pod(number: int) -> Obj:
    own = {
        "app.kubernetes.io/managed-by": "penstock",
        "app.kubernetes.io/name": "penstock-backend",
        "penstock.dev/backend": f"m-{number // PODS_OF_A_BACKEND}",
    }
    name = f"m-{number}"
    metadata = {"namespace": "n", "name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": own}
    status = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


def _backend(number: int) -> Obj:
    name = f"m-{number}"
    return {
        "kind": "ModelBackend",
        "metadata": {"namespace": "n", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
    }


@functools.cache
def _settings(name: str) -> Versioned:
    document = json.dumps({"v": 1, "version": 1, "backend": name, "batching": {"maxBatchSize": 8}}).encode()
    return Versioned(version=1, document=document, digest=digest(document), changed=False)


class _BareServer(ControlServer):
    """Reads a report and answers always the same."""

    counted: Metrics

    def _secure(self, exchange: Exchange) -> None:
        self.counted.report("sidecar", "taken")
        exchange.answer(_ANSWER)


async def _serve(pods: int, folder: Path, *, plain: bool, bare: bool) -> None:
    # NB: imported here, so that the simulated pods need no cryptography.
    from penstock_operator.control import pki
    from penstock_operator.control import server as listening
    from penstock_operator.control.certificates import server_context, show

    listening.MAX_PER_ADDRESS = listening.MAX_REPORTERS  # as below
    raise_file_limit()
    clock, store, metrics = LoopClock(), Store(), Metrics()
    load = LoadMonitor(clock, changed=metrics.report_interval.set)
    for number in range(pods):
        store.put(_pod(number))
    for number in range((pods + PODS_OF_A_BACKEND - 1) // PODS_OF_A_BACKEND):
        store.put(_backend(number))
    reviews: Any = _Reviews()
    cluster: Cluster = reviews
    _BareServer.counted = metrics
    server = (_BareServer if bare else ControlServer)(
        # All pods have one address.
        authenticator=ReportAuthenticator(cluster, store, clock, limit=RateLimit(clock, burst=1e6)),
        reports=Reports(clock),
        store=store,
        settings=lambda _namespace, name: _settings(name.removesuffix("-backend-settings")),
        clock=clock,
        reported=lambda _namespace, _backend, notable: metrics.report("pod", "first") if notable else None,
        leads=lambda: True,
        interval=lambda: load.interval,
        observer=metrics,
        recommendation=Recommendations({}).answer,
        metrics=metrics.text,
        alive=lambda: None,
    )
    context = server_context()
    authority = pki.make_authority(now=time.time(), life=86_400.0)
    show(context, pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=86_400.0))
    server.send_authorities(authority.certificate)
    (folder / "ca.crt").write_bytes(authority.certificate)
    health = await server.start("127.0.0.1", 0)
    reports = health if plain else await server.start_reports("127.0.0.1", 0, context)
    gc.freeze()
    print(f"{reports[1]} {health[1]}", flush=True)
    await load.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The measured figures.

    Args:
        reports: taken in the measured time.
        seconds: the measured time.
        start_seconds: from the first connection until each pod has reported.
        start_cpu: seconds of the server's CPU meanwhile.
        interval: seconds between two reports of a pod, as the server asks at the end.
        cpu_us: microseconds of the server's CPU a report.
        cores: of the server, all in all.
        rss_mb: of the server at the end.
    """

    reports: int
    seconds: float
    start_seconds: float
    start_cpu: float
    interval: float
    cpu_us: float
    cores: float
    rss_mb: float


@contextlib.contextmanager
def _server(pods: int, folder: Path, *flags: str) -> Iterator[tuple[int, int, int]]:
    """A server process: its pid, the port for reports, the port for metrics."""
    command = [sys.executable, "-m", "bench.control_reports", "--serve", str(folder), "--pods", str(pods)]
    with subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            yield process.pid, int(words[0]), int(words[1])
        finally:
            process.kill()


async def _metric(port: int, mark: str) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return float(text.partition(f"\n{mark} ")[2].split("\n", 1)[0] or 0)


def _reporter(number: int, port: int, folder: Path, *, plain: bool, begun: Callable[[], None]) -> Reporter:
    pod = f"m-{number}"
    token = folder / f"token-{number}"
    token.write_text(_token(pod))
    settings = _settings(f"m-{number // PODS_OF_A_BACKEND}")

    def make(seq: int) -> bytes:
        totals = Totals(arrived=seq * 100, answered=seq * 98, refused={"queue_full": seq}, batches=seq * 9)
        fit = {"/v1/models/m:predict": Fit(a_ms=12.5, b_ms=0.75, n=200)}
        report = SidecarReport(
            pod=pod,
            uid=f"uid-{pod}",
            seq=seq,
            state="ready",
            settings_version=1,
            settings_digest=settings.digest,
            items=Items(queued=seq % 7, ongoing=8),
            totals=totals,
            fit=fit,
        )
        return encode(report)

    first = [begun]

    def answered(_turn: object) -> None:
        if first:
            first.pop()()

    return Reporter(
        url=f"{'http' if plain else 'https'}://127.0.0.1:{port}",
        kind="sidecar",
        token_file=token,
        authorities=folder / "ca.crt",
        make=make,
        on_settings=lambda _settings: None,
        on_artifact=answered,
    )


async def measure(
    *, pods: int = 2000, seconds: float = 15.0, plain: bool = False, bare: bool = False
) -> Cost:
    """Measure the cost of a report.

    Args:
        pods: how many report every second.
        seconds: for how long it is measured, after all have connected and settled.
        plain: without TLS.
        bare: of a server that does nothing with it.
    """
    flags = ["--plain"] * plain + ["--bare"] * bare
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pid, port, metrics = stack.enter_context(_server(pods, folder, *flags))
        shares = [
            range(first, min(first + PODS_OF_A_PLAYER, pods)) for first in range(0, pods, PODS_OF_A_PLAYER)
        ]
        players = [stack.enter_context(_players(share, port, folder, plain=plain)) for share in shares]
        began, cpu = time.monotonic(), cpu_seconds(pid)
        for stdin in players:
            print("begin", file=stdin, flush=True)
        while await _metric(metrics, _FIRST) < pods:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.2)
        start, start_cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
        await asyncio.sleep(_SETTLE)
        began, cpu, count = time.monotonic(), cpu_seconds(pid), await _metric(metrics, _TAKEN)
        await asyncio.sleep(seconds)
        took, used = time.monotonic() - began, cpu_seconds(pid) - cpu
        reports = round(await _metric(metrics, _TAKEN) - count)
        return Cost(
            reports=reports,
            seconds=took,
            start_seconds=start,
            start_cpu=start_cpu,
            interval=await _metric(metrics, "penstock_operator_report_interval_seconds"),
            cpu_us=used / reports * 1e6,
            cores=used / took,
            rss_mb=rss_mb(pid),
        )


@contextlib.contextmanager
def _players(numbers: range, port: int, folder: Path, *, plain: bool) -> Iterator[IO[str]]:
    """A process that plays these pods, once it reads a line; yields where it reads."""
    command = [sys.executable, "-m", "bench.control_reports", "--play", str(folder), f"--port={port}"]
    flags = [f"--first={numbers.start}", f"--pods={len(numbers)}", *["--plain"] * plain]
    with subprocess.Popen(
        [*command, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            yield process.stdin
        finally:
            process.kill()


async def _play(numbers: range, port: int, folder: Path, *, plain: bool) -> None:
    raise_file_limit()
    turn = asyncio.Semaphore(_BEGINNING)
    made = [_reporter(number, port, folder, plain=plain, begun=turn.release) for number in numbers]
    print("ready", flush=True)
    sys.stdin.readline()
    tasks = []
    for reporter in made:
        await turn.acquire()
        tasks.append(asyncio.create_task(reporter.run()))
    await asyncio.gather(*tasks)


def figures(pods: int, *, rounds: int = 2, seconds: float = 10.0) -> Figures:
    """The cost of a report over TLS, as figures of `bench.control`.

    Args:
        pods: how many report every second.
        rounds: how often it is measured.
        seconds: for how long each time.
    """
    set_log_level("error")
    figures = Figures()
    for _ in range(rounds):
        cost = uvloop.run(measure(pods=pods, seconds=seconds))
        figures.add("reports/cpu", cost.cpu_us, "µs")
        figures.add("reports/start", cost.start_seconds, "s")
        figures.add("reports/interval", cost.interval, "s")
        figures.add("reports/cores", cost.cores, "cores")
        figures.add("reports/rate", cost.reports / cost.seconds, "reports/s")
        figures.add("reports/rss", cost.rss_mb, "MB")
    return figures


def main() -> int:
    """Print the cost as JSON."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--pods", type=int, default=2000)
    flags.add_argument("--seconds", type=float, default=15.0)
    flags.add_argument("--plain", action="store_true", help="without TLS")
    flags.add_argument("--bare", action="store_true", help="a server that does nothing with it")
    for hidden, kind in (("--serve", Path), ("--play", Path), ("--first", int), ("--port", int)):
        flags.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    asked = flags.parse_args()
    set_log_level("error")
    if asked.serve is not None:
        uvloop.run(_serve(asked.pods, asked.serve, plain=asked.plain, bare=asked.bare))
        return 0
    if asked.play is not None:
        numbers = range(asked.first, asked.first + asked.pods)
        uvloop.run(_play(numbers, asked.port, asked.play, plain=asked.plain))
        return 0
    cost = uvloop.run(measure(pods=asked.pods, seconds=asked.seconds, plain=asked.plain, bare=asked.bare))
    print(
        json.dumps(
            {
                "pods": asked.pods,
                "tls": not asked.plain,
                "bare": asked.bare,
                "reports_per_second": round(cost.reports / cost.seconds),
                "cpu_us_per_report": round(cost.cpu_us),
                "cores": round(cost.cores, 3),
                "interval": round(cost.interval, 2),
                "start_seconds": round(cost.start_seconds, 1),
                "start_cpu": round(cost.start_cpu, 1),
                "rss_mb": round(cost.rss_mb, 1),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
