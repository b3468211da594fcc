"""`bench.sdk` fails where a bound was missed or a stream was wrong."""

from __future__ import annotations

from typing import Any

import pytest

from bench import sdk


def document(**changed: float) -> dict[str, Any]:
    """Figures at their bounds, apart from those that are named."""
    bounds = {f"run_{nodes}": sdk.MOST_START_SECONDS for *_, nodes in sdk.STARTED}
    values = {**bounds, "slowest": sdk.MOST_STREAM_MS, **changed}
    figures = {f"streams/penstock/{sdk.STREAMS}/first_piece_slowest": {"median": values["slowest"]}}
    for *_, nodes in sdk.STARTED:
        figures[f"run/penstock/{nodes}/first_answer"] = {"median": values[f"run_{nodes}"]}
    return figures


@pytest.mark.parametrize(
    ("changed", "wrong", "code"),
    [({}, 0, 0), ({}, 1, 1), ({"slowest": 20.1}, 0, 1), ({"run_1": 2.1}, 0, 1), ({"run_3": 2.1}, 0, 1)],
)
def test_a_bound_that_is_missed_is_a_failure(changed: dict[str, float], wrong: int, code: int) -> None:
    assert sdk.judge(document(**changed), wrong) == code
