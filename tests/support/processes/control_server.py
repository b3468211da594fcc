"""A real control server on loopback, with a cluster in memory behind it, and what pods send it."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import aiohttp

from penstock_operator.clock import Clock
from penstock_operator.control.auth import ReportAuthenticator
from penstock_operator.control.recommendation import Recommendations
from penstock_operator.control.server import ControlServer
from penstock_operator.desired.settings import Versioned
from penstock_operator.metrics import Metrics
from penstock_operator.reconcile.context import Scaled
from penstock_operator.reports import Reports
from penstock_operator.store import ObjectKey, Store
from penstock_wire.control.documents import digest
from penstock_wire.control.report import SidecarReport, encode
from tests.support.clocks.hand_clock import HandClock
from tests.support.worlds.memory_cluster import MemoryCluster

DOCUMENT = b'{"v":1,"version":4,"backend":"m","batching":{"maxBatchSize":8}}'
MADE = Versioned(version=4, document=DOCUMENT, digest=digest(DOCUMENT), changed=False)


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
    """The server and all that it stands on.

    Args:
        clock: what it runs on; None for `clock`, which the test turns.
        reporters: most connections that the reports' port takes.
    """

    def __init__(
        self, *, plain: bool = True, check_peer: bool = True, clock: Clock | None = None, reporters: int = 100
    ) -> None:
        self.cluster, self.store, self.clock = MemoryCluster(), Store(), HandClock()
        used = clock or self.clock
        self.reports = Reports(used)
        self.reported: list[tuple[str, str, bool]] = []
        self.leads = True
        self.interval = 1.0
        self.wrong: str | None = None
        self.status: dict[str, Any] = verdict()
        self.reviews: list[dict[str, Any]] = []
        self.metrics = Metrics()
        self.scaled: dict[ObjectKey, Scaled] = {}
        self.cluster.answer["TokenReview"] = self._review
        self.store.put(pod(**{"penstock.dev/backend": "m"}))
        self.store.put(pod("r-1", "uid-r", app="penstock-router"))
        self.store.put(parent("m"))
        self.made = {("n", "m-backend-settings"): MADE}
        self.server = ControlServer(
            authenticator=ReportAuthenticator(self.cluster, self.store, used, check_peer=check_peer),
            reports=self.reports,
            store=self.store,
            settings=lambda namespace, name: self.made.get((namespace, name)),
            clock=used,
            reported=lambda *news: self.reported.append(news),
            leads=lambda: self.leads,
            interval=lambda: self.interval,
            plain=plain,
            own_addresses=check_peer,
            reporters=reporters,
            observer=self.metrics,
            metrics=self.metrics.text,
            recommendation=Recommendations(self.scaled).answer,
            alive=lambda: self.wrong,
        )
        self.url = ""
        """The URL of reports."""
        self.pages = ""
        """The URL of metrics and health."""
        self.session: aiohttp.ClientSession

    def _review(self, review: dict[str, Any]) -> dict[str, Any]:
        self.reviews.append(review)
        return review | {"status": self.status}

    async def post(
        self, body: bytes, *, kind: str = "sidecar", bearer: str | None = token(), **headers: str
    ) -> tuple[int, dict[str, Any]]:
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        sent, url = io.BytesIO(body), f"{self.url}/reports/{kind}"
        async with self.session.post(url, data=sent, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def page(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.pages + path) as answer:
            return answer.status, await answer.text()


def sidecar(seq: int = 1, **changes: Any) -> bytes:
    """A report of pod m-1."""
    words: dict[str, Any] = {
        "pod": "m-1",
        "uid": "uid-1",
        "seq": seq,
        "state": "ready",
        "settings_version": 4,
    }
    return encode(SidecarReport(**(words | changes)))
