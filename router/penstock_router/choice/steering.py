"""Choices of backend and pod by a request's own fields: matched rules, and a key that it sticks to a pod by.

The choice is made once for all requests with one head (`arrived_head.ArrivedHead`). There is none for a
request that matches no rule and has no key. An endpoint without rules and affinity reads only
`x-penstock-shard-key` and `x-penstock-model-id`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from penstock_router.choice.affinity import Hashed, WeightedChoice
from penstock_router.choice.match_rules import COOKIE, MatchRules, cookies_of
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.headers import MODEL_ID, SHARD_KEY, STICKY, Headers, get

TOKEN_BYTES = 12
"""Random bytes in the value of a cookie that the router sets: enough that no two clients get the same."""


class Steering:
    """The properties of a request that determine its backend and pod, beside weights and loads.

    Args:
        matched: the backend whose rule it matches; empty for none.
        key: the key by which it sticks to a backend and a pod; None for none.
        cookie: the `Set-Cookie` of its answer; empty for none.
        unkeyed: whether it is to get a cookie with a new key (`Steers.begin`).
        round: the version of the endpoint's rules that `matched` comes from.
    """

    __slots__ = ("cookie", "headers", "key", "matched", "round", "unkeyed")

    def __init__(
        self,
        headers: Headers,
        matched: str,
        key: Hashed | None,
        cookie: bytes,
        unkeyed: bool,  # noqa: FBT001 - mypyc calls faster by position
        round: int,
    ) -> None:
        self.headers = headers
        self.matched = matched
        self.key = key
        self.cookie = cookie
        self.unkeyed = unkeyed
        self.round = round

    @property
    def chosen(self) -> bool:
        """Whether its client chose the backend, by a rule or by a key that the router did not make."""
        return bool(self.matched) or (self.key is not None and not self.cookie)


class Steers:
    """The rules and the affinity of one endpoint.

    Args:
        token: makes the value of a new cookie.
    """

    __slots__ = (
        "_affinity_cookie",
        "_affinity_header",
        "_attributes",
        "_choice",
        "_matchable",
        "_rules",
        "_settings",
        "_token",
        "faults",
        "round",
    )

    def __init__(
        self, settings: Endpoint, token: Callable[[], str] = lambda: secrets.token_hex(TOKEN_BYTES)
    ) -> None:
        self._settings = settings
        self._token = token
        self._rules: MatchRules | None = None
        self._matchable: frozenset[str] = frozenset()
        self._choice = WeightedChoice()
        self.faults: list[str] = []
        """Why rules were left out."""
        self.round = 0
        """How often rules were added or removed."""
        affinity = settings.session_affinity
        header = affinity.header if affinity is not None else None
        cookie = affinity.cookie if affinity is not None else None
        self._affinity_header = header.lower().encode() if header else b""
        self._affinity_cookie = cookie.name.encode() if cookie is not None else b""
        ttl = cookie.ttl_ms if cookie is not None else None
        self._attributes = b"; HttpOnly; SameSite=Lax" + (
            b"" if ttl is None else b"; Max-Age=%d" % (ttl // 1000)
        )

    def settle(self, there: Callable[[str], bool], before: Steers | None = None) -> bool:
        """Update which backends exist: the rules of the others match nothing.

        Args:
            there: whether the backend of a name exists.
            before: the endpoint's former rules and affinity.

        Returns:
            Whether anything changed, so that decisions for known heads are void.
        """
        if before is not None:
            self.round = before.round + 1
        ruled = [backend for backend in self._settings.backends if backend.match and there(backend.name)]
        names = frozenset([backend.name for backend in ruled])
        if names == self._matchable:
            return False
        self._matchable = names
        self._rules = MatchRules([(backend.name, backend.match) for backend in ruled]) if ruled else None
        self.faults = self._rules.faults if self._rules is not None else []
        self.round += 1
        return True

    def matchable(self, backend: str) -> bool:
        """Whether a backend of this name exists and has rules."""
        return backend in self._matchable

    def of(self, headers: Headers) -> Steering | None:
        """The steering of a request; None if nothing in its fields determines its backend or pod."""
        rules = self._rules
        matched = rules.find(headers) if rules is not None else ""
        key, unkeyed = get(headers, SHARD_KEY), False
        if not key and self._affinity_header:
            key = get(headers, self._affinity_header)
        if not key and self._affinity_cookie:
            key = self._cookie_of(headers)
            unkeyed = not key
        elif not key:
            key = get(headers, MODEL_ID)
        if not matched and not key and not unkeyed:
            return None
        return Steering(headers, matched, Hashed(key) if key else None, b"", unkeyed, self.round)

    def begin(self, steering: Steering, route: bytes) -> Steering:
        """Make the steering of a request that is to get a cookie: with a new key.

        Args:
            steering: the steering of all requests with its head.
            route: the route that was taken from its target, the path of the cookie; empty for all paths.
        """
        value = self._token().encode()
        path = route if route and b";" not in route else b"/"
        cookie = b"%b=%b; Path=%b%b" % (self._affinity_cookie, value, path, self._attributes)
        return Steering(
            steering.headers, steering.matched, Hashed(value), cookie, unkeyed=False, round=steering.round
        )

    def choose(
        self, steering: Steering, weights: Mapping[str, int], draw: Callable[[], str | None]
    ) -> str | None:
        """Choose the backend of a request; None if none has a weight.

        Args:
            draw: draws a backend by weight, for a request without a key.
        """
        if steering.round != self.round:
            rules = self._rules
            matched = rules.find(steering.headers) if rules is not None else ""
        else:
            matched = steering.matched
        if matched:
            return matched
        if steering.key is None:
            return draw()
        return self._choice.of(steering.key, weights)

    def inward(self, headers: Headers, steering: Steering | None) -> Headers:
        """The fields for a sidecar: without the router's own cookie, which differs for each client."""
        own = self._affinity_cookie
        if own:
            headers = tuple(
                [
                    (name, kept)
                    for name, value in headers
                    if (kept := _without(value, own) if name == COOKIE else value) or name != COOKIE
                ]
            )
        if steering is not None and (steering.key is not None or steering.unkeyed):
            return (*headers, (STICKY, b"1"))
        return headers

    def _cookie_of(self, headers: Headers) -> bytes:
        for name, value in headers:
            if name == COOKIE:
                for cookie, cookie_value in cookies_of(value):
                    if cookie == self._affinity_cookie:
                        return cookie_value
        return b""


def _without(field: bytes, cookie: bytes) -> bytes:
    """A `Cookie` field without one of its cookies; the same object if it does not have it."""
    if cookie not in field:
        return field
    pairs = [pair.strip() for pair in field.split(b";")]
    return b"; ".join([pair for pair in pairs if pair.partition(b"=")[0].strip() != cookie])
