"""Reports are taken only from the pod they speak for; the answer carries newer settings."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from penstock_operator.api.backendstatus import ScalingInputs
from penstock_operator.autoscaling import Recommendation
from penstock_operator.control import pki
from penstock_operator.control.certificates import server_context, show
from penstock_operator.control.rotation import DAY
from penstock_operator.control.server import MAX_ROUTER_REPORT, MAX_SIDECAR_REPORT, PER_SECOND
from penstock_operator.desired.settings import for_router, next_version
from penstock_operator.desired.tenant_settings import TenantSettings
from penstock_operator.errors import Rejected, Unavailable
from penstock_operator.reconcile.context import Scaled
from penstock_operator.reports import FRESH
from penstock_operator.store import ObjectKey
from penstock_wire.control.ca_trust import client_context, digest
from penstock_wire.control.documents import digest as digest_of
from penstock_wire.control.report import (
    BackendTotals,
    EndpointReport,
    Items,
    RouterReport,
    encode,
)
from penstock_wire.control.router_settings import Endpoint, Tenant, encode_tenant
from tests.support.processes.control_server import (
    DOCUMENT,
    MADE,
    Harness,
    parent,
    pod,
    sidecar,
    token,
    verdict,
)
from tests.support.processes.ports import needs_ipv6


@pytest.fixture(params=["TLS", "plain text"])
async def server(request: pytest.FixtureRequest, authority: pki.Issued) -> AsyncIterator[Harness]:
    """Reports go to the one or to the other port: both say the same to everything."""
    harness = Harness()
    host, port = await harness.server.start("127.0.0.1", 0)
    harness.url = harness.pages = f"http://{host}:{port}"
    if request.param == "TLS":
        context = server_context()
        show(context, pki.issue(authority, names=(host,), now=time.time(), life=DAY))
        host, port = await harness.server.start_reports(host, 0, context)
        harness.url = f"https://{host}:{port}"
    connector = aiohttp.TCPConnector(ssl=client_context(authority.certificate))
    async with aiohttp.ClientSession(connector=connector) as harness.session:
        yield harness
    await harness.server.stop()


async def test_a_report_of_the_right_pod_is_taken(server: Harness) -> None:
    """It is reviewed with our audience, cached, recorded, and answered without settings that the pod has."""
    status, answer = await server.post(sidecar(items=Items(queued=3, ongoing=2)))
    ours = {"v": 1, "nextReportMs": 1000, "settings": None, "authorities": None, "routers": []}
    assert (status, answer) == (200, ours)
    assert server.reviews[0]["spec"] == {"token": token(), "audiences": ["penstock-operator"]}
    assert server.reported == [("n", "m", True)]
    assert server.reports.of_backend("n", "m")["m-1"].items.queued == 3


@pytest.mark.parametrize(
    ("has", "behind"),
    [
        ({"settings_version": 3}, True),
        ({"settings_version": 4}, False),
        ({"settings_version": 2**53 - 1}, False),  # an older pod: it takes only a higher version
        ({"settings_version": 4, "settings_digest": MADE.digest}, False),
        ({"settings_version": 1, "settings_digest": MADE.digest}, False),
        ({"settings_version": 2**53 - 1, "settings_digest": "a stranger's"}, True),
        ({"settings_version": 0, "settings_digest": ""}, True),  # those of a file do not count
    ],
    ids=str,
)
async def test_a_reporter_gets_what_the_operator_made_unless_it_has_just_that(
    server: Harness, has: dict[str, Any], behind: bool
) -> None:
    """The digest decides, not the version; before the operator has made settings, there are none."""
    status, answer = await server.post(sidecar(**has))
    assert (status, answer["settings"]) == (200, json.loads(DOCUMENT) if behind else None)
    server.made.clear()
    assert (await server.post(sidecar(2, **has)))[1]["settings"] is None


async def test_a_verdict_is_kept_for_a_minute_at_most(server: Harness) -> None:
    """One TokenReview a minute a pod, not one a second."""
    for seq in range(1, 6):
        await server.post(sidecar(seq))
    assert len(server.reviews) == 1
    server.clock.turn(59)
    await server.post(sidecar(6))
    assert len(server.reviews) == 1
    server.clock.turn(2)
    await server.post(sidecar(7))
    assert len(server.reviews) == 2


async def test_a_verdict_is_not_kept_beyond_the_tokens_own_end(server: Harness) -> None:
    """min(exp, 60 s)."""
    short = token(expires=server.clock.now().timestamp() + 5)
    await server.post(sidecar(1), bearer=short)
    server.clock.turn(4)
    await server.post(sidecar(2), bearer=short)
    assert len(server.reviews) == 1
    server.clock.turn(2)
    server.status = verdict(authenticated=False) | {"error": "token has expired"}
    status, answer = await server.post(sidecar(3), bearer=short)
    assert (status, answer["reason"], answer["detail"]) == (401, "bad_token", "token has expired")


REFUSALS = [
    (
        "wrong audience",
        {"status": verdict(audiences=("https://kubernetes.default.svc",))},
        401,
        "wrong_audience",
    ),
    ("no audience", {"status": verdict(audiences=())}, 401, "wrong_audience"),
    ("expired or forged", {"status": verdict(authenticated=False)}, 401, "bad_token"),
    ("another pod's token", {"status": verdict(name="m-2", uid="uid-2")}, 403, "other_pod"),
    ("a pod that is gone", {"status": verdict(name="m-3", uid="uid-3")}, 403, "unknown_pod"),
    ("a gone namesake's token", {"status": verdict(uid="uid-9")}, 403, "unknown_pod"),
    ("not bound to a pod", {"status": verdict(bound=False)}, 403, "unbound_token"),
    ("not a service account", {"status": verdict(username="admin")}, 403, "unbound_token"),
    ("another namespace", {"status": verdict(namespace="other")}, 403, "unknown_pod"),
]


@pytest.mark.parametrize(("name", "setup", "status", "reason"), REFUSALS, ids=[row[0] for row in REFUSALS])
async def test_refusals(server: Harness, name: str, setup: dict[str, Any], status: int, reason: str) -> None:
    """Every report that is not the pod's own is refused with a word, and changes nothing."""
    server.status = setup["status"]
    server.store.put(pod("m-2", "uid-2", **{"penstock.dev/backend": "m"}))
    code, answer = await server.post(sidecar())
    assert (code, answer["reason"]) == (status, reason)
    assert answer["error"] == answer["detail"]
    assert server.reported == []
    assert server.reports.of_backend("n", "m") == {}


async def test_a_report_without_a_token_is_refused(server: Harness) -> None:
    """Without asking the apiserver."""
    assert (await server.post(sidecar(), bearer=None))[1]["reason"] == "no_token"
    assert (await server.post(sidecar(), bearer=None, Authorization="Basic eDp5"))[1]["reason"] == "no_token"
    assert server.reviews == []


async def test_a_peer_that_is_not_the_pod_is_refused(server: Harness) -> None:
    """A stolen token is of no use from another address."""
    server.store.put(pod(ip="10.0.0.9", **{"penstock.dev/backend": "m"}) | {"metadata": {
        **pod()["metadata"], "resourceVersion": "2", "labels": {
            **pod()["metadata"]["labels"], "penstock.dev/backend": "m"}}})  # fmt: skip
    status, answer = await server.post(sidecar())
    assert (status, answer["reason"]) == (403, "wrong_peer")


@pytest.mark.parametrize(
    ("checked", "ip", "comes_by", "status"),
    [
        (True, "127.0.0.1", "127.0.0.1", 200),
        (True, "0:0:0:0:0:0:0:1", "::1", 200),
        (True, "127.0.0.1", "::1", 403),
        (False, "10.0.0.9", "127.0.0.1", 200),
        (False, "fd00::9", "127.0.0.1", 200),
    ],
)
async def test_a_pod_has_the_address_of_either_family(
    checked: bool, ip: str, comes_by: str, status: int
) -> None:
    """On a port of both, which sees IPv4 mapped. Where the check is off, the token alone says who it is."""
    if comes_by == "::1":
        needs_ipv6()
    harness = Harness(check_peer=checked)
    _, port = await harness.server.start("::", 0)
    harness.url = f"http://[{comes_by}]:{port}" if ":" in comes_by else f"http://{comes_by}:{port}"
    live = pod(ip=ip, **{"penstock.dev/backend": "m"})
    live["metadata"]["resourceVersion"] = "2"
    harness.store.put(live)
    async with aiohttp.ClientSession() as harness.session:
        assert (await harness.post(sidecar()))[0] == status
        other = await harness.post(sidecar(pod="m-2", uid="uid-2"))
    assert (other[0], other[1]["reason"]) == (403, "other_pod" if status == 200 else "wrong_peer")
    await harness.server.stop()


async def test_a_deleted_pod_is_refused_although_its_verdict_is_kept(server: Harness) -> None:
    """The verdict counts only while the pod is in the store."""
    assert (await server.post(sidecar()))[0] == 200
    server.store.remove(pod() | {"metadata": {**pod()["metadata"], "resourceVersion": "7"}})
    status, answer = await server.post(sidecar(2))
    assert (status, answer["reason"]) == (403, "unknown_pod")


async def test_a_sidecar_does_not_speak_as_a_router_nor_the_other_way(server: Harness) -> None:
    """The pod's own labels say what it is."""
    report = encode(RouterReport(pod="m-1", uid="uid-1", seq=1, state="ready"))
    assert (await server.post(report, kind="router"))[1]["reason"] == "wrong_role"
    server.status = verdict(name="r-1", uid="uid-r")
    own = encode(RouterReport(pod="r-1", uid="uid-r", seq=1, state="ready"))
    status, answer = await server.post(own, kind="router", bearer=token(mark="r"))
    assert (status, answer["routers"]) == (200, [])
    assert (await server.post(sidecar(pod="r-1", uid="uid-r"), bearer=token(mark="r")))[1][
        "reason"
    ] == "wrong_role"


async def test_a_router_gets_shared_settings_once_by_their_name_or_as_an_older_one_by_their_bytes(
    server: Harness,
) -> None:
    made = TenantSettings()
    server.made["n", "penstock-router-settings"] = made
    server.status = verdict(name="r-1", uid="uid-r")
    sent: list[tuple[str, str]] = []
    for seq, port in enumerate((1, 1, 2, 2), 1):
        made.update({"a": encode_tenant(Tenant(port=port, endpoints=()))}, reported=0)
        for changes in (False, True):
            known = dict(sent).get(f"{changes}", "")
            report = RouterReport(
                pod="r-1",
                uid="uid-r",
                seq=2 * seq + changes,
                state="ready",
                settings_digest=known,
                changes=changes,
            )
            server.clock.turn(1)
            status, answer = await server.post(encode(report), kind="router", bearer=token(mark="r"))
            assert status == 200
            news = answer.get("settings")
            assert (news is None) == (seq % 2 == 0)
            if news is not None:
                assert ("base" in news) == (changes and seq == 3)
                sent.append((f"{changes}", made.digest if changes else digest_of(made.document)))


async def test_a_namespaces_router_gets_the_changed_endpoints_and_an_older_one_all(server: Harness) -> None:
    server.status = verdict(name="r-1", uid="uid-r")
    made, names = None, {True: "", False: ""}
    for seq, port in enumerate((1, 2, 3), 1):
        last, endpoints = made, (Endpoint(name="e", port=port), Endpoint(name="f", port=9))
        made = next_version(for_router(endpoints), made=last, recorded=None, status_version=0, reported=0)
        server.made["n", "penstock-router-settings"] = made = made.following(last)
        for changes, known in names.items():
            report = RouterReport(
                pod="r-1", uid="uid-r", seq=2 * seq + changes, state="ready", settings_digest=known,
                changes=changes,
            )  # fmt: skip
            server.clock.turn(1)
            _, answer = await server.post(encode(report), kind="router", bearer=token(mark="r"))
            sent = [each["name"] for each in answer["settings"]["endpoints"]]
            assert sent == (["e"] if changes and seq > 1 else ["e", "f"])
            names[changes] = made.digest


@pytest.mark.parametrize("checked", [True, False])
async def test_a_sidecar_learns_the_addresses_of_its_namespaces_routers(checked: bool) -> None:
    """Of both families, while they report; unless addresses mean nothing, since a hop replaces them."""
    harness = Harness(check_peer=checked)
    _, port = await harness.server.start("127.0.0.1", 0)
    harness.url = f"http://127.0.0.1:{port}"
    router = pod("r-1", "uid-r", app="penstock-router")
    router["metadata"]["resourceVersion"] = "2"
    router["status"]["podIPs"].append({"ip": "fd00::7"})
    harness.store.put(router)
    async with aiohttp.ClientSession() as harness.session:
        assert (await harness.post(sidecar()))[1]["routers"] == []
        harness.status = verdict(name="r-1", uid="uid-r")
        report = encode(RouterReport(pod="r-1", uid="uid-r", seq=1, state="ready"))
        assert (await harness.post(report, kind="router", bearer=token(mark="r")))[0] == 200
        known = ["127.0.0.1", "fd00::7"] if checked else []
        assert (await harness.post(sidecar(2)))[1]["routers"] == known
        harness.clock.turn(61.0)
        harness.status = verdict()
        assert (await harness.post(sidecar(3)))[1]["routers"] == []
    await harness.server.stop()


@pytest.mark.parametrize(
    ("whose", "answer"),
    [("e", json.loads(DOCUMENT)), ("f", None), ("", "wrong_role")],
)
async def test_an_endpoints_own_router_gets_its_own_settings(
    server: Harness, whose: str, answer: Any
) -> None:
    """And its report counts for it only; a pod that claims no endpoint of its own belongs to none."""
    for name in ("e", "f"):
        server.store.put(parent(name) | {"kind": "ModelEndpoint"})
    server.made["n", "e-dedicated-router-settings"] = MADE
    own = {"penstock.dev/endpoint": whose} if whose else {}
    server.store.put(pod("d-1", "uid-d", app="penstock-dedicated-router", **own))
    server.status = verdict(name="d-1", uid="uid-d")
    report = encode(RouterReport(pod="d-1", uid="uid-d", seq=1, state="ready"))
    status, document = await server.post(report, kind="router", bearer=token(mark="d"))
    if answer == "wrong_role":
        assert (status, document["reason"]) == (403, answer)
        return
    assert status == 200
    assert document.get("settings") == answer
    assert list(server.reports.of_router("n", whose)) == ["d-1"]
    assert server.reports.of_router("n") == {}


async def test_an_injected_pod_gets_the_settings_of_the_policy_that_it_names(server: Harness) -> None:
    """Its report counts for its workload, whose name no backend can have; it is no router."""
    server.made["n", "p-batching"] = MADE
    plain = pod("i-1", "uid-i")
    plain["metadata"]["labels"] = {"app.kubernetes.io/name": "penstock-backend", "penstock.dev/inject": "p"}
    plain["metadata"]["ownerReferences"] = [
        {"kind": "StatefulSet", "name": "i", "uid": "uid-s", "controller": True}
    ]
    server.store.put(plain)
    server.status = verdict(name="i-1", uid="uid-i")
    report = sidecar(pod="i-1", uid="uid-i", settings_version=0)
    status, answer = await server.post(report, bearer=token(mark="i"))
    assert (status, answer["settings"]) == (200, json.loads(DOCUMENT))
    assert server.reported == [("n", "StatefulSet/i", True)]
    assert list(server.reports.of_backend("n", "StatefulSet/i")) == ["i-1"]
    claim = encode(RouterReport(pod="i-1", uid="uid-i", seq=1, state="ready"))
    assert (await server.post(claim, kind="router", bearer=token(mark="i")))[1]["reason"] == "wrong_role"


async def test_a_refusal_is_kept_for_a_while(server: Harness) -> None:
    """A pod with a bad token costs a TokenReview every ten seconds."""
    server.status = verdict(authenticated=False)
    for _ in range(5):
        await server.post(sidecar())
    assert len(server.reviews) == 1
    server.clock.turn(11)
    server.status = verdict()
    assert (await server.post(sidecar()))[0] == 200


@pytest.mark.parametrize("error", [Unavailable(500, "induced"), Rejected(403, "forbidden")])
async def test_an_apiserver_that_cannot_review_is_told_as_503(server: Harness, error: Exception) -> None:
    """The reporter tries again; nothing is remembered."""

    def fail(*_: str) -> None:
        raise error

    server.cluster.fail = fail
    assert (await server.post(sidecar()))[0] == 503
    server.cluster.fail = lambda *_: None
    assert (await server.post(sidecar()))[0] == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "bad_report"), (b"[1]", "bad_report"), (b"\xff{}", "bad_report"),
        (b'{"pod":"m-1","uid":"uid-1","seq":1,"state":"ready"}', "bad_report"),
        (b'{"v":2,"pod":"m-1","uid":"uid-1","seq":1,"state":"ready"}', "bad_report"),
        (b'{"v":"1","pod":"m-1","uid":"uid-1","seq":1,"state":"ready"}', "bad_report"),
        (b'{"v":1,"pod":"m-1"}', "bad_report"), (sidecar(state="well"), "bad_report"),
        (sidecar(seq="1"), "bad_report"), (sidecar(items=[1]), "bad_report"),
        (b'{"v":1,"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}", "bad_report"),
        (b"x" * (MAX_SIDECAR_REPORT + 1), "too_large"),
        (sidecar(pod="m-2"), "other_pod"), (sidecar(uid="uid-2"), "other_pod"),
    ],
    ids=["empty", "list", "not-utf8", "no-version", "old-version", "version-text", "members", "state", "seq",
         "items", "deep", "large", "pod", "uid"],
)  # fmt: skip
async def test_bad_reports_are_refused(server: Harness, body: bytes, reason: str) -> None:
    """From a pod that was let in: each with its word, and nothing changes."""
    status, answer = await server.post(body)
    assert (status, answer["reason"]) == ({"too_large": 413, "other_pod": 403}.get(reason, 400), reason)
    assert server.reported == []
    assert (await server.post(sidecar()))[0] == 200, "the next one is taken"


async def test_of_a_stranger_nothing_is_read(server: Harness) -> None:
    """Not a byte of its body: who it is comes first."""
    server.status = verdict(authenticated=False)
    body = b"x" * (MAX_ROUTER_REPORT + 1)
    assert (await server.post(body, kind="router"))[1]["reason"] == "bad_token"
    assert (await server.post(b"{", kind="router"))[1]["reason"] == "bad_token"


async def test_a_body_without_a_length_is_read_no_further_than_it_may_be(server: Harness) -> None:
    """Chunks count as they come."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * (MAX_SIDECAR_REPORT // 4)

    headers = {"Authorization": f"Bearer {token()}"}
    async with server.session.post(f"{server.url}/reports/sidecar", data=chunks(), headers=headers) as answer:
        assert (answer.status, (await answer.json(content_type=None))["reason"]) == (413, "too_large")


async def test_a_router_with_ten_thousand_endpoints_is_heard(server: Harness) -> None:
    """As many as there are ports for; so large a report comes less often, and speaks for longer."""
    totals = BackendTotals(requests=10**9, codes={"200": 10**9, "503": 10**6}, retries=9)
    backends = {f"{'b' * 48}-{n}": totals for n in range(2)}
    endpoints = {f"{'e' * 45}{n}": EndpointReport(listening=True, backends=backends) for n in range(10_000)}
    body = encode(RouterReport(pod="r-1", uid="uid-r", seq=1, state="ready", endpoints=endpoints))
    assert len(body) > 3 * 1024 * 1024
    for name in endpoints:
        server.store.put(parent(name, name) | {"kind": "ModelEndpoint"})
    server.status = verdict(name="r-1", uid="uid-r")
    status, answer = await server.post(body, kind="router")
    assert status == 200
    assert answer["nextReportMs"] == pytest.approx(len(body) / 524.288, abs=1)
    server.clock.turn(2.4 * answer["nextReportMs"] / 1000)
    assert server.reports.of_router("n")["r-1"].endpoints.keys() == endpoints.keys()


async def test_routers_report_oftener_within_what_is_taken_of_a_pod(server: Harness) -> None:
    """So new weights are in all of them within a second; they too report less often while it is busy."""
    server.status = verdict(name="r-1", uid="uid-r")
    intervals = []
    for number, server.interval in enumerate((1.0, 8.0)):
        body = encode(RouterReport(pod="r-1", uid="uid-r", seq=number + 1, state="ready"))
        intervals.append((await server.post(body, kind="router"))[1]["nextReportMs"])
    assert intervals == [600, 4800]
    assert 1000 / intervals[0] < PER_SECOND


async def test_the_answer_lengthens_the_interval_and_a_pod_is_silent_only_after_more(server: Harness) -> None:
    """A pod that was asked to report in 8 s is not missed after 10; once asked for 1 s again, it is."""
    server.interval = 8.0
    assert (await server.post(sidecar(1)))[1]["nextReportMs"] == 8000
    server.clock.turn(19)
    assert "m-1" in server.reports.of_backend("n", "m")
    assert server.reports.window("n", "m").load(server.clock.time(), 8) is not None
    server.clock.turn(2)
    assert server.reports.of_backend("n", "m") == {}
    server.interval = 1.0
    await server.post(sidecar(2))
    server.clock.turn(11)
    assert server.reports.of_backend("n", "m") == {}


async def test_who_knows_other_authorities_is_told_ours(server: Harness) -> None:
    """By name; a reporter that names none speaks plain text and needs none."""
    assert (await server.post(sidecar(1)))[1]["authorities"] is None
    server.server.send_authorities(b"PEM")
    answer = (await server.post(sidecar(2), **{"x-penstock-authorities": "other"}))[1]["authorities"]
    assert answer == "PEM"
    knows = {"x-penstock-authorities": digest(b"PEM")}
    assert (await server.post(sidecar(3), **knows))[1]["authorities"] is None
    assert (await server.post(sidecar(4)))[1]["authorities"] is None


async def test_clocks_do_not_matter(server: Harness) -> None:
    """A report carries no time, and a token that the apiserver accepts is good, whatever our clock says."""
    for seq, expires in enumerate((-1e9, 0.0, 1e12), 1):
        assert (await server.post(sidecar(seq), bearer=token(expires)))[0] == 200


async def test_plain_text_is_taken_without_tls_alone() -> None:
    """Else the answer says what to do."""
    for plain, expected in ((True, 200), (False, 403)):
        harness = Harness(plain=plain)
        host, port = await harness.server.start("127.0.0.1", 0)
        harness.url = harness.pages = f"http://{host}:{port}"
        async with aiohttp.ClientSession() as harness.session:
            status, answer = await harness.post(sidecar())
            assert (status, answer.get("reason")) == (expected, None if plain else "plain_text")
        await harness.server.stop()


async def test_a_standby_refuses_reports_and_is_ready(server: Harness) -> None:
    """Who does not lead takes no report, or the leader would miss it."""
    server.leads = False
    assert (await server.post(sidecar()))[1]["reason"] == "standby"
    assert (await server.page("/readyz"))[0] == 200


async def test_other_paths_and_methods_are_not_there(server: Harness) -> None:
    """Nothing but what is listed; the port that speaks TLS has reports alone."""
    expected = 404 if server.url != server.pages else 200
    async with server.session.get(f"{server.url}/metrics") as answer:
        assert answer.status == expected
    for method, path in (("GET", "/reports/sidecar"), ("POST", "/reports"), ("POST", "/livez"), ("PUT", "/")):
        async with server.session.request(method, server.url + path, data=b"{}") as answer:
            assert answer.status == 404
    async with server.session.head(f"{server.pages}/livez") as answer:
        assert answer.status == 200


async def test_other_scalers_get_the_recommendation_as_json(server: Harness) -> None:
    """A number where there is one; else an error, never a 0."""
    path, key = "/recommendation/n/m", ObjectKey("ModelBackend", "n", "m")
    assert (await server.page(path))[0] == 404
    server.scaled[key] = Scaled()
    assert (await server.page(path))[0] == 404
    server.scaled[key].recommendation = Recommendation(
        replicas=3, current=2, verdict="Scale", message="load 25 / targetLoad 10 = 3",
        inputs=ScalingInputs(load=25, target_load=10, wanted=3), metrics_available=True,
    )  # fmt: skip
    status, text = await server.page(path)
    assert (status, json.loads(text) | {"inputs": {}}) == (
        200,
        {
            "desiredReplicas": 3, "replicas": 2, "verdict": "Scale", "message": "load 25 / targetLoad 10 = 3",
            "metricsAvailable": True, "inputs": {},
        },
    )  # fmt: skip
    assert json.loads(text)["inputs"]["targetLoad"] == 10
    for wrong in ("/recommendation/n", "/recommendation/n/m/x", "/recommendation/", "/recommendation/x/m"):
        status, text = await server.page(wrong)
        assert (status, json.loads(text)["reason"]) == (404, "no_recommendation")
        assert wrong in json.loads(text)["detail"]
    server.leads = False
    assert (await server.page(path))[0] == 503


async def test_health_and_metrics(server: Harness) -> None:
    """/livez follows what is wrong; /metrics counts reports."""
    await server.post(sidecar())
    assert await server.page("/livez") == (200, "ok\n")
    server.wrong = "induced"
    assert await server.page("/livez") == (500, "induced\n")
    status, text = await server.page("/metrics")
    assert status == 200
    assert 'penstock_operator_reports_total{kind="sidecar",outcome="taken"} 1.0' in text


async def test_a_straggler_changes_nothing_and_a_restarted_container_counts(server: Harness) -> None:
    """Sequence numbers order the reports of one process; a restart begins anew."""
    await server.post(sidecar(5, items=Items(queued=5)))
    await server.post(sidecar(4, items=Items(queued=4)))
    assert server.reports.of_backend("n", "m")["m-1"].items.queued == 5
    await server.post(sidecar(1, items=Items(queued=1)))
    assert server.reports.of_backend("n", "m")["m-1"].items.queued == 1


async def test_only_news_is_notable(server: Harness) -> None:
    """A report that repeats the last one starts no work; a new state, version or silence does."""
    for seq, changes in enumerate([{}, {}, {"state": "draining"}, {"settings_version": 5}, {}], 1):
        base = {"settings_version": 4} if seq < 3 else {"state": "draining"}
        await server.post(sidecar(seq, **(base | changes)))
    assert [notable for _, _, notable in server.reported] == [True, False, True, True, True]
    server.clock.turn(FRESH + 1)
    assert server.reports.of_backend("n", "m") == {}
    await server.post(sidecar(6, state="draining"))
    assert server.reported[-1][2] is True
