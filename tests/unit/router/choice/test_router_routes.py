"""The front door's table: longest prefix on whole segments, stripped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_router.choice.routes import RouteTable
from penstock_router.router import decode_settings
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.errors import DocumentError


def table(**routes: str | None) -> RouteTable:
    return RouteTable.of(Endpoint(name=name, route=route) for name, route in routes.items())


ROUTES = table(root="/", digits="/digits", deep="/digits/v2", odd="/a b", none="", named=None)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/digits", ("digits", "/digits", "/")),
        ("/digits/", ("digits", "/digits", "/")),
        ("/digits/predict", ("digits", "/digits", "/predict")),
        ("/digits/predict?x=1&y=%2F", ("digits", "/digits", "/predict?x=1&y=%2F")),
        ("/digits?x", ("digits", "/digits", "/?x")),
        ("/digits?", ("digits", "/digits", "/?")),
        ("/digits/v2", ("deep", "/digits/v2", "/")),
        ("/digits/v2/x", ("deep", "/digits/v2", "/x")),
        ("/digits/v20", ("digits", "/digits", "/v20")),
        ("/digitsx", ("root", "", "/digitsx")),
        ("/Digits", ("root", "", "/Digits")),
        ("/%64igits/x", ("digits", "/%64igits", "/x")),
        ("/digits%2Fv2", ("root", "", "/digits%2Fv2")),
        ("/a%20b/c%20d", ("odd", "/a%20b", "/c%20d")),
        ("/digits//x", ("digits", "/digits", "//x")),
        ("/", ("root", "", "/")),
        ("/?q", ("root", "", "/?q")),
        ("//", ("root", "", "//")),
        ("/named/x", ("named", "/named", "/x")),
        ("*", None),
    ],
)
def test_the_longest_route_of_whole_segments_wins_and_is_stripped(
    target: str, expected: tuple[str, str] | None
) -> None:
    assert ROUTES.match(target) == expected


def test_without_a_root_route_the_rest_has_no_endpoint() -> None:
    assert table(digits="/digits").match("/other") is None
    assert table(digits="/digits").match("/") is None
    assert table().match("/") is None


def test_of_two_endpoints_with_one_route_the_first_stands_and_the_other_is_told() -> None:
    routes = table(first="/x", second="/x/", third="/%78")
    assert routes.match("/x/y") == ("first", "/x", "/y")
    assert routes.conflicts == {
        "second": "route '/x/' is taken by endpoint first",
        "third": "route '/%78' is taken by endpoint first",
    }


def test_a_route_without_a_slash_in_front_is_told() -> None:
    assert table(bad="x").conflicts == {"bad": "expected a route that begins with /, found 'x'"}


PART = st.text(alphabet="ab", min_size=1, max_size=2)
PATHS = st.lists(PART, max_size=4)


@given(routes=st.lists(PATHS, min_size=1, max_size=6), path=PATHS, query=st.sampled_from(["", "?", "?a=/b"]))
def test_a_match_is_the_longest_prefix_and_nothing_is_lost(
    routes: list[list[str]], path: list[str], query: str
) -> None:
    endpoints = {f"e{index}": "/" + "/".join(route) for index, route in enumerate(routes)}
    matched = table(**endpoints).match("/" + "/".join(path) + query)
    prefixes = [route for route in routes if path[: len(route)] == route]
    if not prefixes:
        assert matched is None
        return
    longest = max(prefixes, key=len)
    assert matched is not None
    name, route, rest = matched
    assert route == endpoints[name].rstrip("/")
    assert endpoints[name] == "/" + "/".join(longest)
    assert rest == "/" + "/".join(path[len(longest) :]) + query


@pytest.mark.parametrize(
    ("others", "works"), [(["h:1"], True), ([], True), (["h:2"], False), (["h:1", "h:2"], False)]
)
def test_a_backend_has_the_same_targets_in_all_endpoints_that_name_it(others: list[str], works: bool) -> None:
    """Otherwise clients of one endpoint would get the answers of another one's model."""
    endpoints = [
        {"name": name, "backends": [{"name": "stable", "targets": targets}]}
        for name, targets in (("one", ["h:1"]), ("two", others))
    ]
    document = json.dumps({"v": 1, "endpoints": endpoints}).encode()
    if works:
        assert len(decode_settings(document).endpoints) == 2
    else:
        with pytest.raises(
            DocumentError, match="endpoint two, backend stable: expected the targets that another"
        ):
            decode_settings(document)


def test_beside_an_operator_no_document_says_where_pods_are() -> None:
    """The file is a ConfigMap's: whoever writes it would lead clients to any host."""
    backend = {"name": "stable", "targets": ["192.0.2.1:80"]}
    for place in ({"backends": [backend]}, {"backends": [{"name": "b"}], "mirrors": [backend]}):
        document = json.dumps({"v": 1, "version": 2**53 - 1, "endpoints": [{"name": "e", **place}]}).encode()
        with pytest.raises(DocumentError, match="targets: expected none beside an operator"):
            decode_settings(document, targets=False)
