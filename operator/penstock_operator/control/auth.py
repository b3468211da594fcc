"""Authenticates reports: a pod reports on itself only, with a token that the apiserver confirms.

A projected token names its pod. The apiserver checks the signature, the audience, the expiry and that the pod
still exists (TokenReview). The operator checks the rest: the report must be the named pod's, the pod must
exist and be rendered by Penstock, or ask for a sidecar by its label, and the connection must come from its
address (unless that check is off).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import ipaddress
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from penstock_operator import injected
from penstock_operator.clock import Clock
from penstock_operator.control.rate_limit import SHARED_BURST, SHARED_PER_SECOND, RateLimit
from penstock_operator.desired import labels, names
from penstock_operator.errors import ClusterError, ReportRefused
from penstock_operator.fair_turns import FairTurns
from penstock_operator.kinds import POD, TOKEN_REVIEW
from penstock_operator.kube.cluster import Cluster, Obj
from penstock_operator.store import Store

KEEP_YES = 60.0
"""Seconds for which a positive verdict is kept; never beyond the token's expiry. It is of the token alone: at
each report the store must have the pod."""

KEEP_LONGEST = 300.0
REVIEWS_PER_SECOND = 50.0
"""With so many pods that they would cause more TokenReviews, verdicts are kept for longer, up to this."""

REVIEWS_AT_ONCE = 16
"""TokenReviews under way: when an operator starts, those of thousands of pods must not hold all connections
to the apiserver. The others wait; the namespaces of their pods take turns."""

REVIEW_PATIENCE = 2.0
"""Seconds that a report waits for its TokenReview before it is refused. The review goes on: the pod, whose
connection stays, gets its answer with its next report."""

KEEP_SKEWED = 2.0
"""Seconds for which a positive verdict is kept if the token has expired by our clock, which may be wrong."""

KEEP_NO = 10.0
"""Seconds for which a negative verdict is kept, so that a broken pod does not cost a TokenReview a second."""

MAX_TOKEN = 16 * 1024
MAX_VERDICTS = 60_000
"""The most verdicts that are kept: one of each pod that may report, and of tokens that pods have replaced.
Beyond it the negative ones go first: any client can cause those."""

FEW_VERDICTS = 1024
"""Verdicts among which none is looked for that has ended."""

_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_PREFIX = "system:serviceaccount:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The pod that a token identifies.

    Args:
        namespace: the service account's, which is the pod's.
        pod: name of the pod the token is bound to.
        uid: its uid.
    """

    namespace: str
    pod: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated pod.

    Args:
        namespace: its namespace.
        pod: its name.
        uid: its uid.
        backend: the sidecar's backend, or the workload that it was injected into; empty for a router.
        record: name of the ConfigMap with its settings.
        endpoint: the endpoint of a router that serves only one; else empty.
        shared: whether it is a router that serves several namespaces.
    """

    namespace: str
    pod: str
    uid: str
    backend: str
    record: str
    endpoint: str = ""
    shared: bool = False

    def check(self, *, pod: str, uid: str) -> None:
        """Check that a report is about the caller itself.

        Args:
            pod: name of the pod in the report.
            uid: uid of the pod in the report.

        Raises:
            ReportRefused: it is not.
        """
        if (self.pod, self.uid) != (pod, uid):
            raise ReportRefused(403, "other_pod", f"the token is of pod {self.pod}, the report of {pod}")


class ReportAuthenticator:
    """Identifies the Penstock pod that sends a report.

    Args:
        cluster: reviews tokens.
        store: has the pods.
        clock: time.
        audience: the required audience of tokens.
        check_peer: whether a pod's requests must come from its own address; off if a hop on the way replaces
            the address, possibly by one for all pods.
        limit: the rate at which an address may cause TokenReviews; None for the default.
        waiting: the most TokenReviews that wait, at least one for each connection that may report; beyond it
            the namespace with most of them loses its oldest.
        home: the operator's namespace: routers that serve several namespaces are there.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        clock: Clock,
        *,
        audience: str = "penstock-operator",
        check_peer: bool = True,
        limit: RateLimit | None = None,
        waiting: int = 40_000,
        home: str = "",
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._audience = audience
        self._check_peer = check_peer
        self._home = home
        if limit is None and not check_peer:
            limit = RateLimit(clock, burst=SHARED_BURST, per_second=SHARED_PER_SECOND)
        self._limit = limit or RateLimit(clock)
        self._verdicts: dict[bytes, tuple[float, Identity | ReportRefused]] = {}
        self._sweep_at = FEW_VERDICTS
        """Verdicts at which those that have ended are removed."""
        self._running: dict[bytes, asyncio.Task[Identity]] = {}
        self._places = REVIEWS_AT_ONCE
        """How many more reviews may be under way."""
        self._most_waiting = waiting
        self._waiting = FairTurns[asyncio.Future[None]]()

    async def authenticate(self, *, authorization: str | None, peer: str | None, router: bool) -> Caller:
        """Identify the Penstock pod that sends a request, before its body is read.

        Args:
            authorization: the request's header of that name.
            peer: the connection's remote address.
            router: whether it claims to be a router's.

        Raises:
            ReportRefused: it is not from a Penstock pod of this kind.
        """
        token = _bearer(authorization)
        mark = _mark(token)
        identity = self._known(mark)
        if identity is None:
            identity = await self._ask(token, mark, peer or "")
        return self._caller(identity, peer=peer, router=router)

    def authenticate_cached(
        self, *, authorization: str | None, peer: str | None, router: bool
    ) -> Caller | None:
        """Authenticate without waiting: None if the apiserver has to be asked first.

        Args:
            authorization: as for `authenticate`.
            peer: as for `authenticate`.
            router: as for `authenticate`.

        Raises:
            ReportRefused: as for `authenticate`.
        """
        identity = self._known(_mark(_bearer(authorization)))
        return None if identity is None else self._caller(identity, peer=peer, router=router)

    def _caller(self, identity: Identity, *, peer: str | None, router: bool) -> Caller:
        pod, uid = identity.pod, identity.uid
        live = self._store.get(POD, identity.namespace, pod)
        if live is None or live["metadata"].get("uid") != uid:
            raise ReportRefused(
                403, "unknown_pod", f"there is no pod {identity.namespace}/{pod} with that uid"
            )
        own = live["metadata"].get("labels") or {}
        policy = "" if router else injected.policy_of(live)
        roles: tuple[str, ...] = (labels.APP_BACKEND,)
        if router:
            roles = (labels.APP_ROUTER, labels.APP_DEDICATED_ROUTER)
        if router and identity.namespace == self._home:
            roles = (*roles, labels.APP_SHARED_ROUTER)
        role = own.get(labels.APP_NAME)
        endpoint = own.get(labels.ENDPOINT, "") if role == labels.APP_DEDICATED_ROUTER else ""
        nobodys = role == labels.APP_DEDICATED_ROUTER and not endpoint
        rendered = own.get(labels.MANAGED_BY) == labels.MANAGED and role in roles and not nobodys
        if not rendered and not policy:
            raise ReportRefused(
                403, "wrong_role", f"pod {identity.namespace}/{pod} is not a {roles[0]} of Penstock"
            )
        if self._check_peer and not _is_address_of(peer, live):
            raise ReportRefused(
                403, "wrong_peer", f"{peer} is not an address of pod {identity.namespace}/{pod}"
            )
        if policy:
            backend, record = injected.workload_of(live), names.policy_settings(policy)
        elif role == labels.APP_SHARED_ROUTER:
            backend, record = "", names.SHARED_ROUTER_SETTINGS
        elif router:
            backend = ""
            record = names.dedicated_router_settings(endpoint) if endpoint else names.ROUTER_SETTINGS
        else:
            backend = own.get(labels.BACKEND, "")
            record = names.backend_settings(backend)
        return Caller(
            namespace=identity.namespace,
            pod=pod,
            uid=uid,
            backend=backend,
            record=record,
            endpoint=endpoint,
            shared=role == labels.APP_SHARED_ROUTER,
        )

    def _known(self, mark: bytes) -> Identity | None:
        known = self._verdicts.get(mark)
        if known is None or self._clock.time() >= known[0]:
            return None
        if isinstance(known[1], ReportRefused):
            raise known[1].with_traceback(None)  # otherwise it would grow with each raise
        return known[1]

    async def _ask(self, token: str, mark: bytes, peer: str) -> Identity:
        # One review serves all callers with this token meanwhile; a caller that leaves does not end it.
        task = self._running.get(mark)
        if task is None:
            if not self._limit.take(peer):
                raise ReportRefused(429, "too_many_tokens", f"{peer} has sent too many new tokens; wait")
            task = asyncio.create_task(self._review(token, mark, self._store.namespace_of(peer)))
            self._running[mark] = task
            task.add_done_callback(lambda done: self._reviewed(mark, done))
        await asyncio.wait({task}, timeout=REVIEW_PATIENCE)
        if not task.done():
            raise _unreviewed()
        return task.result()

    def _reviewed(self, mark: bytes, done: asyncio.Task[Identity]) -> None:
        self._running.pop(mark, None)
        if not done.cancelled():
            done.exception()  # seen, even if every waiter has left

    @asynccontextmanager
    async def _place(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the tenant's turn, and hold one of the places of reviews.

        Raises:
            ReportRefused: too many wait, most of them this tenant's.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(tenant, place)
        self._hand_on()
        if len(self._waiting) > self._most_waiting:
            dropped = self._waiting.pop_of_most()
            if dropped is not None and not dropped.done():
                dropped.set_exception(_unreviewed())
        try:
            await place
            yield
        finally:
            # NB: a task that is cancelled may have got the place a moment ago.
            if place.done() and not place.cancelled() and place.exception() is None:
                self._places += 1
                self._hand_on()

    def _hand_on(self) -> None:
        while self._places and (place := self._waiting.pop()) is not None:
            if not place.done():
                self._places -= 1
                place.set_result(None)

    async def _review(self, token: str, mark: bytes, tenant: str) -> Identity:
        body: Obj = {
            "apiVersion": TOKEN_REVIEW.api_version,
            "kind": TOKEN_REVIEW.kind,
            "metadata": {},
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            async with self._place(tenant):
                review = await self._cluster.create(TOKEN_REVIEW, body)
        except ClusterError as error:
            raise ReportRefused(503, "no_review", f"the token could not be reviewed: {error}") from error
        now = self._clock.time()
        self._make_room(now)
        try:
            identity = self._read(review)
        except ReportRefused as refusal:
            self._verdicts[mark] = (now + KEEP_NO, refusal)
            raise
        left = _seconds_left(token, self._clock.now().timestamp())
        self._verdicts[mark] = (now + max(KEEP_SKEWED, min(self._keep(), left)), identity)
        return identity

    def _keep(self) -> float:
        """Return the seconds for which a verdict is kept: spread, so that they do not all end at once."""
        spread = random.uniform(0.75, 1.0)  # noqa: S311 - jitter
        return min(KEEP_LONGEST, max(KEEP_YES, spread * len(self._verdicts) / REVIEWS_PER_SECOND))

    def _make_room(self, now: float) -> None:
        if len(self._verdicts) < min(self._sweep_at, MAX_VERDICTS):
            return
        self._verdicts = {m: v for m, v in self._verdicts.items() if v[0] > now}
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts = {m: v for m, v in self._verdicts.items() if isinstance(v[1], Identity)}
        while len(self._verdicts) >= MAX_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]
        self._sweep_at = max(FEW_VERDICTS, 2 * len(self._verdicts))

    def _read(self, review: Obj) -> Identity:
        status = review.get("status") or {}
        if not status.get("authenticated"):
            detail = status.get("error") or "the apiserver does not accept the token"
            raise ReportRefused(401, "bad_token", str(detail))
        if self._audience not in (status.get("audiences") or ()):
            raise ReportRefused(401, "wrong_audience", f"expected a token for audience {self._audience}")
        user = status.get("user") or {}
        extra = user.get("extra") or {}
        name = str(user.get("username") or "")
        pods, uids = list(extra.get(_POD_NAME) or ()), list(extra.get(_POD_UID) or ())
        if not name.startswith(_PREFIX) or len(pods) != 1 or len(uids) != 1:
            raise ReportRefused(
                403, "unbound_token", "expected a service account token that is bound to a pod"
            )
        namespace, _, _ = name.removeprefix(_PREFIX).partition(":")
        return Identity(namespace=namespace, pod=pods[0], uid=uids[0])


def _unreviewed() -> ReportRefused:
    return ReportRefused(503, "no_review", "many tokens wait for their review; report again")


def _bearer(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN:
        raise ReportRefused(401, "no_token", "expected Authorization: Bearer <service account token>")
    return token


def _mark(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _is_address_of(peer: str | None, pod: Obj) -> bool:
    status = pod.get("status") or {}
    own = [status.get("podIP"), *(entry.get("ip") for entry in status.get("podIPs") or ())]
    if peer in own:
        return peer is not None
    try:
        address = _address(peer or "")
        return any(_address(ip) == address for ip in own if ip)
    except ValueError:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text.split("%", 1)[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _seconds_left(token: str, now: float) -> float:
    """How many seconds an accepted token still lasts by its own expiry; our clock may be wrong."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"]) - now
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return 0.0
