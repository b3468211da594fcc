"""The control server's connections: whoever fills its ports keeps neither reports nor probes out."""

from __future__ import annotations

import asyncio
import socket
import time

import aiohttp
import pytest

from penstock_operator.control import pki
from penstock_operator.control.certificates import server_context, show
from penstock_operator.control.rotation import DAY
from penstock_wire.control.ca_trust import client_context
from penstock_wire.http.server import limits
from penstock_wire.http.server.acceptor import HANDSHAKES
from tests.support.clocks.waiting import SECONDS, until
from tests.support.processes.control_server import Harness, pod, sidecar


async def test_reporters_leave_room_for_probes(authority: pki.Issued) -> None:
    """As many connections as one port takes keep no probe from the other: it would restart us."""
    harness = Harness(reporters=1)
    address = await harness.server.start("127.0.0.1", 0)
    context = server_context()
    show(context, pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=DAY))
    reports = await harness.server.start_reports("127.0.0.1", 0, context)
    _, reporter = await asyncio.open_connection(*reports, ssl=client_context(authority.certificate))
    harness.pages = f"http://{address[0]}:{address[1]}"
    async with aiohttp.ClientSession() as harness.session:
        assert await harness.page("/livez") == (200, "ok\n")
    reporter.close()
    await harness.server.stop()


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain text"])
async def test_requests_that_do_not_end_are_bounded_in_bytes_and_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch, authority: pki.Issued, tls: bool
) -> None:
    """A head of more than 16 KiB is refused, and one that would be too much beside the others."""
    monkeypatch.setattr("penstock_operator.control.server.UNFINISHED_BUDGET", 50_000)
    harness = Harness()
    where = plain = await harness.server.start("127.0.0.1", 0)
    context = client_context(authority.certificate) if tls else None
    if tls:
        shown = server_context()
        show(shown, pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=DAY))
        where = await harness.server.start_reports("127.0.0.1", 0, shown)
    opened = []

    async def begin(size: int) -> asyncio.Task[bytes]:
        reader, writer = await asyncio.open_connection(*where, ssl=context)
        opened.append(writer)
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"x" * size)
        return asyncio.create_task(reader.readline())

    answers = [await begin(10_000) for _ in range(8)]
    await until(lambda: sum(task.done() for task in answers) == 4)
    assert {task.result()[:12] for task in answers if task.done()} == {b"HTTP/1.1 503"}
    assert (await (await begin(17_000)))[:12] == b"HTTP/1.1 431"
    harness.pages = f"http://{plain[0]}:{plain[1]}"
    async with aiohttp.ClientSession() as harness.session:
        assert await harness.page("/livez") == (200, "ok\n")
    for writer in opened:
        writer.close()
    await harness.server.stop()
    await asyncio.gather(*answers)


async def test_handshakes_that_have_begun_end_before_others_begin(authority: pki.Issued) -> None:
    """If thousands of pods connect at once, the loop turns to those that it has begun with in between."""
    harness = Harness()
    context = server_context()
    show(context, pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=DAY))
    where = await harness.server.start_reports("127.0.0.1", 0, context)
    clients = [socket.create_connection(where) for _ in range(HANDSHAKES + 4)]  # the loop stands still
    (listener,) = harness.server._reports_front._listeners
    assert listener.acceptor is not None
    listener.acceptor._accept()
    assert (len(listener.acceptor), len(listener.acceptor._beginning)) == (len(clients), HANDSHAKES)
    await until(lambda: listener.acceptor is not None and len(listener.acceptor._beginning) == len(clients))
    for client in clients:
        client.close()
    await harness.server.stop()


@pytest.mark.parametrize("own", [True, False], ids=["pods have addresses of their own", "one for all"])
async def test_one_address_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch, authority: pki.Issued, own: bool
) -> None:
    """Connections that say nothing count from the first moment, on both ports, and only for their address.

    Where all pods may share one, it may have as many as there are, but on the port of the probes. There one
    too many takes the place of the oldest.
    """
    monkeypatch.setattr("penstock_operator.control.server.MAX_PER_ADDRESS", 2)
    harness = Harness(check_peer=own)
    plain = await harness.server.start("0.0.0.0", 0)
    context = server_context()
    show(context, pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=DAY))
    reports = await harness.server.start_reports("0.0.0.0", 0, context)
    for port in (plain[1], reports[1]):
        silent = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(3)
        ]
        ended = 0 if port == plain[1] else 2 if own else None
        if ended is not None:
            assert await asyncio.wait_for(silent[ended][0].read(), SECONDS) == b""
        tls = client_context(authority.certificate) if port == reports[1] else None
        answer, other = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        other.write(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await asyncio.wait_for(answer.readline(), SECONDS)).startswith(b"HTTP/1.1 ")
        assert [reader.at_eof() for reader, _ in silent] == [number == ended for number in range(3)]
        other.close()
        for _, writer in silent:
            writer.close()
    await harness.server.stop()


@pytest.mark.parametrize("own", [True, False], ids=["pods have addresses of their own", "one for all"])
async def test_one_namespaces_pods_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch, authority: pki.Issued, own: bool
) -> None:
    """They hold as many connections as they can, from many addresses; a pod of another namespace reports.

    Where pods have no addresses of their own, their namespaces are not known, and all are let in.
    """
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", SECONDS)
    harness = Harness(check_peer=own, reporters=20)
    for number in range(30):
        stranger = pod(f"s-{number}", f"uid-s{number}", f"127.0.1.{number}")
        harness.store.put(stranger | {"metadata": stranger["metadata"] | {"namespace": "strange"}})
    context = server_context()
    show(context, pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=DAY))
    _, port = await harness.server.start_reports("0.0.0.0", 0, context)
    silent = []
    for number in range(30):
        silent.append(await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.1.{number}", 0)))
    most = 10 if own else 20
    for reader, _ in silent[most:]:
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    assert not any(reader.at_eof() for reader, _ in silent[:most])
    if own:
        harness.url = f"https://127.0.0.1:{port}"
        connector = aiohttp.TCPConnector(ssl=client_context(authority.certificate))
        async with aiohttp.ClientSession(connector=connector) as harness.session:
            assert (await harness.post(sidecar()))[0] == 200
    for _, writer in silent:
        writer.close()
    await harness.server.stop()


REPORT = b"POST /reports/sidecar HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "says", [b"", REPORT[:30], REPORT[:-1], REPORT], ids=["nothing", "half a head", "half a body", "a report"]
)
async def test_whoever_fills_the_port_of_the_probes_keeps_no_probe_out(
    monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    """Many addresses have all of its connections; a probe is answered, and Prometheus, each on a new one.

    So it is when all of them wait for the answer that says that they are refused too often.
    """
    monkeypatch.setattr("penstock_operator.control.server.MAX_CONNECTIONS", 40)
    monkeypatch.setattr("penstock_operator.control.server.MAX_PER_ADDRESS", 4)
    monkeypatch.setattr("penstock_operator.control.server.BURST", 0.0)
    harness = Harness()
    host, port = await harness.server.start("127.0.0.1", 0)
    opened = []
    for number in range(10):
        for _ in range(4):
            source = (f"127.0.1.{number + 1}", 0)
            opened.append(await asyncio.open_connection(host, port, local_addr=source))
            opened[-1][1].write(says)
    for path in ("/livez", "/readyz", "/metrics"):
        answer, writer = await asyncio.open_connection(host, port)
        opened.append((answer, writer))
        writer.write(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode())
        assert await asyncio.wait_for(answer.readline(), SECONDS) == b"HTTP/1.1 200 OK\r\n"
    assert sum(reader.at_eof() for reader, _ in opened) <= 3
    for _, writer in opened:
        writer.close()
    await harness.server.stop()
