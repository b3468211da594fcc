"""Which process a cluster is: identity by id and start time, and an end that takes nobody else along."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.processes import (
    INSTANCE_VARIABLE,
    Record,
    children,
    clients,
    kill_and_wait,
    kill_clients,
    start_time,
)


@pytest.fixture
def sleeper() -> "Iterator[subprocess.Popen[bytes]]":
    """A process that would run for long."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def _record(pid: int, started: int) -> Record:
    return Record(pid=pid, started=started, instance="i", api_port=1)


def test_start_time_tells_processes_apart(sleeper: "subprocess.Popen[bytes]") -> None:
    """It is stable while the process runs and None when it has ended, also as a zombie."""
    begun = start_time(sleeper.pid)
    assert begun is not None
    assert start_time(sleeper.pid) == begun
    own = start_time(os.getpid())
    assert own is not None
    assert own <= begun
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # ended, not reaped
    assert start_time(sleeper.pid) is None


def test_kill_ends_the_recorded_process(sleeper: "subprocess.Popen[bytes]") -> None:
    """After it returns, the process is gone."""
    started = start_time(sleeper.pid)
    assert started is not None
    record = _record(sleeper.pid, started)
    assert record.alive
    kill_and_wait(record, timeout=10)
    assert not record.alive


def test_kill_spares_a_process_that_got_the_same_id(sleeper: "subprocess.Popen[bytes]") -> None:
    """A record with another start time means a process that is gone; who has its id now is left alone."""
    started = start_time(sleeper.pid)
    assert started is not None
    record = _record(sleeper.pid, started - 1)
    assert not record.alive
    kill_and_wait(record, timeout=10)
    assert sleeper.poll() is None


def test_children_lists_direct_children(sleeper: "subprocess.Popen[bytes]") -> None:
    """Only the children of the process itself, and none of a process that is gone."""
    assert sleeper.pid in children(os.getpid())
    assert children(sleeper.pid) == []
    assert children(2**22 + 1) == []


def test_clients_are_found_by_the_instance_in_their_environment() -> None:
    """One client is ended; a process with another cluster's instance is not."""
    environment = {"PATH": os.environ["PATH"]}
    with (
        subprocess.Popen(["sleep", "600"], env={**environment, INSTANCE_VARIABLE: "unit-1"}) as mine,
        subprocess.Popen(["sleep", "600"], env={**environment, INSTANCE_VARIABLE: "unit-12"}) as other,
    ):
        try:
            # Popen returns once the program runs, so its environment is there.
            assert list(clients("unit-1")) == [mine.pid]
            kill_clients("unit-1")
            assert mine.wait(10) == -9
            assert other.poll() is None
        finally:
            mine.kill()
            other.kill()


def test_record_survives_a_round_trip_and_ignores_rubbish(tmp_path: Path) -> None:
    """A half-written or foreign file is no record."""
    path = tmp_path / "cluster.json"
    assert Record.read(path) is None
    record = _record(12, 34)
    record.write(path)
    assert Record.read(path) == record
    for rubbish in ("", "{", "[]", '{"pid": 1}'):
        path.write_text(rubbish)
        assert Record.read(path) is None
