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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
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
_ANSWER = Response(200, ((b"content-type", b"application/json"),), b'{"v":1,"nextReportMs":1000}')


def reviewed(review: Obj) -> Obj:
    """Answer a TokenReview: a token of `token` is its pod's."""
    claims = json.loads(base64.urlsafe_b64decode(review["spec"]["token"].split(".")[1] + "=="))
    keys = {"pod-name": [claims["pod"]], "pod-uid": [claims["uid"]]}
    extra = {f"authentication.kubernetes.io/{key}": value for key, value in keys.items()}
    user = {"username": f"system:serviceaccount:{claims['namespace']}:a", "extra": extra}
    return {"status": {"authenticated": True, "audiences": ["penstock-operator"], "user": user}}


def token(namespace: str, pod: str, uid: str) -> str:
    """Of the form and about the size of the apiserver's."""
    claims = {"namespace": namespace, "pod": pod, "uid": uid, "exp": time.time() + 86_400}
    body = base64.urlsafe_b64encode(json.dumps(claims | {"filler": "x" * 450}).encode()).decode().rstrip("=")
    return f"{'h' * 90}.{body}.{'s' * 340}"


class _Reviews:
    """Of a cluster only what the authenticator asks."""

    async def create(self, _kind: Kind, obj: Obj) -> Obj:
        await asyncio.sleep(_REVIEW_SECONDS)
        return reviewed(obj)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A pod whose reports are played.

    Args:
        version: of the settings with which it starts.
        digest: theirs.
        busy: whether it reports a load.
    """

    namespace: str
    pod: str
    uid: str
    version: int
    digest: str
    busy: bool


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
        reported=lambda _namespace, _backend, _notable: None,
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


def _reporter(of: Played, url: str, folder: Path, *, begun: Callable[[], None]) -> Reporter:
    file = folder / f"token-{of.uid}"
    file.write_text(token(of.namespace, of.pod, of.uid))
    version, name = of.version, of.digest

    def take(document: bytes) -> None:
        nonlocal version, name
        version, name = json.loads(document)["version"], digest(document)

    def make(seq: int) -> bytes:
        count = seq * of.busy
        totals = Totals(
            arrived=count * 100, answered=count * 98, refused={"queue_full": count}, batches=count * 9
        )
        fit = {"/v1/models/m:predict": Fit(a_ms=12.5, b_ms=0.75, n=200)}
        report = SidecarReport(
            pod=of.pod,
            uid=of.uid,
            seq=seq,
            state="ready",
            settings_version=version,
            settings_digest=name,
            items=Items(queued=count % 7, ongoing=8 * of.busy),
            totals=totals,
            fit=fit,
        )
        return encode(report)

    first = [begun]

    def answered(_turn: object) -> None:
        if first:
            first.pop()()

    return Reporter(
        url=url,
        kind="sidecar",
        token_file=file,
        authorities=folder / "ca.crt",
        make=make,
        on_settings=take,
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
        played = [
            Played(
                namespace="n", pod=f"m-{number}", uid=f"uid-m-{number}", version=1, busy=True,
                digest=_settings(f"m-{number // PODS_OF_A_BACKEND}").digest,
            )
            for number in range(pods)
        ]  # fmt: skip
        url = f"{'http' if plain else 'https'}://127.0.0.1:{port}"
        there, begin = stack.enter_context(players(played, url, folder))
        there()
        began, cpu = time.monotonic(), cpu_seconds(pid)
        await asyncio.to_thread(begin)
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
def players(
    pods: Sequence[Played], url: str, folder: Path
) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Processes that play these pods.

    Yields two functions, for a thread: the first waits until all are there, which takes 5 ms a pod; the
    second has them begin, and waits until each pod has had an answer.

    Args:
        url: where the operator takes reports.
        folder: for tokens; `ca.crt` in it verifies the operator.
    """
    (folder / "pods.json").write_bytes(msgspec.json.encode(pods))
    with contextlib.ExitStack() as stack:
        every = []
        for first in range(0, len(pods), PODS_OF_A_PLAYER):
            command = [sys.executable, "-m", "bench.control_reports", "--play", str(folder), f"--url={url}"]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, f"--first={first}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            stack.callback(process.kill)
            every.append(process)

        def turn() -> None:
            for process in every:
                assert process.stdout is not None
                assert process.stdout.readline(), "a player has ended"

        def begin() -> None:
            for process in every:
                assert process.stdin is not None
                process.stdin.write(b"begin\n")
                process.stdin.flush()
            turn()

        yield turn, begin


async def _play(first: int, url: str, folder: Path) -> None:
    raise_file_limit()
    os.nice(10)  # the pods of a cluster run elsewhere: they do not take the operator's processor
    turn, reported = asyncio.Semaphore(_BEGINNING), asyncio.Semaphore(0)

    def begun() -> None:
        turn.release()
        reported.release()

    pods = msgspec.json.decode((folder / "pods.json").read_bytes(), type=list[Played])
    made = [_reporter(of, url, folder, begun=begun) for of in pods[first : first + PODS_OF_A_PLAYER]]
    print("ready", flush=True)
    sys.stdin.readline()
    tasks = []
    for reporter in made:
        await turn.acquire()
        tasks.append(asyncio.create_task(reporter.run()))
    for _ in made:
        await reported.acquire()
    print("all", flush=True)
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
    for hidden, kind in (("--serve", Path), ("--play", Path), ("--first", int), ("--url", str)):
        flags.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    asked = flags.parse_args()
    set_log_level("error")
    if asked.serve is not None:
        uvloop.run(_serve(asked.pods, asked.serve, plain=asked.plain, bare=asked.bare))
        return 0
    if asked.play is not None:
        uvloop.run(_play(asked.first, asked.url, asked.play))
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
