"""Which processes count as a server's, what they used, and a sidecar whose settings change as it runs."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading

import pytest

from bench import processes


def test_a_servers_processes_are_its_session_and_all_descendants_and_nobody_else() -> None:
    parent_and_session = {
        1: (0, 1),
        10: (1, 10),  # the leader
        11: (10, 10),
        12: (1, 10),  # its parent ended; of the session
        13: (11, 13),  # with a session of its own, as a cluster's daemons have
        14: (13, 13),
        20: (1, 20),
        21: (20, 20),
    }
    assert processes.members(10, parent_and_session) == {10, 11, 12, 13, 14}


def test_cpu_of_a_process_that_came_meanwhile_counts_whole_and_of_one_that_ended_not_at_all() -> None:
    assert processes.cpu_since({1: 2.0, 2: 5.0}, {1: 2.5, 3: 0.25}) == 0.75


def test_cpu_and_memory_of_a_real_family_are_of_parent_and_child() -> None:
    """Both are read from the kernel, and a shared page parted is never more than the page itself."""
    child = "import sys; print('up', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"up\n"
        used = processes.cpu_by_process(started.pid)
        resident, proportional = processes.memory_mb(started.pid)
    assert started.pid in used
    assert len(used) == 2
    assert 0 < proportional <= resident


def test_a_sidecars_settings_change_as_it_runs() -> None:
    """When `change` returns, the same process has the new settings; a refusal is raised."""
    core = min(os.sched_getaffinity(0))
    batching = {"maxBatchSize": 8, "batchWaitTimeoutMs": 0}
    with (
        processes.model(0, 0, core=core) as model,
        processes.sidecar(model, core=core, batching=batching) as sidecar,
    ):
        sidecar.change({**batching, "batchWaitTimeoutMs": 5})
        assert processes.asked(sidecar, seconds=60) == ""
        with pytest.raises(processes.DidNotStartError, match="'maxBatchSize': -1"):
            sidecar.change({"maxBatchSize": -1}, seconds=0.2)


def test_who_does_not_answer_rightly_is_told_with_the_reason() -> None:
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        nobody = processes.Server(port=bound.getsockname()[1], pid=0)
        assert processes.asked(nobody, seconds=60) == "ConnectionRefusedError"
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        message = processes.asked(processes.Server(port=other.server_port, pid=0), seconds=60)
        thread.join()
    assert message.startswith("501 ")
