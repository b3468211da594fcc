"""Counts the instructions of router and sidecar for each request, by valgrind.

`bench.router --instructions` counts the router's, `bench.run --instructions` the sidecar's with holding and
without. What is counted is the process's own code, without the kernel's part, and it is the same however busy
the machine is. One process, warm, answers some requests and then three times as many: the difference has
nothing of its start in it. Each connection sends its next request when the last was answered.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from bench import bodies, processes, proxies
from bench.frame import MAX_BATCH, WIDE, Bench
from bench.processes import DidNotStartError, Server

CONNECTIONS = (1, 32)
HELD = (1, 4, 32)
"""Connections at which holding is held against none."""
TURNS = 3
WARM, FEW = 320, 640
"""Requests."""
START_SECONDS = 300
REQUESTS = (
    b"User-Agent: python-requests/2.34.2\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n"
    b"Connection: keep-alive\r\n"
)
"""Fields of Python's `requests`, which writes its head first and then the body."""


def missing() -> str:
    """The packages to install; empty if none is missing."""
    there = shutil.which("valgrind") and shutil.which("callgrind_control")
    return "" if there else "no valgrind on PATH: apt-get install valgrind"


def ask(server: Server, connections: int, count: int, fields: bytes = b"") -> None:
    """Have some requests answered, in a closed loop.

    Args:
        server: which.
        connections: that share them evenly.
        count: requests, a multiple of `connections`.
        fields: further ones of each head, which is then written before the body; empty: as wrk does.

    Raises:
        DidNotStartError: an answer was not right.
    """
    faults: list[str] = []
    each = [
        threading.Thread(target=_ask, args=(server, count // connections, number, faults, fields))
        for number in range(connections)
    ]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    if faults:
        raise DidNotStartError(faults[0])


def _ask(server: Server, count: int, number: int, faults: list[str], fields: bytes) -> None:
    form = bodies.FORMS[server.form]
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = link.makefile("rb")
            for index in range(count):
                item = (number * count + index + 1) * 1000
                body = form.body(item)
                # NB: the head that wrk sends.
                head = (
                    b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n%b"
                    b"Content-Length: %d\r\n\r\n" % (server.path.encode(), fields, len(body))
                )
                for piece in (head, body) if fields else (head + body,):
                    link.sendall(piece)
                status = reader.readline()
                length = 0
                while (line := reader.readline().rstrip()) != b"":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line[15:])
                answer = reader.read(length)
                if b" 200 " not in status or not form.holds(answer, item):
                    faults.append(f"expected 200 with {item}, found {status!r} {answer[:200]!r}")
                    return
    except OSError as why:
        faults.append(f"{type(why).__name__}: {why}")


def _control(word: str, pid: int, folder: Path) -> None:
    command = ["callgrind_control", f"--vgdb-prefix={folder}/vgdb", word, str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "OK." not in done.stdout:
        raise DidNotStartError(f"callgrind_control {word}: {(done.stdout + done.stderr)[-300:]}")


def _since_zero(pid: int, folder: Path) -> int:
    """Instructions since the counters were last zero, which they then are."""
    for old in folder.glob("callgrind.*"):
        old.unlink()
    _control("--dump", pid, folder)
    totals = [
        int(match[1])
        for file in folder.glob("callgrind.*")
        if (match := re.search(r"^(?:summary|totals): (\d+)", file.read_text(errors="replace"), re.MULTILINE))
    ]
    if not totals:
        raise DidNotStartError(f"valgrind wrote no total into {folder.name}")
    return sum(totals)


class Counter:
    """Runs one server under valgrind and counts what its requests cost.

    Args:
        folder: for what valgrind writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.under = (
            *("valgrind", "--tool=callgrind", f"--vgdb-prefix={folder}/vgdb"),
            f"--callgrind-out-file={folder}/callgrind.%p",
        )

    def count(self, pid: int, ask: Callable[[int], None]) -> float:
        """Instructions a request.

        Args:
            pid: the server's.
            ask: has so many requests answered.

        Raises:
            DidNotStartError: an answer was not right.
        """
        ask(WARM)
        _control("--zero", pid, self._folder)
        ask(FEW)
        few = _since_zero(pid, self._folder)
        ask(3 * FEW)
        return (_since_zero(pid, self._folder) - few) / (2 * FEW)


@contextlib.contextmanager
def counter() -> Iterator[Counter]:
    """A counter, for as long as its server runs."""
    with tempfile.TemporaryDirectory(prefix="penstock-callgrind-") as name:
        yield Counter(Path(name))


def count(behind: Server, *, core: int, fields: bytes = b"") -> Mapping[int, float]:
    """Instructions a request of a router before a server, by connections (raises DidNotStartError)."""
    with (
        counter() as counting,
        proxies.router(
            {"router": [behind]}, core=core, under=counting.under, seconds=START_SECONDS
        ) as router,
    ):
        server = router.endpoints["router"]
        return {
            connections: counting.count(server.pid, partial(ask, server, connections, fields=fields))
            for connections in CONNECTIONS
        }


def main_of_sidecar(bench: Bench) -> int:
    """Count with holding and without, in one process by turns, and print; returns the exit code."""
    if why := missing():
        print(f"bench: {why}", file=sys.stderr)
        return 2
    batching = {"maxBatchSize": MAX_BATCH, **WIDE}
    ways = {"with holding": batching, "without": {**batching, "batchWaitTimeoutMs": 0}}
    print("| thousand instructions of the sidecar a request, by turns | " + " | ".join(ways) + " | ratio |")
    print("| -- | -- | -- | -- |")
    with (
        bench.quick_model(core=bench.load_core) as model,
        counter() as counting,
        processes.sidecar(
            model,
            core=bench.server_core,
            batching=batching,
            under=counting.under,
            seconds=START_SECONDS,
        ) as sidecar,
    ):
        for connections in HELD:
            counts: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(TURNS):
                for way, policy in ways.items():
                    sidecar.change(policy, seconds=60)
                    counts[way].append(counting.count(sidecar.pid, partial(ask, sidecar, connections)))
            middle = [statistics.median(each) for each in counts.values()]
            spread = [
                f"{value / 1000:.2f} ({min(each) / 1000:.2f} to {max(each) / 1000:.2f})"
                for value, each in zip(middle, counts.values(), strict=True)
            ]
            ratio = middle[0] / middle[1]
            print(f"| {connections} connections | {' | '.join(spread)} | {ratio:.3f} |", flush=True)
    return 0


def main(bench: Bench) -> int:
    """Count and print; returns the exit code."""
    if why := missing():
        print(f"bench: {why}", file=sys.stderr)
        return 2
    batching = {"maxBatchSize": MAX_BATCH, **WIDE}
    with (
        processes.model(0, 0, core=bench.load_core) as origin,
        processes.sidecar(origin, core=bench.load_core, batching=batching) as sidecar,
    ):
        widths = " | ".join(f"{connections} connections" for connections in CONNECTIONS)
        print(f"| thousand instructions a request | {widths} |")
        print("| -- |" + " -- |" * len(CONNECTIONS))
        for name, behind, fields in (
            ("before an origin", origin, b""),
            ("before a sidecar", sidecar, b""),
            ("before an origin, asked by `requests`", origin, REQUESTS),
        ):
            counts = count(behind, core=bench.server_core, fields=fields)
            print(
                f"| router {name} | " + " | ".join(f"{value / 1000:.1f}" for value in counts.values()) + " |",
                flush=True,
            )
    return 0
