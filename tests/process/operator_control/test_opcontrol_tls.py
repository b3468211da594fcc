"""Reports over real TLS: a real reporter, a real control server, the keys in a Secret in memory."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.control import pki
from penstock_operator.control.certificates import ROTATE, Certificates, read_secret, show
from penstock_operator.control.rotation import DAY, Keyring, Lifetimes
from penstock_operator.errors import Unavailable
from penstock_operator.kinds import SECRET
from penstock_wire.control import reporter as reporting
from penstock_wire.control.ca_trust import Trust, client_context
from penstock_wire.control.report import SidecarReport, encode
from penstock_wire.control.reporter import UNTRUSTED, Reporter
from tests.support.clocks.hand_clock import HandClock
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.control_server import DOCUMENT, Harness, token
from tests.support.processes.ports import free_port
from tests.support.worlds.memory_cluster import MemoryCluster

NAMES = ("127.0.0.1", "penstock-operator.penstock-system.svc")
OVERLAP = 600.0


class WallClock(HandClock):
    """Stands at the real time, since the ssl module asks the machine's clock; a test may move it."""

    def now(self) -> datetime.datetime:
        begun = datetime.timedelta(seconds=self.time() - 1000.0)
        return datetime.datetime.fromtimestamp(time.time(), datetime.UTC) + begun


class Operator:
    """One operator process as far as keys and reports go."""

    def __init__(self, cluster: MemoryCluster, lifetimes: Lifetimes | None = None) -> None:
        self.harness = Harness()
        self.harness.interval = 0.1
        self.clock = WallClock()
        self.published: list[bytes] = []
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.certificates = Certificates(
            cluster, namespace="penstock-system", name="penstock-operator-tls", names=NAMES,
            lifetimes=lifetimes or Lifetimes(overlap=OVERLAP), clock=self.clock, changed=self._changed,
            log=lambda message, **fields: self.log.append((message, fields)),
        )  # fmt: skip
        self.port = free_port()

    def _changed(self, authorities: bytes) -> None:
        self.published.append(authorities)
        self.harness.server.send_authorities(authorities)

    async def start(self, port: int | None = None) -> None:
        await self.certificates.ensure()
        _, self.port = await self.harness.server.start_reports(
            "127.0.0.1", port or self.port, self.certificates.context
        )

    def taken(self) -> int:
        return len(self.harness.reported)

    async def turn(self, seconds: float) -> None:
        """Let time pass for the keys."""
        self.clock.turn(seconds)
        await self.certificates.ensure()

    def steps(self) -> list[str]:
        return [fields["step"] for message, fields in self.log if message == "report channel's keys"]


class Pod:
    """A sidecar as far as reports go, with the authorities' file as a mounted ConfigMap brings it."""

    def __init__(self, folder: Path, port: int, authorities: bytes, host: str = "127.0.0.1") -> None:
        self.file = folder / "ca.crt"
        self.file.write_bytes(authorities)
        (folder / "token").write_text(token())
        self.settings: list[bytes] = []
        self.alone = 0
        self.reporter = Reporter(
            url=f"https://{host}:{port}", kind="sidecar", token_file=folder / "token", authorities=self.file,
            make=lambda seq: encode(SidecarReport(pod="m-1", uid="uid-1", seq=seq, state="ready")),
            on_settings=self.settings.append, on_alone=self._alone,
        )  # fmt: skip
        self.task = asyncio.create_task(self.reporter.run())

    def _alone(self) -> None:
        self.alone += 1

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def until(check: Callable[[], object], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < end, f"never came true: {what}"
        await asyncio.sleep(0.01)


async def reported(operator: Operator) -> None:
    """Another report has been taken."""
    before = operator.taken()

    def another() -> bool:
        operator.harness.clock.turn(0.01)  # a pod may send two reports a second
        return operator.taken() > before

    await until(another, "another report")


def logged(capsys: pytest.CaptureFixture[str], lines: list[dict[str, Any]]) -> Callable[[str], str | None]:
    """Finds the error of a message that the pod logged."""

    def find(message: str) -> str | None:
        lines.extend(json.loads(line) for line in capsys.readouterr().err.splitlines())
        return next((line.get("error", "") for line in lines if line["message"] == message), None)

    return find


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
async def operator(cluster: MemoryCluster) -> AsyncIterator[Operator]:
    operator = Operator(cluster)
    await operator.start()
    yield operator
    await operator.harness.server.stop()


@pytest.fixture
async def pod(operator: Operator, tmp_path: Path) -> AsyncIterator[Pod]:
    pod = Pod(tmp_path, operator.port, operator.published[-1])
    yield pod
    await pod.stop()


def secret(cluster: MemoryCluster) -> dict[str, Any]:
    return cluster.find(SECRET, "penstock-system", "penstock-operator-tls")


def keyring(cluster: MemoryCluster) -> Keyring:
    return read_secret(secret(cluster))


async def shown(operator: Operator) -> bytes:
    """The certificate that a new connection gets, checked with the authorities that all pods have."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", operator.port, ssl=client_context(operator.published[-1])
    )
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
        await writer.wait_closed()
    return ssl.DER_cert_to_PEM_cert(der).encode()


async def test_reports_and_settings_travel_over_tls_on_one_connection(operator: Operator, pod: Pod) -> None:
    """Name and authority are checked, TLS 1.3 is spoken, and ten reports cost one handshake."""
    handshakes = 0

    def count(*_: object) -> None:
        nonlocal handshakes
        handshakes += 1

    operator.certificates.context.sni_callback = count
    await until(lambda: operator.taken() >= 10, "ten reports")
    await until(lambda: pod.settings, "settings")
    assert json.loads(pod.settings[0]) == json.loads(DOCUMENT)
    assert handshakes <= 1
    assert operator.harness.reports.of_backend("n", "m")["m-1"].state == "ready"


async def test_what_is_made_is_what_strict_checkers_ask_for(operator: Operator) -> None:
    """RFC 5280 to the letter (OpenSSL's strict flag), as other clients check; no TLS 1.2, no other name."""
    context = ssl.create_default_context(cadata=operator.published[-1].decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    _, writer = await asyncio.open_connection("127.0.0.1", operator.port, ssl=context)
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    writer.close()
    await writer.wait_closed()
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        await asyncio.open_connection("127.0.0.1", operator.port, ssl=context, server_hostname="other.svc")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", operator.port, ssl=context)


async def test_the_keys_outlive_the_process(cluster: MemoryCluster, operator: Operator) -> None:
    """The next leader reads them: same authority, same certificate, nothing written."""
    writes = len(cluster.writes)
    following = Operator(cluster)
    await following.certificates.ensure()
    await following.turn(3600)
    assert following.published == operator.published
    assert len(cluster.writes) == writes
    assert "tls.key" in secret(cluster)["data"]


@pytest.mark.parametrize("how", ["annotation", "deleted"])
async def test_a_rotation_loses_no_report(
    cluster: MemoryCluster, operator: Operator, pod: Pod, how: str
) -> None:
    """Announced, used, the old one retired: the pod's connection lives on, a new one is taken at each stage.

    The answers alone keep its authorities up to date; its file never changes.
    """
    await reported(operator)
    first = await shown(operator)
    if how == "annotation":
        cluster.edit(
            SECRET, "penstock-system", "penstock-operator-tls",
            lambda live: live["metadata"].update(annotations={ROTATE: "1"}),
        )  # fmt: skip
    else:
        cluster.remove(SECRET, "penstock-system", "penstock-operator-tls")
    for seconds, step, authorities in (
        (0.0, "a new authority is announced", 2),
        (OVERLAP, "the new authority signs", 2),
        (OVERLAP, "the old authority is not trusted any more", 1),
    ):
        await operator.turn(seconds)
        assert operator.steps()[-1] == step
        assert operator.published[-1].count(b"BEGIN CERT") == authorities
        await reported(operator)
        await reported(operator)  # by now the answer has told
        await shown(operator)
        # A new connection at this stage, with the authorities from before it: the old one is dropped.
        await pod.reporter._upstream.close()
        await reported(operator)
    assert await shown(operator) != first
    assert len({*operator.published}) == 4
    assert pod.file.read_bytes() == operator.published[0]
    again = len(operator.steps())
    await operator.turn(OVERLAP)
    assert len(operator.steps()) == again, "one request, one rotation"


async def test_a_pod_that_hears_nothing_but_its_file_follows(
    cluster: MemoryCluster, operator: Operator, pod: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Secret vanished with its operator: other keys at once.

    The pod says so and reports nothing, never in plain text; when its ConfigMap brings the new authority it
    goes on.
    """
    lines: list[dict[str, Any]] = []
    find = logged(capsys, lines)
    await reported(operator)
    await operator.harness.server.stop()
    cluster.remove(SECRET, "penstock-system", "penstock-operator-tls")
    following = Operator(cluster)
    await following.start(operator.port)
    try:
        await until(lambda: find(UNTRUSTED) is not None, "a log line that says why")
        assert "certificate verify failed" in str(find(UNTRUSTED))
        assert following.taken() == 0
        pod.file.write_bytes(following.published[-1])
        await until(lambda: following.taken() > 0, "a report to the new operator")
    finally:
        await following.harness.server.stop()


@pytest.mark.parametrize(
    "case", ["wrong authority", "expired", "not yet valid", "another name", "plain text"]
)
async def test_a_server_that_cannot_be_checked_gets_no_report(
    case: str, operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is sent to it, not even the token; the log says why in words.

    Where a server is there, its certificate and the mounted authorities disagree: so the pod does not start
    from the settings mounted beside them either.
    """
    words = {
        "wrong authority": "unable to get local issuer certificate",
        "expired": "certificate has expired",
        "not yet valid": "certificate is not yet valid",
        "another name": "IP address mismatch",
        "plain text": "",
    }
    now, names = time.time(), NAMES
    if case == "expired":
        now -= 400 * DAY
    elif case == "not yet valid":
        now += 2 * DAY
    elif case == "another name":
        names = ("other.svc",)
    authority = pki.make_authority(now=now, life=700 * DAY)
    trusted = authority if case != "wrong authority" else pki.make_authority(now=now, life=700 * DAY)
    context = operator.certificates.context
    show(context, pki.issue(authority, names=names, now=now, life=30 * DAY))
    port = operator.port
    if case == "plain text":
        _, port = await operator.harness.server.start("127.0.0.1", 0)
    find = logged(capsys, [])
    pod = Pod(tmp_path, port, trusted.certificate)
    message = "report failed" if case == "plain text" else UNTRUSTED
    try:
        await until(lambda: find(message) is not None, "a log line that says why")
    finally:
        await pod.stop()
    assert words[case] in str(find(message))
    assert bool(pod.alone) == (case == "plain text")
    assert operator.taken() == 0
    assert operator.harness.reviews == []


async def test_clocks_that_are_a_day_apart_do_no_harm(cluster: MemoryCluster, tmp_path: Path) -> None:
    """An operator 23 hours ahead or 9 days behind makes certificates that all pods accept now."""
    for number, hours in enumerate((23, -9 * 24)):
        operator = Operator(MemoryCluster())
        operator.clock.turn(0)
        operator.clock._now += hours * 3600.0
        await operator.start()
        folder = tmp_path / str(number)
        folder.mkdir()
        pod = Pod(folder, operator.port, operator.published[-1])
        try:
            await reported(operator)
        finally:
            await pod.stop()
            await operator.harness.server.stop()


@pytest.fixture
async def old(cluster: MemoryCluster) -> AsyncIterator[Operator]:
    """An operator that began three weeks ago, by its own clock and by its certificate."""
    operator = Operator(cluster)
    operator.clock._now -= 21 * DAY
    await operator.start()
    yield operator
    await operator.harness.server.stop()


async def test_a_certificate_is_renewed_long_before_its_end(old: Operator, tmp_path: Path) -> None:
    """By the same authority: pods need no notice; new connections use it, old ones live on."""
    pod = Pod(tmp_path, old.port, old.published[-1])
    first = await shown(old)
    await old.turn(19 * DAY)
    assert await shown(old) == first
    await reported(old)
    await old.turn(2 * DAY)
    assert await shown(old) != first
    assert len(old.published) == 1
    await reported(old)
    await pod.stop()


async def test_an_apiserver_that_is_away_changes_nothing(cluster: MemoryCluster, old: Operator) -> None:
    """The certificate in use stays; a failed write is repeated at the next look, and used only then."""

    def fail(verb: str, kind: str, *_: str) -> None:
        if kind == "Secret" and verb == "apply":
            raise Unavailable(500, "induced")

    first = await shown(old)
    cluster.fail = fail
    with pytest.raises(Unavailable):
        await old.turn(21 * DAY)
    assert await shown(old) == first
    cluster.fail = lambda *_: None
    await old.certificates.ensure()
    assert await shown(old) != first
    assert keyring(cluster).serving.certificate == await shown(old)


@pytest.mark.parametrize("damage", ["no data", "tls.crt", "tls.key", "current.key", "changed"])
async def test_a_secret_that_somebody_damaged_is_mended(
    cluster: MemoryCluster, operator: Operator, damage: str
) -> None:
    """From memory: only the log shows it."""
    before = keyring(cluster)

    def spoil(live: dict[str, Any]) -> None:
        live["data"] = {} if damage == "no data" else live["data"] | {damage: "eA=="}

    cluster.edit(SECRET, "penstock-system", "penstock-operator-tls", spoil)
    await operator.certificates.ensure()
    assert keyring(cluster) == before
    assert any("unreadable" in message for message, _ in operator.log)
    assert len(operator.published) == 1


async def test_the_leaders_word_is_taken_over(cluster: MemoryCluster, operator: Operator) -> None:
    """Another writer of the Secret is followed: its keys are used and sent."""
    other = Operator(cluster)
    await other.certificates.ensure()
    cluster.edit(
        SECRET, "penstock-system", "penstock-operator-tls",
        lambda live: live["metadata"].update(annotations={ROTATE: "x"}),
    )  # fmt: skip
    await other.turn(0)
    await operator.turn(0)
    assert operator.published[-1] == other.published[-1]
    assert operator.published[-1].count(b"BEGIN CERT") == 2


def test_keys_survive_being_written_down() -> None:
    """Names, times and keys read back as they were made."""
    authority = pki.make_authority(now=time.time(), life=DAY)
    issued = pki.issue(authority, names=("a.svc", "10.0.0.1", "fd00::1"), now=time.time(), life=9 * DAY)
    assert pki.read(issued.certificate, issued.key) == issued
    assert pki.read(authority.certificate, b"") == replace(authority, key=b"")
    assert issued.ends == authority.ends, "no longer than its authority"
    assert pki.signed_by(issued, authority)
    assert not pki.signed_by(issued, pki.make_authority(now=time.time(), life=DAY))
    with pytest.raises(pki.UnreadableKeys):
        pki.read(issued.certificate, authority.key)


def test_authorities_that_cannot_be_read_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither those of the file nor those of an answer; each is logged once."""
    file = tmp_path / "ca.crt"
    authority = pki.make_authority(now=time.time(), life=DAY)
    file.write_bytes(authority.certificate)
    trust = Trust(file)
    good = trust.context()
    assert len(good.get_ca_certs()) == 1
    file.write_bytes(b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    trust.take("nonsense")
    assert trust.context() is good
    assert trust.context() is good
    file.unlink()
    assert trust.context() is good
    messages = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert messages == ["authorities refused", "authorities cannot be read", "authorities cannot be read"]
    file.write_bytes(authority.certificate)
    trust.context()
    trust.verified()
    other = pki.make_authority(now=time.time(), life=DAY).certificate
    file.write_bytes(other)  # somebody's: it cuts off no pod that has reached the operator once
    assert len(trust.context().get_ca_certs()) == 2
    file.write_bytes(authority.certificate)
    trust.take(pki.make_authority(now=time.time(), life=DAY).certificate.decode())
    assert len(trust.context().get_ca_certs()) == 2


def test_https_needs_authorities() -> None:
    """Never the system's, never none."""
    with pytest.raises(ValueError, match="authorities"):
        Reporter(
            url="https://x:1", kind="sidecar", token_file=None, make=lambda _: b"", on_settings=lambda _: None
        )
    assert reporting.LONGEST_SECONDS < reporting.IDLE_SECONDS
