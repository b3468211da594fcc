"""Reports are taken only from the pod they speak for; the answer carries newer settings."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from penstock_operator.control.auth import Caller, Gate
from penstock_operator.control.reports import FRESH, Reports
from penstock_operator.control.server import KEEP_VERSIONS, MAX_REPORT, ControlServer
from penstock_operator.errors import Rejected, Unavailable
from penstock_operator.metrics import Metrics
from penstock_operator.store import Store
from penstock_wire.report import EndpointReport, Items, RouterReport, SidecarReport, encode
from tests.support.hand_clock import HandClock
from tests.support.memory_cluster import MemoryCluster

DOCUMENT = b'{"v":1,"version":4,"backend":"m","batching":{"maxBatchSize":8}}'


def pod(
    name: str = "m-1", uid: str = "uid-1", ip: str = "127.0.0.1", app: str = "penstock-backend", **labels: str
) -> dict[str, Any]:
    own = {"app.kubernetes.io/managed-by": "penstock", "app.kubernetes.io/name": app, **labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": "1", "labels": own},
        "status": {"podIP": ip, "podIPs": [{"ip": ip}]},
    }


def parent(name: str, uid: str = "b") -> dict[str, Any]:
    metadata = {"namespace": "n", "name": name, "uid": uid, "resourceVersion": "1"}
    return {"kind": "ModelBackend", "metadata": metadata}


def record(backend: str, owner: str = "b", version: int = 1) -> dict[str, Any]:
    """The settings' ConfigMap of a backend."""
    refs = [{"kind": "ModelBackend", "name": backend, "uid": owner}]
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "n", "name": f"{backend}-backend-settings", "uid": f"c-{backend}",
            "resourceVersion": str(version), "ownerReferences": refs,
        },
        "data": {"settings.json": DOCUMENT.decode()},
    }  # fmt: skip


def token(expires: float = 1e12, mark: str = "a") -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires, "jti": mark}).encode()).decode().rstrip("=")
    return f"e30.{claims}.sig"


def verdict(
    *,
    authenticated: bool = True,
    audiences: tuple[str, ...] = ("penstock-operator",),
    namespace: str = "n",
    name: str = "m-1",
    uid: str = "uid-1",
    username: str | None = None,
    bound: bool = True,
) -> dict[str, Any]:
    extra = {"authentication.kubernetes.io/pod-name": [name], "authentication.kubernetes.io/pod-uid": [uid]}
    return {
        "authenticated": authenticated,
        "audiences": list(audiences),
        "user": {
            "username": username or f"system:serviceaccount:{namespace}:m-backend",
            "extra": extra if bound else {},
        },
    }


class Harness:
    """A real server on loopback, with a cluster in memory behind it."""

    def __init__(self) -> None:
        self.cluster, self.store, self.clock = MemoryCluster(), Store(), HandClock()
        self.reports = Reports(self.clock)
        self.heard: list[tuple[str, str, bool]] = []
        self.leads = True
        self.wrong: str | None = None
        self.status: dict[str, Any] = verdict()
        self.reviews: list[dict[str, Any]] = []
        self.metrics = Metrics()
        self.cluster.answer["TokenReview"] = self._review
        self.store.put(pod(**{"penstock.dev/backend": "m"}))
        self.store.put(pod("r-1", "uid-r", app="penstock-router"))
        self.store.put(parent("m"))
        self.store.put(record("m"))
        self.server = ControlServer(
            gate=Gate(self.cluster, self.store, self.clock),
            reports=self.reports,
            store=self.store,
            reported=lambda *news: self.heard.append(news),
            leads=lambda: self.leads,
            observer=self.metrics,
            metrics=self.metrics.text,
            alive=lambda: self.wrong,
        )
        self.url = ""
        self.session: aiohttp.ClientSession

    def _review(self, review: dict[str, Any]) -> dict[str, Any]:
        self.reviews.append(review)
        return review | {"status": self.status}

    async def post(
        self, body: bytes, *, kind: str = "sidecar", bearer: str | None = token(), **headers: str
    ) -> tuple[int, dict[str, Any]]:
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        async with self.session.post(f"{self.url}/reports/{kind}", data=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def page(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.text()


def sidecar(seq: int = 1, **changes: Any) -> bytes:
    words: dict[str, Any] = {
        "pod": "m-1",
        "uid": "uid-1",
        "seq": seq,
        "state": "ready",
        "settings_version": 4,
    }
    return encode(SidecarReport(**(words | changes)))


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    harness = Harness()
    host, port = await harness.server.start("127.0.0.1", 0)
    harness.url = f"http://{host}:{port}"
    async with aiohttp.ClientSession() as harness.session:
        yield harness
    await harness.server.stop()


async def test_a_report_of_the_right_pod_is_taken(server: Harness) -> None:
    """It is asked of the apiserver with our audience, kept, told, and answered without settings it has."""
    status, answer = await server.post(sidecar(items=Items(queued=3, ongoing=2)))
    assert (status, answer) == (200, {"v": 1, "nextReportMs": 1000, "settings": None})
    assert server.reviews[0]["spec"] == {"token": token(), "audiences": ["penstock-operator"]}
    assert server.heard == [("n", "m", True)]
    assert server.reports.of_backend("n", "m")["m-1"].items.queued == 3


async def test_a_reporter_that_is_behind_gets_the_record(server: Harness) -> None:
    """The answer carries the ConfigMap's own document."""
    status, answer = await server.post(sidecar(settings_version=3))
    assert status == 200
    assert answer["settings"] == json.loads(DOCUMENT)


@pytest.mark.parametrize("owner", ["deleted", "nobody"])
async def test_the_record_of_a_namesake_or_a_stranger_tells_nobody(server: Harness, owner: str) -> None:
    """A backend was deleted and made again: what its ConfigMap still says is not its word."""
    live = record("m", owner, version=2)
    if owner == "nobody":
        del live["metadata"]["ownerReferences"]
    server.store.put(live)
    status, answer = await server.post(sidecar(settings_version=3))
    assert (status, answer["settings"]) == (200, None)
    server.store.put(record("m", version=3))
    assert (await server.post(sidecar(2, settings_version=3)))[1]["settings"] == json.loads(DOCUMENT)


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
    ("another uid", {"status": verdict(uid="uid-9")}, 403, "other_pod"),
    ("not bound to a pod", {"status": verdict(bound=False)}, 403, "unbound_token"),
    ("not a service account", {"status": verdict(username="admin")}, 403, "unbound_token"),
    ("another namespace", {"status": verdict(namespace="other")}, 403, "unknown_pod"),
]


@pytest.mark.parametrize(("name", "setup", "status", "reason"), REFUSALS, ids=[row[0] for row in REFUSALS])
async def test_refusals(server: Harness, name: str, setup: dict[str, Any], status: int, reason: str) -> None:
    """Every report that is not the pod's own is refused with a word, and changes nothing."""
    server.status = setup["status"]
    found, answer = await server.post(sidecar())
    assert (found, answer["reason"]) == (status, reason)
    assert server.heard == []
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
    assert (await server.post(own, kind="router", bearer=token(mark="r")))[0] == 200
    assert (await server.post(sidecar(pod="r-1", uid="uid-r"), bearer=token(mark="r")))[1][
        "reason"
    ] == "wrong_role"


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
    ("body", "status", "reason"),
    [
        (b"", 400, "bad_report"), (b"[1]", 400, "bad_report"), (b'{"v":2}', 400, "bad_report"),
        (b'{"v":1,"pod":"m-1"}', 400, "bad_report"), (b"x" * (MAX_REPORT + 1), 413, "too_large"),
    ],
    ids=["empty", "list", "version", "members", "large"],
)  # fmt: skip
async def test_bad_reports_are_refused(server: Harness, body: bytes, status: int, reason: str) -> None:
    """Before a token is looked at."""
    found, answer = await server.post(body)
    assert (found, answer["reason"]) == (status, reason)
    assert server.reviews == []


async def test_a_standby_refuses_reports_and_is_ready(server: Harness) -> None:
    """Who does not lead takes no report, or the leader would miss it."""
    server.leads = False
    assert (await server.post(sidecar()))[1]["reason"] == "standby"
    assert (await server.page("/readyz"))[0] == 200


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
    """A report that repeats the last one wakes nobody; a new state, version or silence does."""
    for seq, changes in enumerate([{}, {}, {"state": "draining"}, {"settings_version": 5}, {}], 1):
        base = {"settings_version": 4} if seq < 3 else {"state": "draining"}
        await server.post(sidecar(seq, **(base | changes)))
    assert [notable for _, _, notable in server.heard] == [True, False, True, True, True]
    server.clock.turn(FRESH + 1)
    assert server.reports.of_backend("n", "m") == {}
    await server.post(sidecar(6, state="draining"))
    assert server.heard[-1][2] is True


def test_pods_that_fall_silent_are_named_once() -> None:
    """Silence is noticed when it begins."""
    clock = HandClock()
    reports = Reports(clock)
    reports.sidecar("n", "m", SidecarReport(pod="m-1", uid="u", seq=1, state="ready"))
    reports.router(
        "n", RouterReport(pod="r", uid="r", seq=1, state="ready", endpoints={"e": EndpointReport()})
    )
    looked, named = clock.time(), []
    for _ in range(12):
        clock.turn(2)
        named += reports.silent(looked)
        looked = clock.time()
    assert sorted(named) == [("n", ""), ("n", "m")]


def test_nonsense_versions_do_not_count() -> None:
    """A pod cannot drive the version to where integers end."""
    reports = Reports(HandClock())
    reports.sidecar("n", "m", SidecarReport(pod="m-1", uid="u", seq=1, state="ready", settings_version=2**60))
    reports.sidecar("n", "m", SidecarReport(pod="m-2", uid="v", seq=1, state="ready", settings_version=7))
    assert reports.highest_version(reports.of_backend("n", "m")) == 7


async def test_settings_of_deleted_backends_are_not_kept(server: Harness) -> None:
    """Backends come and go for weeks under new names: what was read of their records goes with them."""
    for number in range(3 * KEEP_VERSIONS):
        name = f"s-{number}"
        live, owner = record(name, owner=f"u-{number}"), parent(name, uid=f"u-{number}")
        server.store.put(owner)
        server.store.put(live)
        caller = Caller(namespace="n", backend=name)
        assert server.server._told(caller, live["metadata"]["name"]) is not None
        server.store.remove(live)
        server.store.remove(owner)
    assert len(server.server._versions) <= KEEP_VERSIONS
