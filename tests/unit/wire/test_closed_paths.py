"""Closed paths: another spelling of one is refused, too, and all other paths pass."""

from __future__ import annotations

import time
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_wire.closed_paths import ClosedPaths, canonical

CLOSED = ClosedPaths(["/-/reconfigure"])
SPELLINGS = [
    "/-/reconfigure",
    "/-/reconfigure/",
    "/-/reconfigure//",
    "//-/reconfigure",
    "/-//reconfigure",
    "/./-/reconfigure",
    "/x/../-/reconfigure",
    "/../-/reconfigure",
    "/-/RECONFIGURE",
    "/-/reconfigur%65",
    "/%2d/reconfigure",
    "/-%2Freconfigure",
    "/-/reconfigur%2565",
    "/-/reconfigure;x=1",
    "/-;y/reconfigure",
    "/-\\reconfigure",
    "/-/x/%2e%2e/reconfigure",
    "/-/reconfigure#x",
    "/-/reconfigure/.",
    "-/reconfigure",
    "/-/reconfigur%252565",
    "/-/reconfigur%25252525252565",
    "/-/reconfigure%3fx",
    "/-/reconfigure%253fx",
    "/x%3f/../-/reconfigure",
    "/-/reconfigure%23x",
    "/-/reconfigure%00",
    "/-/reconfigure%00.json",
    "/-/recon%00figure",
    "/-/reconfigure%20",
    "/%09-/reconfigure",
    "/-/reconfigure%0d%0a",
    "/-/reconfigure;%2f..%2f..%2fx",
    "/-/reconfigure%3b%252f..%252f..%252fx",
]
OTHERS = [
    "/",
    "*",
    "",
    "/-/",
    "/-/reconfigured",
    "/reconfigure",
    "/-/reconfigure/x",
    "/x/-/reconfigure",
    "/-/reconfigure/../x",
    "/v1/models/m%3Apredict",
    "/-/reconfigure.",
    "/-/reconfi%gure",
    "/v1/models/a%20b%2525:predict",
]


@pytest.mark.parametrize("path", SPELLINGS)
def test_every_spelling_of_a_closed_path_is_closed(path: str) -> None:
    assert CLOSED.include(path)


@pytest.mark.parametrize("path", OTHERS)
def test_other_paths_are_open(path: str) -> None:
    assert not CLOSED.include(path)
    assert not ClosedPaths([]).include(path)


def test_a_closed_path_may_itself_be_spelled_otherwise() -> None:
    for own in ("/-/reconfigur%65", "//-/reconfigure/", "/-/x/../RECONFIGURE", "-/reconfigure#x"):
        assert ClosedPaths([own]).include("/-/reconfigure")
    assert ClosedPaths(["/"]).include("/")
    assert not ClosedPaths(["/"]).include("/x")


@given(st.text(alphabet="/.%;#?\\25eEfF-aZ \0", max_size=40))
def test_the_quick_look_says_what_the_whole_one_says(path: str) -> None:
    """Most paths are not taken apart."""
    assert ClosedPaths([path]).include(path)
    if canonical(path) == "/a" or canonical(unquote(path)) == "/a":
        assert ClosedPaths(["/a"]).include(path)
    elif not set(path) & set("%?#\0"):
        assert not ClosedPaths(["/a"]).include(path)


def test_a_hostile_path_costs_no_more_than_its_length() -> None:
    """Percent signs upon percent signs are not undone to their end."""
    path = "/" + "%25" * 20_000 + "/.." * 10_000
    began = time.process_time()
    assert not CLOSED.include(path)
    assert not CLOSED.include("/a" * 20_000 + "?#%00%2500%3f%23" + "%%32%35" * 1000)
    assert time.process_time() - began < 1
