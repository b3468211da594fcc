"""Pods have an address of IPv6, of IPv4, or of both: all of it is listened on, written and compared."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock_wire import addresses
from penstock_wire.http import Exchange, Response
from penstock_wire.http.server.server import H1Front
from penstock_wire.process import address
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.ports import needs_ipv6
from tests.support.processes.sidecar_process import Program

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
LOOPBACK = "127.0.0.1", "::1"


@pytest.fixture(params=[None, 1], ids=["plain", "counted by address"])
async def listening(request: pytest.FixtureRequest) -> AsyncIterator[tuple[H1Front, tuple[str, int]]]:
    """A front on all addresses that answers with the peer's address; with and without its own accepting."""

    def service(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), exchange.request.peer.encode()))

    front = H1Front(max_per_address=request.param)
    listener = await front.serve(addresses.ANY, 0, service)
    yield front, listener.address
    await front.close(5)


async def peer_of(host: str, port: int) -> tuple[asyncio.StreamWriter, str]:
    """What a server calls a client that comes to an address, "" where it closes the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(GET)
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
    except (asyncio.IncompleteReadError, ConnectionError):
        return writer, ""
    assert head.startswith(b"HTTP/1.1 200")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return writer, (await reader.readexactly(length)).decode()


async def test_all_addresses_are_of_both_families(listening: tuple[H1Front, tuple[str, int]]) -> None:
    """A peer has its own address, by which it also counts: IPv4 comes without `::ffff:`."""
    needs_ipv6()
    front, (host, port) = listening
    assert host == "::"
    writers = []
    for peer in LOOPBACK:
        writer, peer_address = await peer_of(peer, port)
        assert peer_address == peer
        writers.append(writer)
    if front.max_per_address is not None:
        one_too_many, peer_address = await peer_of("127.0.0.1", port)
        assert peer_address == ""
        writers.append(one_too_many)
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("how", ["the kernel knows no IPv6", "it may not be bound"])
async def test_without_ipv6_all_addresses_are_those_of_ipv4(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As on a node that was started with ipv6.disable=1."""
    real = socket.create_server

    def create_server(where: tuple[str, int], **more: Any) -> socket.socket:
        if more.get("family") == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "induced")
        return real(where, **more)

    monkeypatch.setattr(socket, "create_server", create_server)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: how == "it may not be bound")
    with addresses.bind_any(0, backlog=4) as bound:
        assert bound.getsockname()[0] == "0.0.0.0"
        with socket.create_connection(("127.0.0.1", bound.getsockname()[1]), timeout=SECONDS):
            pass


def test_a_port_that_is_taken_is_no_lack_of_ipv6() -> None:
    """Whoever has it is not to be stood beside, in the other family."""
    with addresses.bind_any(0, backlog=4) as bound, pytest.raises(OSError, match="Errno") as refused:
        addresses.bind_any(bound.getsockname()[1], backlog=4)
    assert refused.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    ("host", "peer", "written"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:80"),
        ("::ffff:10.0.0.1", "10.0.0.1", "[::ffff:10.0.0.1]:80"),
        ("fd00::1", "fd00::1", "[fd00::1]:80"),
        ("::ffff:a", "::ffff:a", "[::ffff:a]:80"),
        ("model", "model", "model:80"),
    ],
)
def test_how_addresses_are_written_and_compared(host: str, peer: str, written: str) -> None:
    """What is written can be read again, as a flag."""
    assert addresses.unmapped(host) == peer
    assert addresses.join(host, 80) == written
    if not host.startswith("::ffff:1"):
        assert address(written) == (host, 80)


async def test_everything_speaks_ipv6_alone(tmp_path: Path) -> None:
    """Model server, sidecar and router find each other by [::1]; their first lines can be read."""
    needs_ipv6()
    (tmp_path / "echo_v6.py").write_text("def echo(item):\n    return item\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    model = Program("penstock.serve", "echo_v6:echo", "--host=::1", "--port=0", env={"PYTHONPATH": path})
    started = [model]
    try:
        where = (await model.start()).removeprefix("data=")
        assert address(where)[0] == "::1"
        sidecar = Program(
            *("penstock_sidecar", "--listen=[::1]:0", "--admin=[::]:0", f"--model=http://{where}"),
        )
        started.append(sidecar)
        data, admin = (word.partition("=")[2] for word in (await sidecar.start()).split())
        assert (address(data)[0], address(admin)[0]) == ("::1", "::")
        settings = tmp_path / "router.json"
        endpoint = {"name": "e", "backends": [{"name": "b", "weight": 1, "targets": [data]}]}
        settings.write_text(json.dumps({"v": 1, "endpoints": [endpoint]}))
        router = Program(
            *("penstock_router", "--listen=[::]:0", "--admin=[::1]:0", f"--settings={settings}"),
        )
        started.append(router)
        front, _ = (word.partition("=")[2] for word in (await router.start()).split())
        async with aiohttp.ClientSession() as session:
            for host in LOOPBACK:
                url = f"http://{addresses.join(host, address(front)[1])}/e/predict"
                async with session.post(url, json={"instances": [1]}) as answer:
                    assert (answer.status, await answer.json()) == (200, {"predictions": [1]})
    finally:
        for program in reversed(started):
            await program.stop()
