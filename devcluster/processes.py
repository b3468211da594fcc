"""Identifies the process of a cluster, and ends it.

A cluster is one `unshare` process and what lives in its namespaces. It is named by process id *and* start
time, so an id that the kernel has given to another process is never mistaken for it. Clients that
join the cluster's network from outside (`kubectl`, `run`) record their id and start time before they begin.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from devcluster.errors import DevclusterError

INSTANCE_VARIABLE = "PENSTOCK_DEVCLUSTER_INSTANCE"
_PR_SET_PDEATHSIG = 1
_WAY = 10
"""Niceness of builds: a tenth of the weight of others."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def start_time(pid: int) -> int | None:
    """Return when the process began, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The process that is the cluster.

    Attributes:
        pid: Of `unshare`, in the machine's own process namespace.
        started: Its start time, in clock ticks since boot.
        instance: A random id of this life of the cluster.
        api_port: Where the forwarder of the API listens on this machine's loopback.
    """

    pid: int
    started: int
    instance: str
    api_port: int

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """Return the record in `path`; None if it cannot be read."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Write the record, whole or not at all."""
        write_atomically(path, json.dumps(dataclasses.asdict(self)))

    @property
    def alive(self) -> bool:
        """Whether the recorded process still runs (and its id is not another process's now)."""
        return start_time(self.pid) == self.started


def write_atomically(path: Path, text: str) -> None:
    """Replace the file's contents so that no reader sees half of them."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def die_with_parent() -> None:
    """Ask the kernel to kill the calling process when the thread that forked it ends.

    For `preexec_fn` of programs that must not outlive a killed run: builds, not the cluster.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def begin_build() -> None:
    """As `die_with_parent`; the calling process and what it starts give way to all else, such as tests."""
    die_with_parent()
    os.setsid()
    os.nice(_WAY)
    # NB: where sessions are scheduled as groups (sched(7), autogroup), niceness counts only within one.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_WAY))


def run_tethered(
    command: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, output: int
) -> "subprocess.Popen[str]":
    """Start a program whose whole tree of processes and mounts dies with this process.

    It runs as process 1 of namespaces of its own (process ids, mounts), and gives way to all else.

    Args:
        command: Program and arguments.
        env: The whole environment.
        cwd: The working directory.
        output: Where stdout and stderr go: a file descriptor, or `subprocess.PIPE`.

    Returns:
        The `unshare` process around it; its exit status is the program's.
    """
    return subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--", *map(str, command)],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=begin_build,
    )


def children(pid: int) -> list[int]:
    """Return the ids of the direct children of `pid`, none when it is gone."""
    pids: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids.extend(int(child) for child in listing.read_text().split())
        except OSError:
            continue
    return pids


def kill_and_wait(record: Record, *, timeout: float) -> None:
    """Kill the recorded process and wait until it and its namespace's process 1 are gone.

    The kernel kills the child of `unshare --kill-child` with it, and with that child, which is process 1 of
    its namespace, everything in the namespace.

    Args:
        record: The cluster's process; nothing happens when it is not alive.
        timeout: How long to wait for the end, in seconds.

    Raises:
        DevclusterError: It has not ended in time.
    """
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return
    try:
        if not record.alive:  # read after the handle was opened: the handle means the process we looked at
            return
        inner = [(pid, started) for pid in children(record.pid) if (started := start_time(pid)) is not None]
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        deadline = time.monotonic() + timeout
        if not select.select([handle], [], [], timeout)[0]:
            raise DevclusterError(f"process {record.pid} did not end within {timeout:.0f} s of SIGKILL")
        for pid, started in inner:
            while start_time(pid) == started:
                if time.monotonic() > deadline:
                    raise DevclusterError(f"process {pid} did not end within {timeout:.0f} s of SIGKILL")
                time.sleep(0.01)
    finally:
        os.close(handle)


def recorded(folder: Path) -> list[str]:
    """Return what to put before a command so that its process id and start time stand in `folder`.

    The command replaces the shell that writes them: same process. The shell's own name has no space, so its
    start time is the 22nd word.
    """
    return ["sh", "-c", 'cut -d" " -f22 "/proc/$$/stat" > "$0/$$" && exec "$@"', str(folder)]


def clients(folder: Path) -> Iterator[int]:
    """Yield the ids of the recorded processes that still run.

    Args:
        folder: What `recorded` was given.
    """
    for entry in sorted(folder.glob("[0-9]*")):
        text = entry.read_text().strip()
        if text.isdecimal() and start_time(int(entry.name)) == int(text):
            yield int(entry.name)


def kill_clients(folder: Path) -> None:
    """End the recorded clients that still run, with the processes that they started themselves.

    Args:
        folder: What `recorded` was given; the cluster itself is gone already.
    """
    for pid in clients(folder):
        _kill_tree(pid, start_time(pid))


def _kill_tree(pid: int, started: int | None) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if started is None or start_time(pid) != started:
            return
        below = [(child, start_time(child)) for child in children(pid)]
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], 5.0)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
    for child, since in below:
        _kill_tree(child, since)
