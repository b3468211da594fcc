"""What is decided once for all requests of an endpoint that have the same head."""

from __future__ import annotations

from typing import Final

from penstock_router.header_policy import inward
from penstock_router.steering import Steers
from penstock_wire import contract
from penstock_wire.headers import IDLE_MS, REQUEST_ID, get, timeout_ms
from penstock_wire.http import Request, Response
from penstock_wire.http.server import head as heads

_UNLIKE = frozenset({"CONNECT", "HEAD", "OPTIONS", "TRACE"})
"""Methods that have a meaning for a proxy, or whose answer has no body."""
MAX_HEAD_SIZE = 16_384
"""Bytes of memory that a head takes, about, for which something is remembered. Clients choose how long their
heads are; a longer one does not come as the same object again."""
MAX_HEADS: Final = 4096
MAX_HEADS_SIZE: Final = 16 * 1024 * 1024
"""Of all heads that a router remembers: when there is more, all are forgotten."""


class ArrivedHead:
    """What is decided once for all requests of an endpoint that have the same head.

    Args:
        request: the first of them, its target without the route.
        closed: whether it asks for what no client may reach.
        allowed: whether the endpoint takes its method.
        idle: seconds that an answer may pause; None if the endpoint does not say it.
        steers: the endpoint's rules and affinity.
        static: the endpoint's own answer; None if a pod is to answer.
        era: of the endpoint and the settings that decided.
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
        """What decides who gets it, beside weights and loads; None for nothing."""
        self.allowed = allowed
        self.client_ms = timeout_ms(headers)
        sent = get(headers, REQUEST_ID)
        self.identity = sent if sent is not None and contract.REQUEST_ID.fullmatch(sent) else b""
        """The client's own `x-request-id`; empty if it sent none that can be used."""
        self.shared = steers.inward(inward(headers), self.steering)
        if idle is not None:
            self.shared = (*self.shared, (IDLE_MS, b"%d" % round(idle * 1000)))
        """The fields for a sidecar, but for those of one request alone."""
        late = self.client_ms is not None and self.client_ms < 0
        self.plain = allowed and not late and request.method not in _UNLIKE
        """It can be sent to a pod as it is, and its answer passed on as it is."""


class ArrivedHeads:
    """What is remembered of heads for all endpoints of a router: users choose how many of those there are."""

    __slots__ = ("_size", "known")

    def __init__(self) -> None:
        self.known: dict[int, ArrivedHead] = {}
        """By the address of the fields (which are kept, so that it stays theirs)."""
        self._size = 0

    def keep(self, head: ArrivedHead) -> None:
        """Remember what is decided for a head, unless that is long.

        Args:
            head: it.
        """
        size = heads.size(head.target, head.headers)
        if size > MAX_HEAD_SIZE:
            return
        if len(self.known) >= MAX_HEADS or self._size + size > MAX_HEADS_SIZE:
            self.known.clear()
            self._size = 0
        self.known[id(head.headers)] = head
        self._size += size
