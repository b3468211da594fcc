"""The router's bench: what it starts, what it counts, and its table."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest

from bench import instructions, processes, proxies
from bench.figures import Figures
from bench.router_table import table
from bench.venvs import NotInstalledError


def test_a_router_serves_each_of_its_endpoints_and_requests_are_counted_by_right_answers() -> None:
    core = min(os.sched_getaffinity(0))
    with (
        processes.model(0, 0, core=core) as origin,
        proxies.router(
            {"one": [origin], "two": [origin], "three": [origin]}, core=core, seconds=60
        ) as router,
    ):
        assert len({server.port for server in router.endpoints.values()}) == 3
        for server in router.endpoints.values():
            instructions.ask(server, 2, 4)
            instructions.ask(server, 2, 4, instructions.REQUESTS)
        answered = processes.batch_sizes(origin)
        # 8 through each, one when the model was up, one through the first and one through the last endpoint.
        assert answered == {1: 27}


def test_an_answer_with_anothers_item_is_a_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            link, _ = listening.accept()
            with link:
                link.recv(65536)
                link.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n[777]")

        thread = threading.Thread(target=answer)
        thread.start()
        server = processes.Server(port=listening.getsockname()[1], pid=0)
        with pytest.raises(processes.DidNotStartError, match=r"expected 200 with 1000, .*\[777\]"):
            instructions.ask(server, 1, 1)
        thread.join()


def test_what_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(proxies, "_SBIN", "/nowhere")
    with pytest.raises(NotInstalledError, match="apt-get install nginx-light"):
        proxies.version("nginx")
    assert "apt-get install valgrind" in instructions.missing()


def _document() -> dict[str, Any]:
    figures = Figures()
    for connections in (32, 128):
        for name, rate, cpu in (("nginx", 30_000, 26), ("router", 60_000, 13), ("sidecar", 50_000, 14)):
            figures.add(f"throughput/{name}/{connections}/rate", rate, "requests/s")
            figures.add(f"throughput/{name}/{connections}/cpu", cpu, "µs/request")
        figures.add(f"throughput/router_sidecar/{connections}/rate", 25_000, "requests/s")
        figures.add(f"throughput/router_sidecar/{connections}/cpu", 12, "µs/request")
        figures.add(f"throughput/router_sidecar/{connections}/cpu_behind", 17.5, "µs/request")
    figures.add("added/router/1/p50", 0.04, "ms")
    for count, megabytes in ((1, 40), (1000, 55)):
        figures.add(f"memory/router/{count}/loaded", megabytes, "MB")
    return {
        "figures": figures.document(),
        "versions": {"nginx": "1.22.1"},
        "failures": {"haproxy": "not installed: no haproxy on PATH: apt-get install haproxy"},
    }


def test_the_table_has_each_one_beside_nginx_and_says_who_is_missing() -> None:
    text = table(_document())
    for line in (
        "| **Penstock's router** | 60 000 / 60 000 | 13.0 / 13.0 | 0.50 / 0.50 | 0.04 / - | - / - |",
        "| nginx 1.22.1 | 30 000 / 30 000 | 26.0 / 26.0 | 1.00 / 1.00 | - / - | - / - |",
        "| HAProxy | not installed: no haproxy on PATH: apt-get install haproxy | | | | |",
        "| router and sidecar | 25 000 / 25 000 | 29.5 / 29.5 | 1.13 / 1.13 | - / - | - / - |",
        "| CPU a request of router + sidecar, at 32 connections | 12.0 + 17.5 µs |",
        "| memory after load with 1, 1000 endpoints | 40 / 55 MB |",
    ):
        assert line in text.splitlines()
    # The slower of the two decides: 14 µs alone, 17.5 µs behind the router.
    assert "0.80 / 0.80 |" in text
