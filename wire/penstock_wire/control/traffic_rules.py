"""Rules that choose a request's backend and pod, and an endpoint's static answers.

Members of a router's settings (`router_settings.Endpoint`), with checks that a schema cannot express.

Regular expressions are RE2's: they match in time linear in the value, unlike any engine that backtracks (an
expression of twenty characters can block Python's `re` for hours). The apiserver checks them by the same
dialect, since CEL's `matches` is RE2 in Go. The time per byte grows with the size of all expressions that are
tried, so their sum is bounded (`RegexBudget`), as is the value's length (`MAX_REGEX_VALUE`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

OnMissing = Literal["Share", "Fail"]
"""What happens to the share of a backend that does not exist."""

MAX_REGEX = 256
"""Most characters of a regular expression."""
MAX_REGEX_SIZE = 1000
"""Most instructions of the compiled expressions of all backends of an endpoint together."""
MAX_MIRROR_REGEX_SIZE = 250
"""The same of each mirror; an endpoint has up to eight."""
MAX_REGEX_VALUE = 1024
"""Most bytes of a value that a regular expression can match; a longer one never matches."""


class Match(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A rule that matches requests by one header field or one cookie.

    Args:
        header: name of the field, in any case; or
        cookie: name of the cookie.
        value: it is exactly this; or
        prefix: it begins with this; or
        regex: all of it matches this regular expression (RE2).
    """

    header: str | None = None
    cookie: str | None = None
    value: str | None = None
    prefix: str | None = None
    regex: str | None = None


class AffinityCookie(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The cookie that brings a client back to its pod.

    Args:
        name: its name.
        ttl_ms: how long clients keep it; None = as long as their session.
    """

    name: str
    ttl_ms: Annotated[int, msgspec.Meta(ge=1000)] | None = None


class SessionAffinity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The header field or the cookie (one of them) that keeps requests on the same backend and pod.

    Args:
        header: name of a header field.
        cookie: the cookie that the router sets.
    """

    header: str | None = None
    cookie: AffinityCookie | None = None


class StaticAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer to GET and HEAD that the router itself gives.

    Args:
        path: the path, without the route and without a query.
        status: of the answer.
        body: of the answer.
    """

    path: str
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200
    body: str = ""


def options() -> Any:
    """Return the `re2.Options` for all expressions: bytes, and no message on standard error."""
    import re2  # costs 3 MB of memory, so only processes with an expression load it

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_capture = True
    return options


class RegexBudget:
    """What is left for the regular expressions that can be tried on one request.

    Args:
        most: instructions of all of them together.
    """

    def __init__(self, most: int = MAX_REGEX_SIZE) -> None:
        self._most = self._left = most

    def fault(self, expression: str) -> str:
        """Return why an expression cannot be used beside those before it; empty if it can, and is counted.

        Args:
            expression: as a user wrote it.
        """
        size, fault = _measured(expression)
        if not fault and size > self._left:
            found = f"{size} in {expression!r}"
            if self._left < self._most:
                found += f" and {self._most - self._left} in those before it"
            return (
                f"expected regular expressions of at most {self._most} RE2 instructions together, "
                f"found {found}: repeat less, or use prefix"
            )
        self._left -= size
        return fault


def _measured(expression: str) -> tuple[int, str]:
    """Return an expression's number of instructions, and what is wrong with it."""
    if len(expression) > MAX_REGEX:
        return 0, f"expected at most {MAX_REGEX} characters, found {len(expression)}"
    import re2

    try:
        return re2.compile(expression.encode(), options()).programsize, ""
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        return 0, f"expected a regular expression of RE2, found {expression!r}: {text}"


def match_slip(rule: Match, budget: RegexBudget) -> str:
    """Return what is wrong with a rule, after the name of the member at fault; empty if nothing is.

    Args:
        rule: the rule.
        budget: for its expression and those of the rules beside it.
    """
    names = [name for name in ("header", "cookie") if getattr(rule, name)]
    if len(names) != 1:
        return f": expected one of header and cookie, found {_listed(names)}"
    kinds = [kind for kind in ("value", "prefix", "regex") if getattr(rule, kind) is not None]
    if len(kinds) != 1:
        return f": expected one of value, prefix and regex, found {_listed(kinds)}"
    fault = budget.fault(rule.regex) if rule.regex is not None else ""
    return f".regex: {fault}" if fault else ""


def affinity_slip(affinity: SessionAffinity) -> str:
    """Return what is wrong with a session affinity; empty if nothing is."""
    if bool(affinity.header) == (affinity.cookie is not None and bool(affinity.cookie.name)):
        named = _listed([name for name in ("header", "cookie") if getattr(affinity, name)])
        return f": expected one of header and cookie, with a name, found {named}"
    return ""


def static_slip(answers: tuple[StaticAnswer, ...]) -> str:
    """Return what is wrong with an endpoint's static answers; empty if nothing is."""
    seen: set[str] = set()
    for index, answer in enumerate(answers):
        if not answer.path.startswith("/") or "?" in answer.path or "#" in answer.path:
            return f"[{index}].path: expected a path such as /healthz without ? and #, found {answer.path!r}"
        if answer.path in seen:
            return f"[{index}].path: expected a path that no other has, found {answer.path!r}"
        seen.add(answer.path)
        if answer.status in (204, 205, 304) and answer.body:
            return f"[{index}].body: expected none with status {answer.status}, found one"
    return ""


def _listed(names: list[str]) -> str:
    return " and ".join(names) or "none"
