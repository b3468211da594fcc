"""Finds the backend that a request's header field or cookie asks for, and the mirrors it matches. Pure.

The first backend in the list with a matching rule gets the request. All rules of one field are tried in one
step, whatever their number: values by one look-up, prefixes by one look-up per length, and regular
expressions by one automaton for all of them (`re2.Set`; `traffic_rules` explains why RE2). So the time grows
with the number of fields that rules name, and hardly with the number of rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from penstock_wire.control.traffic_rules import MAX_REGEX_SIZE, MAX_REGEX_VALUE, Match, RegexBudget, options
from penstock_wire.headers import Headers

COOKIE: Final = b"cookie"
NONE: Final = 1073741824
"""The place that stands for "no rule matches"."""
MAX_COOKIES: Final = 64
"""Cookies that are read per `Cookie` field; browsers do not send more to one host."""
MAX_REGEX_BYTES: Final = 2 * MAX_REGEX_VALUE
"""Bytes of a request's values that are matched with regular expressions: a head has room for some sixty
copies of one field."""


class FieldRules:
    """The rules of one header field or cookie, each with its place among all rules.

    Args:
        rules: pairs of place and rule, in order.
    """

    __slots__ = ("_lengths", "_regexes", "_set", "_values")

    def __init__(self, rules: Iterable[tuple[int, Match]]) -> None:
        self._values: dict[bytes, int] = {}
        prefixes: dict[int, dict[bytes, int]] = {}
        self._regexes: list[int] = []
        self._set: Any = None
        for place, rule in rules:
            if rule.value is not None:
                self._values.setdefault(rule.value.encode(), place)
            elif rule.prefix is not None:
                prefix = rule.prefix.encode()
                prefixes.setdefault(len(prefix), {}).setdefault(prefix, place)
            elif rule.regex is not None:
                if self._set is None:
                    import re2

                    self._set = re2.Set.FullMatchSet(options())
                self._set.Add(rule.regex.encode())
                self._regexes.append(place)
        self._lengths = list(prefixes.items())
        if self._set is not None:
            self._set.Compile()

    @property
    def expressive(self) -> bool:
        """Whether some of the rules are regular expressions."""
        return self._set is not None

    def first(self, value: bytes, most: int = MAX_REGEX_VALUE) -> int:
        """The place of the first rule that a value matches; `NONE` if it matches none.

        Args:
            most: a value longer than this many bytes matches no regular expression.
        """
        best = self._values.get(value, NONE)
        for length, prefixes in self._lengths:
            place = prefixes.get(value[:length], NONE)
            if place < best:
                best = place
        if self._set is not None and len(value) <= most:
            for index in self._set.Match(value) or ():
                place = self._regexes[index]
                if place < best:
                    best = place
        return best


class MatchRules:
    """All rules of an endpoint's backends, or those of one mirror.

    Args:
        backends: names with their rules, in order. An unusable rule is left out: see `faults`.
        kind: the word for what is named, for people.
        most: instructions of all regular expressions together.
    """

    __slots__ = ("_backends", "_cookies", "_headers", "faults")

    def __init__(
        self,
        backends: Iterable[tuple[str, tuple[Match, ...]]],
        kind: str = "backend",
        most: int = MAX_REGEX_SIZE,
    ) -> None:
        budget = RegexBudget(most)
        self._backends: list[str] = []
        self.faults: list[str] = []
        """Why rules were left out, with their places."""
        headers: dict[bytes, list[tuple[int, Match]]] = {}
        cookies: dict[bytes, list[tuple[int, Match]]] = {}
        for name, rules in backends:
            for number, rule in enumerate(rules):
                if rule.regex is not None and (fault := budget.fault(rule.regex)):
                    self.faults.append(f"{kind} {name}: match[{number}].regex: {fault}")
                    continue
                place = len(self._backends)
                if rule.header:
                    headers.setdefault(rule.header.lower().encode(), []).append((place, rule))
                elif rule.cookie:
                    cookies.setdefault(rule.cookie.encode(), []).append((place, rule))
                self._backends.append(name)
        self._headers = {name: FieldRules(rules) for name, rules in headers.items()}
        self._cookies = {name: FieldRules(rules) for name, rules in cookies.items()}

    def find(self, headers: Headers) -> str:
        """The backend that a request asks for; empty if it matches no rule."""
        best = NONE
        left = MAX_REGEX_BYTES
        of_headers, of_cookies = self._headers, self._cookies
        for name, value in headers:
            rules = of_headers.get(name)
            if rules is not None:
                place = rules.first(value, min(left, MAX_REGEX_VALUE))
                if rules.expressive:
                    left -= len(value)
                if place < best:
                    best = place
            if of_cookies and name == COOKIE:
                for cookie, cookie_value in cookies_of(value):
                    rules = of_cookies.get(cookie)
                    if rules is not None:
                        place = rules.first(cookie_value, min(left, MAX_REGEX_VALUE))
                        if rules.expressive:
                            left -= len(cookie_value)
                        if place < best:
                            best = place
        return "" if best == NONE else self._backends[best]


def cookies_of(field: bytes) -> list[tuple[bytes, bytes]]:
    """The cookies of a `Cookie` field (RFC 6265 section 4.2.1), in order."""
    cookies: list[tuple[bytes, bytes]] = []
    for pair in field.split(b";", MAX_COOKIES)[:MAX_COOKIES]:
        pair = pair.strip()
        at = pair.find(b"=")
        if at >= 0:
            cookies.append((pair[:at], pair[at + 1 :]))
    return cookies
