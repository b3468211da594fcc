"""Starts what is measured, on its core; ends it with all its children; reads what the kernel counted."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import bodies
from bench.timer import precise

ROOT = Path(__file__).parent.parent
_ASKED = 12_345_678
"""The item of a first request: as long as the numbers of `grpc_load`, so that costs do not seem to differ."""


class DidNotStartError(Exception):
    """A server did not come up; says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that answers.

    Args:
        port: where it listens, on 127.0.0.1.
        pid: the process whose CPU and memory count.
        path: what predictions are posted to.
        form: a name in `bodies.FORMS`.
    """

    port: int
    pid: int
    path: str = "/predict"
    form: str = "instances"

    @property
    def url(self) -> str:
        """The URL of predictions."""
        return f"http://127.0.0.1:{self.port}{self.path}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(Server):
    """Our sidecar, whose settings can be changed as it runs.

    Args:
        settings: its file.
        admin: the port that serves the settings in effect.
    """

    settings: Path
    admin: int

    def metric(self, name: str) -> float:
        """A metric without labels, by its name after `penstock_sidecar_`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        line = next(line for line in text.splitlines() if line.startswith(f"penstock_sidecar_{name} "))
        return float(line.split()[1])

    def change(self, batching: Mapping[str, Any], *, seconds: float = 10) -> None:
        """Put other settings in effect and wait until they are.

        Args:
            batching: the fields of `batching`, all that are not as by default.
            seconds: how long it may take.

        Raises:
            DidNotStartError: They were not in effect in time.
        """
        document = json.loads(self.settings.read_text())
        new = self.settings.with_suffix(".new")
        new.write_text(json.dumps({**document, "batching": dict(batching)}))
        new.replace(self.settings)
        os.kill(self.pid, signal.SIGHUP)
        deadline = time.monotonic() + seconds
        effective: dict[str, Any] = {}
        while time.monotonic() < deadline:
            connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
            try:
                connection.request("GET", "/settings")
                effective = json.loads(connection.getresponse().read())["batching"]
            finally:
                connection.close()
            if all(effective.get(name) == value for name, value in batching.items()):
                return
            time.sleep(0.02)
        raise DidNotStartError(f"expected batching {dict(batching)} in effect, found {effective}")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    core: int,
    env: Mapping[str, str] | None = None,
    grace: float = 15,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A program in a session of its own, on one core; yields it and the file with what it prints.

    Args:
        command: the program and its arguments.
        core: the only one that it may use.
        env: what is added to the environment.
        grace: seconds that it gets to end.
    """

    def prepare() -> None:
        os.sched_setaffinity(0, {core})
        precise()

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                list(command),
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                preexec_fn=prepare,
                start_new_session=True,
                env={**os.environ, "TMPDIR": folder, **(env or {})},
            )
        try:
            yield process, log
        finally:
            _end(process, grace)


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a program, then whatever is left of the session that it led."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace)
    deadline = time.monotonic() + 5
    while (left := _session(process.pid)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    if process.poll() is None:
        process.wait(timeout=5)


def _session(leader: int) -> list[int]:
    """The processes of the session that we started under this id, zombies aside."""
    return [pid for pid, (_, session) in _processes().items() if session == leader]


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and session of each process, zombies aside."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
                if fields[0] != "Z":
                    processes[int(entry.name)] = int(fields[1]), int(fields[3])
    return processes


def members(leader: int, processes: Mapping[int, tuple[int, int]]) -> set[int]:
    """A process that we started as a session's leader, with all of its session and all their descendants.

    Args:
        leader: its id.
        processes: parent and session by id.
    """
    pids = {pid for pid, (_, session) in processes.items() if session == leader} | {leader}
    while more := {pid for pid, (parent, _) in processes.items() if parent in pids} - pids:
        pids |= more
    return pids


def asked(server: Server, *, seconds: float = 5) -> str:
    """Ask for one prediction; returns why its answer is not right, "" where it is.

    Args:
        server: who is asked.
        seconds: how long it may be silent.
    """
    form = bodies.FORMS[server.form]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=seconds)
    try:
        connection.request("POST", server.path, form.body(_ASKED), {"content-type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as failed:
        return type(failed).__name__
    finally:
        connection.close()
    return "" if answer.status == 200 and form.holds(body, _ASKED) else f"{answer.status} {body[:200]!r}"


def await_answer(server: Server, process: subprocess.Popen[bytes], log: Path, *, seconds: float) -> None:
    """Wait until the server answers a prediction rightly.

    Raises:
        DidNotStartError: It ended, or did not in time.
    """
    deadline = time.monotonic() + seconds
    last = "no connection"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = f"it ended with code {process.returncode}"
            break
        last = asked(server)
        if not last:
            return
        time.sleep(0.1)
    tail = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
    raise DidNotStartError(f"no right answer within {seconds:g} s: {last}; it printed: {tail[-500:]}")


@contextlib.contextmanager
def model(a_ms: float, b_ms: float, *, core: int) -> Iterator[Server]:
    """The bench's model."""
    port = free_port()
    command = [sys.executable, "-m", "bench.model", str(port), str(a_ms), str(b_ms)]
    with running(command, core=core) as (process, log):
        server = Server(port=port, pid=process.pid)
        await_answer(server, process, log, seconds=20)
        yield server


@contextlib.contextmanager
def relay(behind: Server, *, core: int) -> Iterator[Server]:
    """A relay that reads nothing (`bench.relay`) before a model."""
    port = free_port()
    command = [sys.executable, "-m", "bench.relay", str(port), str(behind.port)]
    with running(command, core=core) as (process, log):
        server = dataclasses.replace(behind, port=port, pid=process.pid)
        await_answer(server, process, log, seconds=20)
        yield server


@contextlib.contextmanager
def sidecar(
    behind: Server,
    *,
    core: int,
    batching: Mapping[str, Any],
    protocol: str = "instances",
    under: Sequence[str] = (),
    seconds: float = 20,
) -> Iterator[Sidecar]:
    """Our sidecar before a model.

    Args:
        behind: the model.
        core: where it runs.
        batching: fields of the settings' `batching`.
        protocol: how it joins requests.
        under: a command that runs it, as valgrind.
        seconds: how long it may take to start.
    """
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        settings = Path(folder) / "settings.json"
        settings.write_text(json.dumps({"v": 1, "batching": dict(batching)}))
        command = [
            *(*under, sys.executable, "-m", "penstock_sidecar", f"--listen=127.0.0.1:{port}"),
            *(f"--admin=127.0.0.1:{admin}", f"--model=http://127.0.0.1:{behind.port}"),
            *(f"--settings={settings}", f"--protocol={protocol}", "--propagation-delay=0s"),
        ]
        with running(command, core=core, env=without_ours()) as (process, log):
            server = Sidecar(port=port, pid=process.pid, form=behind.form, settings=settings, admin=admin)
            if protocol == "none":
                await_line(process, log, "ready ", seconds=seconds)
            else:
                if protocol == "v2":
                    server = dataclasses.replace(server, path="/v2/models/bench/infer", form="v2")
                await_answer(server, process, log, seconds=seconds)
            yield server


def await_line(process: subprocess.Popen[bytes], log: Path, begin: str, *, seconds: float) -> str:
    """Wait until a program printed a line that begins so; returns it (raises DidNotStartError)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith(begin):
                return line
        time.sleep(0.05)
    raise DidNotStartError(f"did not print {begin!r}: {log.read_text(errors='replace')[-500:]}")


def without_ours() -> dict[str, str]:
    """Empty the environment variables that configure the sidecar or the router."""
    return {name: "" for name in os.environ if name.startswith("PENSTOCK_")}


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, its threads together, user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scheduled_seconds(pid: int) -> float:
    """CPU time of the threads that a process has now, user and kernel, to the nanosecond.

    NB: `cpu_seconds` counts in hundredths of a second: a sixth of what one connection costs in a second.
    """
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def cpu_by_process(leader: int) -> dict[int, float]:
    """CPU time so far of a server that we started and of each process that it started, in seconds."""
    seconds = {}
    for pid in members(leader, _processes()):
        with contextlib.suppress(OSError, IndexError):  # one that has just ended
            seconds[pid] = cpu_seconds(pid)
    return seconds


def cpu_since(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """CPU time between two looks, in seconds; of a process that ended meanwhile, nothing is known."""
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


def memory_mb(leader: int) -> tuple[float, float]:
    """Memory of a server with each process that it started, in MB (10^6 bytes).

    Returns:
        Resident, where pages that several share count in each; and with such pages parted among them.
    """
    resident = proportional = 0
    for pid in members(leader, _processes()):
        with contextlib.suppress(OSError):  # one that has just ended
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Rss:"):
                    resident += int(line.split()[1])
                elif line.startswith("Pss:"):
                    proportional += int(line.split()[1])
    return resident * 1024 / 1e6, proportional * 1024 / 1e6


def rss_mb(pid: int) -> float:
    """Resident memory of a process, in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid}: expected a VmRSS in its status, found none")


def batch_sizes(behind: Server) -> dict[int, int]:
    """The number of model calls so far, by batch size."""
    connection = http.client.HTTPConnection("127.0.0.1", behind.port, timeout=30)
    try:
        connection.request("GET", "/-/batches")
        return {int(what): count for what, count in json.loads(connection.getresponse().read()).items()}
    finally:
        connection.close()
