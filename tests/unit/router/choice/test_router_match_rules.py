"""Match rules: who gets a request by what it says itself."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_router.choice.match_rules import MatchRules, cookies_of
from penstock_router.router import decode_settings
from penstock_wire.control.traffic_rules import MAX_MIRROR_REGEX_SIZE, MAX_REGEX_SIZE, MAX_REGEX_VALUE, Match
from penstock_wire.errors import DocumentError
from penstock_wire.headers import Headers
from tests.support.processes.router_process import backend, endpoint


def rules(**backends: list[dict[str, str]]) -> MatchRules:
    return MatchRules([(name, tuple(Match(**rule) for rule in rules)) for name, rules in backends.items()])


CANARY = rules(
    beta=[{"header": "X-Group", "value": "beta"}, {"cookie": "group", "prefix": "beta-"}],
    tests=[{"header": "user-agent", "regex": "(probe|load)/[0-9.]+"}, {"header": "x-group", "prefix": "te"}],
    any=[{"header": "x-group", "prefix": ""}],
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"x-group": "beta"}, "beta"),
        ({"x-group": "BETA"}, "any"),
        ({"x-group": "beta2"}, "any"),
        ({"x-group": ""}, "any"),
        ({"x-group": "test"}, "tests"),
        ({"x-other": "beta"}, ""),
        ({"cookie": "a=1; group=beta-7; b=2"}, "beta"),
        ({"cookie": "group=alpha; groups=beta-7"}, ""),
        ({"cookie": "group"}, ""),
        ({"user-agent": "load/1.2"}, "tests"),
        ({"user-agent": "xload/1.2"}, ""),
        ({"user-agent": "load/1.2 "}, ""),
        ({"user-agent": "load/1", "cookie": "group=beta-"}, "beta"),
        ({}, ""),
    ],
)
def test_the_first_backend_with_a_rule_that_matches_gets_it(fields: dict[str, str], expected: str) -> None:
    """Values count in their case, names do not; a regular expression matches the whole value."""
    headers: Headers = tuple((name.encode(), value.encode()) for name, value in fields.items())
    assert CANARY.find(headers) == expected


_TEXT = st.text("ab", max_size=3)
_RULE = st.one_of(
    st.builds(lambda name, text: {"header": name, "value": text}, st.sampled_from("xy"), _TEXT),
    st.builds(lambda name, text: {"header": name, "prefix": text}, st.sampled_from("xy"), _TEXT),
    st.builds(
        lambda name, text: {"header": name, "regex": text},
        st.sampled_from("xy"),
        st.sampled_from(["a*", "(a|b)b?", "[^a]+", "", ".{2}"]),
    ),
    st.builds(lambda text: {"cookie": "c", "value": text}, _TEXT),
)


def one_by_one(backends: list[list[dict[str, str]]], headers: list[tuple[str, str]]) -> str:
    """What the rules say, tried one after the other."""
    for number, rules in enumerate(backends):
        for rule in rules:
            for name, value in headers:
                if rule.get("header") != name and not ("cookie" in rule and name == "cookie"):
                    continue
                seen = value.partition("=")[2] if name == "cookie" else value
                if (
                    seen == rule.get("value")
                    or ("prefix" in rule and seen.startswith(rule["prefix"]))
                    or ("regex" in rule and re.fullmatch(rule["regex"], seen))
                ):
                    return f"b{number}"
    return ""


@given(
    st.lists(st.lists(_RULE, max_size=4), max_size=4),
    st.lists(
        st.one_of(st.tuples(st.sampled_from("xyz"), _TEXT), _TEXT.map(lambda text: ("cookie", f"c={text}"))),
        max_size=4,
    ),
)
def test_all_rules_at_once_find_what_one_after_the_other_finds(
    backends: list[list[dict[str, str]]], headers: list[tuple[str, str]]
) -> None:
    made = MatchRules([(f"b{n}", tuple(Match(**rule) for rule in rs)) for n, rs in enumerate(backends)])
    chosen = made.find(tuple((name.encode(), value.encode()) for name, value in headers))
    assert chosen == one_by_one(backends, headers)


def test_the_expressions_of_an_endpoint_are_bounded_together() -> None:
    """A request is matched with all of them: with two hundred large ones, one stopped a router for 1.3 s."""
    large, small = {"header": "x", "regex": "(y{50}){9}"}, {"header": "x", "regex": "a+"}
    made = rules(b=[large], c=[{"header": "x", "regex": "(y{50}){9}y"}, large], d=[small])
    (fault,) = made.faults
    assert fault.startswith("backend c: match[1].regex: expected regular expressions of at most 1000 RE2")
    assert made.find(((b"x", b"y" * 451),)) == "c"
    assert made.find(((b"x", b"aa"),)) == "d"
    mirror = MatchRules([("m", (Match(**large),))], "mirror", MAX_MIRROR_REGEX_SIZE)
    assert mirror.faults[0].startswith(
        "mirror m: match[0].regex: expected regular expressions of at most 250"
    )


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a)*b", "a*a*a*a*a*a*a*a*b", "(.*a.{200})*x"])
def test_no_expression_can_stop_the_router(expression: str) -> None:
    """What takes an engine with backtracking longer than the universe lasts takes milliseconds at most.

    NB: no bound of time is asserted; with backtracking the test would never end.
    """
    made = rules(b=[{"header": "x", "regex": expression}])
    assert not made.faults
    assert made.find(((b"x", b"a" * MAX_REGEX_VALUE),)) == ""
    assert made.find(((b"x", b"a" * 10_000_000),)) == ""


def test_a_value_beyond_the_bound_matches_no_expression() -> None:
    made = rules(b=[{"header": "x", "regex": "a*"}], c=[{"header": "x", "prefix": "aa"}])
    assert made.find(((b"x", b"a" * MAX_REGEX_VALUE),)) == "b"
    assert made.find(((b"x", b"a" * (MAX_REGEX_VALUE + 1)),)) == "c"


def test_the_values_of_one_request_are_matched_with_expressions_up_to_a_bound() -> None:
    """A client says how often a field comes: sixty long values would hold up the router sixty times as long.

    Fields without expressions cost nothing of it, and rules without them know no bound.
    """
    made = rules(
        b=[{"header": "x", "regex": "b+"}, {"cookie": "c", "regex": "b+"}],
        p=[{"header": "x", "prefix": "bb"}],
    )
    long, short = (b"x", b"a" * MAX_REGEX_VALUE), (b"x", b"bb")
    others = [(b"y", b"a" * 5000)] * 3
    assert made.find((*others, long, (b"x", b"a" * (MAX_REGEX_VALUE - 2)), short)) == "b"
    assert made.find((*others, long, (b"x", b"a" * (MAX_REGEX_VALUE - 1)), short)) == "p"
    assert made.find((long, long, (b"cookie", b"c=b"))) == ""
    assert made.find((long, (b"cookie", b"c=b; c=a"))) == "b"


def test_an_expression_that_cannot_be_used_is_left_out_alone_and_named() -> None:
    """Settings of the operator must not fail for one of many endpoints."""
    made = rules(
        b=[{"header": "x", "regex": ".{999}" * 3}, {"header": "x", "regex": "("}],
        c=[{"header": "x", "value": "1"}],
    )
    assert made.find(((b"x", b"1"),)) == "c"
    large, broken = made.faults
    assert f"backend b: match[0].regex: expected regular expressions of at most {MAX_REGEX_SIZE}" in large
    assert "backend b: match[1].regex: expected a regular expression of RE2, found '('" in broken


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (b"a=1; b=2=3;c=; d", [(b"a", b"1"), (b"b", b"2=3"), (b"c", b"")]),
        (b"", []),
        (b"a=1;" * 1000, [(b"a", b"1")] * 64),
    ],
)
def test_cookies_are_cut_at_semicolons_and_bounded(field: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert cookies_of(field) == expected


def _ruled(name: str, target: str, *rules: dict[str, str], weight: int = 0) -> dict[str, Any]:
    return backend(name, target, weight=weight) | {"match": list(rules)}


_PLACE = r"\[0\]"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"value": "a"}, r"\[0\]\.match\[0\]: expected one of header and cookie, found none"),
        ({"header": "a", "cookie": "b", "value": "a"}, "header and cookie, found header and cookie"),
        ({"header": "a"}, "expected one of value, prefix and regex, found none"),
        ({"header": "a", "value": "", "regex": ""}, "and regex, found value and regex"),
        ({"header": "a", "regex": "("}, r"\.regex: expected a regular expression of RE2, found '\('"),
        ({"header": "a", "regex": "a" * 257}, r"\.regex: expected at most 256 characters, found 257"),
    ],
)  # fmt: skip
def test_a_rule_of_a_file_that_cannot_be_meant_is_refused(rule: dict[str, str], expected: str) -> None:
    document = {"endpoints": [endpoint("e", _ruled("b", "h:1", rule, weight=1))]}
    with pytest.raises(DocumentError, match=expected):
        decode_settings(msgspec.json.encode(document), by_hand=True)
    document = {"endpoints": [endpoint("e", backend("b", "h:1"), mirrors=[{"name": "m", "match": [rule]}])]}
    with pytest.raises(DocumentError, match=rf"\.mirrors\[0\].*{expected.removeprefix(_PLACE)}"):
        decode_settings(msgspec.json.encode(document), by_hand=True)
