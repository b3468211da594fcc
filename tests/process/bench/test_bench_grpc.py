"""The bench of gRPC: what its load sends and counts, and its table."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from bench import grpc, processes
from bench.figures import Figures
from bench.grpc_load import Tally
from penstock_wire.http2 import protobuf


def test_calls_and_requests_get_their_own_numbers_and_share_batches() -> None:
    core = min(os.sched_getaffinity(0))
    with (
        processes.model(5, 0, core=core) as model,
        processes.sidecar(model, core=core, batching=grpc.BATCHING, protocol="v2") as sidecar,
        grpc.echo(core=core) as echo,
    ):
        got = grpc.load(sidecar, core, 0.2, grpc.BOTH, model)
        assert got.cpu > 0
        assert got.rate > 0
        assert got.batch > 1
        assert grpc.load(echo, core, 0.2, grpc.CALLS).rate > 0


def test_an_answer_with_anothers_number_ends_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            link, _ = listening.accept()
            with link:
                link.recv(65536)
                link.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n" + bytes(8))

        thread = threading.Thread(target=answer)
        thread.start()
        server = processes.Server(port=listening.getsockname()[1], pid=os.getpid())
        with pytest.raises(processes.DidNotStartError, match="expected 1000001 in an answer"):
            grpc.load(server, min(os.sched_getaffinity(0)), 0.2, ("--rest", "1"))
        thread.join()


async def test_a_number_may_come_back_in_either_form() -> None:
    tally = Tally(0)
    tally.came(1_000_001, b"x" + (1_000_001).to_bytes(8, "little"))
    tally.came(1_000_002, b"x" + protobuf.varint(1_000_002))
    assert (tally.good, tally.faults) == (2, [])
    tally.came(1_000_003, b"")
    assert len(tally.faults) == 1
    assert tally.number() == 0


def test_the_table_says_what_was_not_measured() -> None:
    figures = Figures()
    for name in ("sidecar, calls", "sidecar, REST", "sidecar, both", "router, calls", "router, REST"):
        for word in ("cpu", "rate", "batch"):
            figures.add(f"{name}/{word}", 20 if "calls" in name else 10, word)
    figures.add("grpc.aio, echo/cpu", 200, "cpu")
    figures.add("spread/least", 24, "%")
    figures.add("spread/most", 26, "%")
    text = grpc.table(figures)
    assert "| CPU a call of a grpc.aio echo ÷ the sidecar's | 10.00 (10.00 to 10.00) | at least 8 |" in text
    assert f"| calls a second ÷ {grpc.MLSERVER} | not measured | at least 10 |" in text
    assert "24.0 to 26.0" in text
