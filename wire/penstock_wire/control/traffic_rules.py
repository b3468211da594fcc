"""What of a request decides who gets it: match rules, session affinity, answers of an endpoint's own.

Members of a router's settings (`router_settings.Endpoint`), and checks of what a schema cannot say.

Regular expressions are RE2's: they match in time linear in the value, whatever the expression and the value
are, as no expression with backtracking does (one of twenty characters can stop Python's `re` for hours). It
is also the dialect that the apiserver checks them by, since CEL's `matches` is RE2 in Go. The time for each
byte grows with the expression, so its size is bounded, as is the value (`MAX_REGEX_VALUE`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

OnMissing = Literal["Share", "Fail"]
"""What becomes of the share of a backend that does not exist."""

MAX_REGEX = 256
"""Characters of a regular expression at most."""
MAX_REGEX_SIZE = 1000
"""Instructions of a compiled expression at most."""
MAX_REGEX_VALUE = 1024
"""A value that is longer in bytes matches no regular expression."""


class Match(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A rule that a request matches by one header field or one cookie.

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
    """The cookie by which a client comes back to its pod.

    Args:
        name: its name.
        ttl_ms: how long clients keep it; None = as long as their session.
    """

    name: str
    ttl_ms: Annotated[int, msgspec.Meta(ge=1000)] | None = None


class SessionAffinity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """By what requests come to the same backend and pod; one of both.

    Args:
        header: name of a header field.
        cookie: the cookie that the router sets.
    """

    header: str | None = None
    cookie: AffinityCookie | None = None


class StaticAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer that the router gives itself to GET and HEAD.

    Args:
        path: the path, without the route and without a query.
        status: of the answer.
        body: of the answer.
    """

    path: str
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200
    body: str = ""


def options() -> Any:
    """How RE2 reads expressions, as `re2.Options`: bytes, and no message on standard error."""
    import re2  # it brings 3 MB of memory, which only those pay who have an expression

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_capture = True
    return options


def regex_fault(expression: str) -> str:
    """What is wrong with a regular expression; empty where nothing is.

    Args:
        expression: as a user wrote it.
    """
    if len(expression) > MAX_REGEX:
        return f"expected at most {MAX_REGEX} characters, found {len(expression)}"
    import re2

    try:
        size = re2.compile(expression.encode(), options()).programsize
    except re2.error as error:
        said = error.args[0] if error.args else ""
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        return f"expected a regular expression of RE2, found {expression!r}: {text}"
    if size > MAX_REGEX_SIZE:
        return (
            f"expected a regular expression of at most {MAX_REGEX_SIZE} RE2 instructions, found {size} in "
            f"{expression!r}: repeat less"
        )
    return ""


def match_slip(rule: Match) -> str:
    """What is wrong with a rule, with the member that is; empty where nothing is."""
    names = [name for name in ("header", "cookie") if getattr(rule, name)]
    if len(names) != 1:
        return f": expected one of header and cookie, found {_listed(names)}"
    kinds = [kind for kind in ("value", "prefix", "regex") if getattr(rule, kind) is not None]
    if len(kinds) != 1:
        return f": expected one of value, prefix and regex, found {_listed(kinds)}"
    fault = regex_fault(rule.regex) if rule.regex is not None else ""
    return f".regex: {fault}" if fault else ""


def affinity_slip(affinity: SessionAffinity) -> str:
    """What is wrong with a session affinity; empty where nothing is."""
    if bool(affinity.header) == (affinity.cookie is not None and bool(affinity.cookie.name)):
        named = _listed([name for name in ("header", "cookie") if getattr(affinity, name)])
        return f": expected one of header and cookie, with a name, found {named}"
    return ""


def static_slip(answers: tuple[StaticAnswer, ...]) -> str:
    """What is wrong with answers of an endpoint's own; empty where nothing is."""
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
