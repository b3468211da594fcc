"""Options that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A busy machine is no counterexample, and the same tree is judged by the same examples each time.
settings.register_profile("penstock", deadline=None, derandomize=True)
# Others each time, until one is found: `--hypothesis-profile explore`.
settings.register_profile("explore", deadline=None)
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
