"""Options of the tests against other people's clients and servers."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clients-results", help="write the figures of these tests into this file")
