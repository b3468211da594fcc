"""A cluster's process: identity by id and start time, and an end that affects no other process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.paths import REPOSITORY
from devcluster.processes import (
    Record,
    begin_build,
    children,
    clients,
    kill_and_wait,
    kill_clients,
    recorded,
    start_time,
)
from tests.support.cluster.cluster_waits import wait_for


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


def test_builds_give_way() -> None:
    """By their own niceness, and by their session's where the kernel schedules sessions as groups."""
    show = "nice; test ! -e /proc/self/autogroup || cat /proc/self/autogroup"
    done = subprocess.run(
        ["sh", "-c", show], preexec_fn=begin_build, capture_output=True, text=True, check=True
    )
    niceness, *group = done.stdout.splitlines()
    assert int(niceness) == min(19, os.nice(0) + 10)
    assert [line.rpartition(" ")[2] for line in group] in ([], ["10"])


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


def test_recorded_clients_are_ended_with_their_children_and_nobody_else(tmp_path: Path) -> None:
    """A client and what it started end; one recorded elsewhere, and one whose id is another's now, do not."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    parent = [*recorded(mine), "sh", "-c", "sleep 600 & echo ready; wait"]
    with (
        subprocess.Popen(parent, stdout=subprocess.PIPE) as client,
        subprocess.Popen(
            [*recorded(theirs), "sh", "-c", "echo ready; sleep 600"], stdout=subprocess.PIPE
        ) as other,
    ):
        try:
            assert client.stdout is not None
            assert other.stdout is not None
            assert client.stdout.readline() == other.stdout.readline() == b"ready\n"
            (child,) = children(client.pid)
            mine.joinpath(str(other.pid)).write_text("1\n")
            assert list(clients(mine)) == [client.pid]
            kill_clients(mine)
            assert client.wait(10) == -9
            assert start_time(child) is None
            assert other.poll() is None
        finally:
            client.kill()
            other.kill()
            for pid in children(other.pid):
                os.kill(pid, 9)


def test_record_survives_a_round_trip_and_ignores_rubbish(tmp_path: Path) -> None:
    """A half-written or foreign file is not a record."""
    path = tmp_path / "cluster.json"
    assert Record.read(path) is None
    record = _record(12, 34)
    record.write(path)
    assert Record.read(path) == record
    for rubbish in ("", "{", "[]", '{"pid": 1}'):
        path.write_text(rubbish)
        assert Record.read(path) is None


def test_a_killed_start_leaves_no_openssl_that_writes_on(tmp_path: Path) -> None:
    """Its files would come back, or be in the way, while `down` removes their folder."""
    slow, began = tmp_path / "openssl", tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\necho $$ >{began}.new; mv {began}.new {began}\nexec sleep 600\n")
    slow.chmod(0o755)
    script = f"import pathlib, devcluster.pki as pki; pki.authority(pathlib.Path({str(tmp_path)!r}), 'ca')"
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, env=os.environ | path) as starting:
        wait_for("the program", began.exists)
        inner = int(began.read_text())
        started = start_time(inner)
        assert started is not None
        starting.kill()
        starting.wait()
    try:
        wait_for("its end", lambda: start_time(inner) != started, seconds=10)
    finally:
        if start_time(inner) == started:
            os.kill(inner, signal.SIGKILL)
