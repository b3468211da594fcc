"""Options that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is not a counterexample, and the same tree is judged by the same examples each time.
settings.register_profile("penstock", deadline=None, derandomize=True)
# Others each time, until one is found: `--hypothesis-profile explore`.
settings.register_profile("explore", deadline=None)
# A fourth of the examples: `make quick`.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
    parser.addoption(
        "--without-compiled",
        action="store_true",
        help="leave out what `make compiled` has run: it has passed",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test of wire and sidecar once, on what images hold, where `make test` has done that."""
    if not config.getoption("--without-compiled"):
        return
    tests = Path(__file__).parent
    folders = [tests / kind / name for kind in ("unit", "process") for name in ("router", "sidecar", "wire")]
    ran = [
        item
        for item in items
        if any(item.path.is_relative_to(folder) for folder in (tests / "unit/compiled", *folders))
        and item.get_closest_marker("interpreted") is None
    ]
    config.hook.pytest_deselected(items=ran)
    left_out = set(ran)
    items[:] = [item for item in items if item not in left_out]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/clients and tests/scalers to who names them: they take what nothing else needs."""
    apart = [Path(__file__).with_name(name) for name in ("clients", "scalers")]
    asked = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    if collection_path in apart and not any(path.is_relative_to(collection_path) for path in asked):
        return True
    return None
