"""Decisions that are made once for all requests of an endpoint with the same head."""

from __future__ import annotations

from typing import Final

from penstock_router.choice.steering import Steers
from penstock_router.messages.header_policy import inward
from penstock_wire import contract
from penstock_wire.headers import IDLE_MS, REQUEST_ID, get, timeout_ms
from penstock_wire.http import Request, Response
from penstock_wire.http.caches import Caches
from penstock_wire.http.server import head as heads

_UNLIKE = frozenset({"CONNECT", "HEAD", "OPTIONS", "TRACE"})
"""Methods that have a meaning for a proxy, or whose answer has no body."""
MAX_HEAD_SIZE = 16_384
"""The largest head for which anything is cached, in bytes of memory, roughly. Clients choose how long their
heads are; a longer one does not arrive as the same object again."""
MAX_HEADS: Final = 4096
MAX_HEADS_SIZE: Final = 16 * 1024 * 1024
"""Limits on all heads that a router caches: above them, all are forgotten."""


class ArrivedHead:
    """The decisions for all requests of an endpoint with the same head.

    Args:
        request: the first of them, its target without the route.
        closed: whether its path is closed to clients.
        allowed: whether the endpoint takes its method.
        idle: seconds that an answer may pause; None if the endpoint does not set it.
        steers: the endpoint's rules and affinity.
        static: the endpoint's own answer; None if a pod is to answer.
        era: identifies the endpoint and the settings that the decisions come from.
    """

    __slots__ = (
        "allowed",
        "client_ms",
        "closed",
        "era",
        "headers",
        "identity",
        "method",
        "plain",
        "shared",
        "static",
        "steering",
        "target",
    )

    def __init__(
        self,
        request: Request,
        *,
        closed: bool,
        allowed: bool,
        idle: float | None,
        steers: Steers,
        static: Response | None,
        era: object,
    ) -> None:
        headers = request.headers
        self.era = era
        self.method = request.method
        self.target = request.target
        self.headers = headers
        self.closed = closed
        self.static = static
        self.steering = steers.of(headers)
        """The choices of backend and pod by its fields, beside weights and loads; None for none."""
        self.allowed = allowed
        self.client_ms = timeout_ms(headers)
        sent = get(headers, REQUEST_ID)
        self.identity = sent if sent is not None and contract.REQUEST_ID.fullmatch(sent) else b""
        """The client's own `x-request-id`; empty if it sent none, or an invalid one."""
        self.shared = steers.inward(inward(headers), self.steering)
        if idle is not None:
            self.shared = (*self.shared, (IDLE_MS, b"%d" % round(idle * 1000)))
        """The fields for a sidecar, except those that differ for each request."""
        late = self.client_ms is not None and self.client_ms < 0
        self.plain = allowed and not late and request.method not in _UNLIKE
        """Whether the request and its answer can be passed on as they are."""


class ArrivedHeads:
    """The cache of heads, shared by all endpoints of a router: users choose how many endpoints there are.

    Args:
        caches: bounds it with others; None = it is bounded alone.
    """

    __slots__ = ("_caches", "_size", "known")

    def __init__(self, caches: Caches | None = None) -> None:
        self._caches = Caches() if caches is None else caches
        self.known: dict[int, ArrivedHead] = {}
        """Heads by the `id` of their fields (which are kept, so that it stays theirs)."""
        self._size = 0

    def keep(self, head: ArrivedHead) -> None:
        """Cache a head, unless it is too long."""
        size = heads.size(head.target, head.headers)
        if size > MAX_HEAD_SIZE:
            return
        if len(self.known) >= MAX_HEADS or self._size + size > MAX_HEADS_SIZE:
            self.clear()
            self._caches.cleared(self)
        self.known[id(head.headers)] = head
        self._size += size
        self._caches.grew(self, size)

    def clear(self) -> None:
        """Forget all."""
        self.known.clear()
        self._size = 0
