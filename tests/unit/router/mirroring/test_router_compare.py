"""How a mirror's answer is held against the one that was served."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_router.mirroring.compare import MAX_BYTES, MAX_PATH, Comparison, FirstDifference, Rules
from penstock_router.mirroring.compare_queue import LATELY_SECONDS, SHARE, CompareQueue, Shares
from penstock_router.mirroring.mirrors import MEMORY_SHARE, CopyBounds
from penstock_wire.control.router_settings import IGNORED_PATH_PATTERN

NAMES = st.sampled_from(["a", "b", "id", "two words", "\u00e9", ""]) | st.text(max_size=3)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)
)


def body(document: Any) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def compare(
    served: Any,
    other: Any,
    rules: Rules | None = None,
    *,
    step: int = 7,
    statuses: tuple[int, int] = (200, 200),
) -> Comparison:
    """A comparison that is over."""
    comparison = Comparison(rules or Rules(), statuses[0], body(served), (), statuses[1], body(other), ())
    while not comparison.settled:
        comparison.step(step)
    return comparison


def difference(served: Any, other: Any, rules: Rules | None = None) -> FirstDifference | None:
    return compare(served, other, rules).difference


CUT = '"' + 7 * "\\u202e" + "…"


@pytest.mark.parametrize(
    ("served", "other", "rules", "expected"),
    [
        ({"a": 1}, b'{ "a" : 1.0 }', Rules(), None),
        ({"a": [1, {"b": 0.5}]}, {"a": [1, {"b": 0.6}]}, Rules(), ("value", "$.a[1].b", "number", "number")),
        ([0.5], [0.6], Rules(tolerance=0.1), None),
        ([1000.0], [1001.0], Rules(tolerance=0.0005), ("value", "$[0]", "number", "number")),
        ([1000.0], [1001.0], Rules(tolerance=0.001), None),
        ([1e-9], [2e-9], Rules(tolerance=1e-6), None),
        ([True], [1], Rules(tolerance=1.0), ("type", "$[0]", "boolean", "number")),
        ([True], [False], Rules(tolerance=1.0), ("value", "$[0]", "boolean", "boolean")),
        ([10**400], [10**400 + 1], Rules(tolerance=0.5), ("value", "$[0]", "number", "number")),
        ({"a": None}, {"a": {}}, Rules(), ("type", "$.a", "null", "object")),
        ({"a": 1, "b": 2}, {"a": 1}, Rules(), ("missing", "$.b", "number", "")),
        ({"a": 1}, {"a": 1, "b": "x"}, Rules(), ("extra", "$.b", "", "string")),
        ({"p": [1, 2]}, {"p": [1]}, Rules(), ("length", "$.p", "array", "array")),
        ({"a b": 1}, {"a b": 2}, Rules(), ("value", "$['a b']", "number", "number")),
        ({"it's": 1}, {"it's": 2}, Rules(), ("value", "$['it\\u0027s']", "number", "number")),
        ("x", "y", Rules(), ("value", "$", "string", "string")),
        ("<b>\n", True, Rules(show_values=True), ("type", "$", "string", "boolean")),
        ("<b>\n", "é", Rules(show_values=True), ("value", "$", '"<b>\\n"', '"é"')),
        (46 * "変", 47 * "変", Rules(show_values=True), ("value", "$", f'"{46 * "変"}"', f'"{46 * "変"}…')),
        (45 * "a" + "\n", 9 * "\u202e", Rules(show_values=True), ("value", "$", f'"{45 * "a"}…', CUT)),
        ([0.5, 1], [0.75, 1], Rules(show_values=True), ("value", "$[0]", "0.5", "0.75")),
        (
            "x" * 49,
            47 * "x",
            Rules(show_values=True),
            ("value", "$", '"' + 46 * "x" + "…", '"' + 46 * "x" + "…"),
        ),
        ([10**60], [1], Rules(show_values=True), ("value", "$[0]", "1" + 46 * "0" + "…", "1")),
        (b"plain", b"text", Rules(), ("body", "$", "bytes", "bytes")),
        (b"", b"{}", Rules(), ("body", "$", "bytes", "bytes")),
        ({"a": 1}, b"<html>", Rules(), ("malformed", "$", "object", "bytes")),
        ({"a": 1}, b"\xff\xfe", Rules(), ("malformed", "$", "object", "bytes")),
        ([1], b"[" * 30_000, Rules(), ("malformed", "$", "array", "bytes")),
        ([1], b"[1e999]", Rules(), ("malformed", "$", "array", "bytes")),
        ({"u": 1, "b": 2}, {"b": 2}, Rules(("$.u",)), None),
        ({"b": 2}, {"u": 1, "b": 2}, Rules(("$.u",)), None),
        ({"p": [{"id": 1, "s": 2}]}, {"p": [{"id": 9, "s": 2}]}, Rules(("$.p[*].id",)), None),
        ({"p": [1, 2]}, {"p": [1, 9]}, Rules(("$.p[1]",)), None),
        ({"p": [1, 2]}, {"p": [9, 2]}, Rules(("$.p[1]",)), ("value", "$.p[0]", "number", "number")),
        ({"p": [1]}, {"p": [2, 3]}, Rules(("$.p[*]",)), None),
        ({"p": {"x": 1}}, {"p": {"y": 2}}, Rules(("$.p.*",)), None),
        ({"a b": {"c": 1}}, {"a b": {"c": 2}}, Rules(("$['a b'].c",)), None),
    ],
)
def test_what_differs(served: Any, other: Any, rules: Rules, expected: tuple[str, ...] | None) -> None:
    """The kind, the path and both types; or nothing."""
    first = difference(served, other, rules)
    assert (first and (first.kind, first.path, first.expected, first.actual)) == expected


def test_another_status_decides() -> None:
    """Whatever the bodies say."""
    first = compare({"a": 1}, {"a": 2}, statuses=(200, 500)).difference
    assert first is not None
    assert (first.kind, first.expected, first.actual) == ("status", "200", "500")


def test_what_is_not_compared_says_why() -> None:
    """Beyond the bound, and in an encoding, bodies are equal as bytes or not compared."""
    long = [0.5] * (MAX_BYTES // 4)
    assert compare(long, long).skipped == ""
    assert compare(long, [*long[1:], 0.6]).skipped == "too_large"
    packed = ((b"content-encoding", b"gzip"),)
    assert Comparison(Rules(), 200, b"a", packed, 200, b"b", packed).skipped == "encoded"


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ((422, 422), ""),
        ((422, 400), ""),
        ((404, 200), ""),
        ((500, 500), ""),
        ((500, 200), ""),
        ((422, 500), "status"),
    ],
)
def test_an_error_that_the_client_got_is_held_against_a_mirror_that_fails_at_it_alone(
    statuses: tuple[int, int], kind: str
) -> None:
    """What a client asks wrongly is no evidence: the words of an error differ from version to version."""
    over = compare({"detail": "a"}, {"detail": "b"}, statuses=statuses)
    assert (over.difference.kind if over.difference else "", over.skipped) == (
        kind,
        "" if kind else "served_error",
    )


@given(DOCUMENTS, st.integers(1, 50), st.floats(0, 1))
def test_a_document_is_like_itself(document: Any, step: int, tolerance: float) -> None:
    """However it is spelled, and however small the steps are."""
    spaced = json.dumps(document, indent=2).encode()
    plain = json.dumps(document, ensure_ascii=False).encode()
    assert compare(plain, spaced, Rules(tolerance=tolerance), step=step).difference is None


@given(DOCUMENTS, DOCUMENTS, st.integers(1, 50))
def test_two_documents_are_like_each_other_or_not_as_json_says(served: Any, other: Any, step: int) -> None:
    """Symmetric, and the same in small steps and in large ones; as Python has it, but that `true` is no 1."""
    small, large = compare(served, other, step=step), compare(served, other, step=10**9)
    back = compare(other, served)
    assert (small.difference is None) == (large.difference is None) == (back.difference is None)
    if small.difference is not None and large.difference is not None:
        assert small.difference.path == large.difference.path
    if small.difference is None:
        assert json.loads(body(served)) == json.loads(body(other)) or body(served) == body(other)
    elif served == other:
        assert small.difference.kind == "type"


@given(DOCUMENTS, DOCUMENTS)
def test_paths_are_bounded_and_hold_no_values(served: Any, other: Any) -> None:
    """What is reported is short and ASCII but for the mark of a cut."""
    first = difference({"x" * 500: [served]}, {"x" * 500: [other]})
    if first is not None:
        assert len(first.path) <= MAX_PATH + 1
        assert first.path.replace("…", "").isascii()


@given(st.lists(st.sampled_from([".a", ".*", "[0]", "[*]", "['b c']"]), min_size=1, max_size=4))
def test_an_ignored_path_hides_its_place(steps: list[str]) -> None:
    """Two documents that differ there alone are alike; the path is one that the settings take."""
    path = "$" + "".join(steps)
    assert re.fullmatch(IGNORED_PATH_PATTERN, path)
    served: Any = 1
    other: Any = "two"
    for step in reversed(steps):
        if step in ("[0]", "[*]"):
            served, other = [served], [other]
        else:
            name = {".a": "a", ".*": "any", "['b c']": "b c"}[step]
            served, other = {name: served}, {name: other}
    assert difference(served, other, Rules((path,))) is None
    assert difference(served, other) is not None


def test_a_piece_of_work_is_small() -> None:
    """A step looks at no more values than it may: thousands of floats take many steps."""
    floats = [number / 3 for number in range(3000)]
    comparison = Comparison(Rules(), 200, body(floats), (), 200, body([*floats[:-1], 7.0]), ())
    steps = 0
    while not comparison.settled:
        comparison.step(100)
        steps += 1
    assert comparison.difference is not None
    assert comparison.difference.path == "$[2999]"
    assert steps >= 30


def test_queues_of_one_process_share_the_time() -> None:
    """Each that had a comparison lately has an equal part; one that had not leaves its part to others."""
    shares = Shares()
    one, other = CompareQueue(shares=shares), CompareQueue(shares=shares)
    assert shares.of(one, 0.0) == SHARE
    assert shares.of(other, 1.0) == shares.of(one, 2.0) == SHARE / 2
    assert shares.of(one, 1.5 + LATELY_SECONDS) == SHARE


def test_a_router_leaves_room_for_copies_of_another() -> None:
    bounds = CopyBounds(100 * MEMORY_SHARE)
    sizes = [0, 0, 0]
    for place in (0, 1, 2):
        while bounds.has_room(0, sizes[place], 1):
            sizes[place] += 1
            bounds.bytes += 1
    assert sizes == [100, 50, 25]
