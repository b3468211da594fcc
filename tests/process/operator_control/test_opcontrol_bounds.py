"""What one pod reports is bounded: each number, its bytes, how often; and one bad family costs no other."""

from __future__ import annotations

import asyncio
import json
import socket
import types
import typing
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from penstock_operator.control.metrics_page import MAX_PAGES, MAX_PAGES_PER_ADDRESS, PAGE_SECONDS, PIECE
from penstock_operator.control.server import (
    BURST,
    ENDPOINT_BYTES,
    MAX_ROUTER_REPORT,
    MAX_SIDECAR_REPORT,
    PATIENCE,
    PER_SECOND,
)
from penstock_operator.metrics import Metrics
from penstock_operator.resource_metrics import ResourceMetrics
from penstock_wire.control import report as wire
from penstock_wire.control.report import EndpointReport, Fit, Items, RouterReport, SidecarReport, encode
from penstock_wire.errors import DocumentError
from penstock_wire.exposition import pack
from tests.support.clocks.waiting import SECONDS, until
from tests.support.processes.control_server import Harness, parent, pod, sidecar, token, verdict

DIGITS = "9" * 400


def numbers(kind: Any, path: str = "") -> list[tuple[str, Any]]:
    """A document for each number in a struct, with `@` in its place, by its path."""
    fields = []
    for field in msgspec.structs.fields(kind):
        at = f"{path}.{field.encode_name}"
        for type_, wrap in _held(field.type):
            if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
                for below, document in numbers(type_, at):
                    whole = _least(type_) | document
                    fields.append((below, {field.encode_name: wrap(whole)}))
            elif type_ in (int, float):
                fields.append((at, {field.encode_name: wrap("@")}))
    return fields


def _held(type_: Any) -> list[tuple[Any, Any]]:
    """What a member's type holds, and how a value of it is put there."""
    if typing.get_origin(type_) is typing.Annotated:
        return _held(typing.get_args(type_)[0])
    if typing.get_origin(type_) is dict:
        return [(inner, lambda value: {"k": value}) for inner, _ in _held(typing.get_args(type_)[1])]
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        return [inner for type_argument in typing.get_args(type_) for inner in _held(type_argument)]
    return [(type_, lambda value: value)]


def _least(kind: Any) -> dict[str, Any]:
    values: dict[Any, Any] = {"version": 1, "ok": True, "aMs": 1, "bMs": 1, "n": 1, "source": "s"}
    values |= dict.fromkeys(("items", "cost", "error", "errorByItems"), 1)
    return {
        field.encode_name: values[field.encode_name]
        for field in msgspec.structs.fields(kind)
        if field.required
    }


BASE = {"v": 1, "pod": "p", "uid": "u", "seq": 1, "state": "ready"}
NUMBERS = [
    pytest.param(kind, path, document, id=f"{kind.__name__}{path}")
    for kind in (SidecarReport, RouterReport)
    for path, document in numbers(kind)
    if path != ".v"
]


def test_there_are_numbers_at_every_level() -> None:
    """The list that the next test goes by is of all of them."""
    numbers = {f"{number.values[0].__name__}{number.values[1]}" for number in NUMBERS}  # type: ignore[union-attr]
    assert {
        "SidecarReport.seq", "SidecarReport.items.queued", "SidecarReport.totals.refused",
        "SidecarReport.fit.aMs", "SidecarReport.slots", "SidecarReport.reconfigure.version",
        "RouterReport.endpoints.held", "RouterReport.endpoints.backends.codes",
    } <= numbers  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "document"), NUMBERS)
def test_every_number_is_bounded(kind: Any, path: str, document: dict[str, Any]) -> None:
    """One of 400 digits, a little too large, or negative where nothing is, refuses the report."""
    decode = wire.decode_sidecar if kind is SidecarReport else wire.decode_router

    def encoded(number: str) -> bytes:
        return json.dumps(BASE | document).replace('"@"', number).encode()

    decode(encoded("1"))
    measures = path.endswith(("aMs", "bMs"))
    for number in (DIGITS, f"-{DIGITS}", str(2**53), "1e300", *(() if measures else ("-1",))):
        with pytest.raises(DocumentError):
            decode(encoded(number))


@pytest.mark.parametrize(
    "changes",
    [
        {"pod": "p" * 254}, {"uid": "u" * 254}, {"message": "m" * 4097},
        {"totals": {"refused": {str(n): 1 for n in range(65)}}},
        {"totals": {"refused": {"r" * 65: 1}}},
        {"fit": {str(n): {"aMs": 1, "bMs": 1, "n": 1} for n in range(65)}},
    ],
)  # fmt: skip
def test_texts_and_maps_are_bounded(changes: dict[str, Any]) -> None:
    """More than any sidecar sends is not one of ours."""
    with pytest.raises(DocumentError, match="length"):
        wire.decode_sidecar(json.dumps(BASE | changes).encode())


def test_nothing_is_made_of_members_that_a_report_has_not() -> None:
    """They pass, as from a later release, at any size and of any number."""
    more = f'{{"later": [{DIGITS}], "v": 1, "pod": "p", "uid": "u", "seq": 1, "state": "ready"}}'
    assert wire.decode_sidecar(more.encode()).pod == "p"


# -- over HTTP --------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    harness = Harness()
    host, port = await harness.server.start("127.0.0.1", 0)
    harness.url = harness.pages = f"http://{host}:{port}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as harness.session:
        yield harness
    await harness.server.stop()


async def test_a_report_of_400_digits_costs_nobody_the_metrics(server: Harness) -> None:
    """It is refused, and /metrics shows the others."""
    server.metrics.show(ResourceMetrics(server.store, server.reports, {}).text)
    await server.post(sidecar(1, items=Items(queued=3)))
    body = sidecar(2).replace(b'"oldestAgeMs":0', b'"oldestAgeMs":' + DIGITS.encode())
    assert DIGITS.encode() in body
    assert (await server.post(body))[1]["reason"] == "bad_report"
    status, text = await server.page("/metrics")
    assert status == 200
    assert 'penstock_operator_backend_items{namespace="n",backend="m",state="queued"} 3' in text


def test_a_family_that_cannot_be_shown_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither one of the registry's, nor one that is written by hand, nor one backend's lines."""
    metrics, harness = Metrics(), Harness()

    def broken() -> Any:
        raise OverflowError("induced")

    metrics.certificate_ends.set_function(broken)
    metrics.show(broken)
    harness.store.put(parent("other", "o"))
    for backend, name in (("m", "m-1"), ("other", "m-2")):
        report = SidecarReport(pod=name, uid=name, seq=1, state="ready", items=Items(queued=2))
        if name == "m-1":
            report = msgspec.structs.replace(
                report, oldest_age_ms=int(DIGITS), fit={"/": Fit(a_ms=1, b_ms=1, n=1)}
            )
        harness.reports.sidecar("n", backend, report)
    metrics.show(ResourceMetrics(harness.store, harness.reports, {}).text)
    metrics.wrote("apply", "Service")
    text = metrics.text().decode()
    assert 'penstock_operator_writes_total{kind="Service",verb="apply"} 1.0' in text
    assert "penstock_operator_certificate_expiry" not in text
    assert 'penstock_operator_backend_items{namespace="n",backend="other",state="queued"} 2' in text
    assert 'penstock_operator_backend_oldest_age_seconds{namespace="n",backend="other"} 0.0' in text
    assert capsys.readouterr().err.count("metrics not shown") == 3


async def test_reports_beyond_the_rate_wait_and_then_are_refused(server: Harness) -> None:
    """A burst is accepted at once, a few wait for their turn, the rest get 429 after as long; time heals."""
    for seq in range(1, round(BURST) + 1):
        assert (await server.post(sidecar(seq)))[0] == 200
    many = [asyncio.create_task(server.post(sidecar(seq))) for seq in range(100, 120)]
    waiting = round(PATIENCE * PER_SECOND)
    await until(lambda: server.clock.waiting >= len(many))
    assert not any(task.done() for task in many)
    server.clock.turn(PATIENCE)
    answers = [status for status, _ in await asyncio.gather(*many)]
    assert sorted(answers) == [200] * waiting + [429] * (len(many) - waiting)
    server.clock.turn(BURST)
    assert (await server.post(sidecar(200)))[0] == 200


async def test_one_pods_reports_do_not_count_for_another(server: Harness) -> None:
    """A router's are its own."""
    for seq in range(1, round(BURST) + 1):
        assert (await server.post(sidecar(seq)))[0] == 200
    server.status = verdict(name="r-1", uid="uid-r")
    own = encode(RouterReport(pod="r-1", uid="uid-r", seq=1, state="ready"))
    assert (await server.post(own, kind="router", bearer=token(mark="r")))[0] == 200


async def test_a_routers_report_is_bounded_by_what_its_namespace_has(server: Harness) -> None:
    """Without endpoints it may be as long as a sidecar's; each adds to that, up to 8 MiB."""
    server.status = verdict(name="r-1", uid="uid-r")

    def body(size: int) -> bytes:
        whole = encode(RouterReport(pod="r-1", uid="uid-r", seq=1, state="ready"))
        return whole + b" " * (size - len(whole))

    async def post(size: int) -> int:
        server.clock.turn(BURST)
        return (await server.post(body(size), kind="router"))[0]

    assert await post(MAX_SIDECAR_REPORT) == 200
    assert await post(MAX_SIDECAR_REPORT + 1) == 413
    for number in range(3):
        server.store.put(parent(f"e{number}", f"e{number}") | {"kind": "ModelEndpoint"})
    assert await post(MAX_SIDECAR_REPORT + 3 * ENDPOINT_BYTES) == 200
    assert await post(MAX_SIDECAR_REPORT + 3 * ENDPOINT_BYTES + 1) == 413
    assert MAX_SIDECAR_REPORT + 1100 * ENDPOINT_BYTES > MAX_ROUTER_REPORT


async def test_endpoints_that_are_deleted_at_once_leave_room_for_the_router_to_be_told(
    server: Harness,
) -> None:
    """It reports them until an answer confirms that they are gone."""
    server.status = verdict(name="r-1", uid="uid-r")
    names = [f"{'e' * 45}{number}" for number in range(30)]
    for name in names:
        server.store.put(parent(name, name) | {"kind": "ModelEndpoint"})
    endpoints = {name: EndpointReport(error="x" * 3000) for name in names}
    for seq in (1, 2):
        report = encode(RouterReport(pod="r-1", uid="uid-r", seq=seq, state="ready", endpoints=endpoints))
        assert len(report) > MAX_SIDECAR_REPORT
        assert (await server.post(report, kind="router"))[0] == 200
        for name in names:
            parent_object = parent(name, name) | {"kind": "ModelEndpoint"}
            server.store.remove(
                parent_object | {"metadata": parent_object["metadata"] | {"resourceVersion": "9"}}
            )


async def send_part(server: Harness, name: str, length: int, part: int) -> tuple[Any, Any]:
    """Begin a router's report and send a part of its body; returns the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /reports/router HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token(mark=name)}\r\n"
        f"content-length: {length}\r\n\r\n"
    )
    writer.write(head.encode() + b" " * part)
    return reader, writer


async def test_bodies_that_are_being_received_have_a_budget(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod sends one at a time; a namespace's have half of the budget, and what is left is for others.

    What has begun goes on however much others send since; room comes back.
    """
    monkeypatch.setattr("penstock_operator.control.server.BODY_BUDGET", 130_000)
    server.store.put(pod("r-2", "uid-r2", app="penstock-router"))
    elsewhere = pod("r-3", "uid-r3", app="penstock-router")
    server.store.put(elsewhere | {"metadata": elsewhere["metadata"] | {"namespace": "other"}})
    server.status = verdict(name="r-1", uid="uid-r")
    begun, first = await send_part(server, "r", 60_000, 20_000)
    receiving = server.server._receiving
    await until(lambda: receiving == {("n", "uid-r"): 60_000})
    again, second = await send_part(server, "r", 60_000, 20_000)
    assert (await asyncio.wait_for(again.readline(), SECONDS)).startswith(b"HTTP/1.1 429")
    server.status = verdict(name="r-2", uid="uid-r2")
    other, third = await send_part(server, "r2", 60_000, 20_000)
    assert (await asyncio.wait_for(other.readline(), SECONDS)).startswith(b"HTTP/1.1 503")
    assert receiving == {("n", "uid-r"): 60_000}
    server.status = verdict(namespace="other", name="r-3", uid="uid-r3")
    _, fourth = await send_part(server, "r3", 35_000, 20_000)
    await until(lambda: receiving == {("n", "uid-r"): 60_000, ("other", "uid-r3"): 35_000})
    first.write(b" " * 40_000)
    assert (await asyncio.wait_for(begun.readline(), SECONDS)).startswith(b"HTTP/1.1 400"), "received whole"
    first.close()
    fourth.close()
    await until(lambda: not receiving)
    server.status = verdict(name="r-2", uid="uid-r2")
    own = encode(RouterReport(pod="r-2", uid="uid-r2", seq=1, state="ready")) + b" " * 50_000
    assert (await server.post(own, kind="router", bearer=token(mark="r2")))[0] == 200
    for writer in (first, second, third):
        writer.close()


@pytest.mark.parametrize("path", ["/reports/sidecar", "/reports/router", "/nothing"])
async def test_who_is_refused_over_and_over_waits_for_each_answer(server: Harness, path: str) -> None:
    """With a token that is known to be bad, or for nothing: what its connections bear; pods are let in.

    The pods of its address, too; and a burst is answered at once, so that a pod which comes early reads why.
    """
    good = server.status
    server.status = verdict(authenticated=False)

    async def ask() -> int:
        headers = {"authorization": f"Bearer {token(mark='bad')}"}
        async with server.session.post(server.url + path, headers=headers) as answer:
            await answer.read()
            return answer.status

    status = 404 if path == "/nothing" else 401
    assert [await ask() for _ in range(int(BURST))] == [status] * int(BURST)
    late = [asyncio.create_task(ask()) for _ in range(20)]
    gone = asyncio.create_task(ask())
    await until(lambda: server.clock.waiting == 21)
    assert not any(task.done() for task in late)
    server.status = good
    assert (await server.post(sidecar()))[0] == 200
    gone.cancel()
    await until(lambda: server.clock.waiting == 20)
    server.clock.turn(PATIENCE)
    assert await asyncio.gather(*late) == [status] * 20
    server.clock.turn(BURST / PER_SECOND)
    assert await ask() == status


async def test_a_connection_bears_one_request_at_a_time(server: Harness) -> None:
    """Behind an answer that is held up nothing is kept, however much a client sends."""
    port = int(server.pages.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(int(BURST)):
        writer.write(b"GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"or a report\n")
    writer.write(b"GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n" * 3)
    await until(lambda: server.clock.waiting == 1)
    (held,) = [connection for connection in server.server._pages_front.connections if connection._line]
    assert [type(answer).__name__ for answer in held._line] == ["PenstockError"]
    server.clock.turn(PATIENCE)
    assert b"expected one request at a time" in await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()


# -- the page of metrics ----------------------------------------------------------------------------------


async def ask_metrics(server: Harness, source: str, *, read: bool = True) -> tuple[Any, Any]:
    """Ask for /metrics on a connection of its own, whose reader takes little where it is not to read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20 if read else 4096)
    sock.bind((source, 0))
    sock.setblocking(False)
    address = ("127.0.0.1", int(server.pages.rpartition(":")[2]))
    await asyncio.get_running_loop().sock_connect(sock, address)
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    return reader, writer


def page_of(server: Harness, size: int) -> list[float]:
    """Show a page of so many bytes; returns when it was made."""
    made: list[float] = []

    def make() -> bytes:
        made.append(server.clock.time())
        return b"m" * size

    server.server._metrics_page._make = make
    return made


async def test_the_metrics_are_made_once_a_second_and_not_for_whoever_asks_too_often(server: Harness) -> None:
    """A burst is shown the same page; what is beyond is held up and refused, and a probe is answered."""
    made = page_of(server, 300_000)
    for _ in range(int(BURST)):
        assert await server.page("/metrics") == (200, "m" * 300_000)
    assert len(made) == 1
    late = [asyncio.create_task(server.page("/metrics")) for _ in range(20)]
    await until(lambda: server.clock.waiting == 20)
    assert await server.page("/livez") == (200, "ok\n")
    reader, writer = await ask_metrics(server, "127.0.0.9")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    server.clock.turn(PATIENCE)
    answers = await asyncio.gather(*late)
    assert {(status, json.loads(text)["reason"]) for status, text in answers} == {(429, "too_often")}
    assert (await server.page("/metrics"))[0] == 200
    assert len(made) == 2
    async with server.session.head(server.pages + "/metrics") as answer:
        assert (answer.status, answer.headers["content-encoding"]) == (200, "gzip")
        assert int(answer.headers["content-length"]) == len(pack(b"m" * 300_000))
    writer.close()
    await until(lambda: not server.server._metrics_page.sending)


async def test_pages_that_nobody_reads_are_few(server: Harness) -> None:
    """Two of an address and eight in all; then others are refused, until these have gone or are cut off."""
    page_of(server, 8_000_000)
    page = server.server._metrics_page
    held = []
    for number in range(2, 2 + MAX_PAGES // MAX_PAGES_PER_ADDRESS):
        for _ in range(MAX_PAGES_PER_ADDRESS):
            sending = page.sending
            held.append(await ask_metrics(server, f"127.0.0.{number}", read=False))
            await until(lambda sending=sending: page.sending > sending)  # type: ignore[misc]
    for source, status in (("127.0.0.2", b"429"), ("127.0.0.99", b"503")):
        reader, writer = await ask_metrics(server, source)
        await until(lambda: server.clock.waiting > 0)
        server.clock.turn(PATIENCE)
        assert (await asyncio.wait_for(reader.readline(), SECONDS)).startswith(b"HTTP/1.1 " + status)
        writer.close()
    buffered = [
        connection._transport.get_write_buffer_size() for connection in server.server._pages_front.connections
    ]
    assert max(buffered) <= PIECE
    held.pop()[1].close()
    await until(lambda: page.sending == MAX_PAGES - 1)
    server.clock.turn(PAGE_SECONDS + 1)
    reader, writer = held.pop()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # cut off: it has not the whole
        await asyncio.wait_for(reader.readexactly(8_000_000), SECONDS)
    await until(lambda: page.sending == MAX_PAGES - 2)
    for _, client in held:
        client.close()
    await until(lambda: not page.sending)
