"""What the ledger of the router's bench calls wrong."""

from __future__ import annotations

from typing import Any

import pytest

from bench.router_ledger import wrong

UNREACHABLE = "error 502 model_unreachable"


def summary(
    *, faults: list[str] | None = None, details: tuple[str, ...] = (), **outcomes: int
) -> dict[str, Any]:
    return {"faults": faults or [], "outcomes": outcomes, "details": dict.fromkeys(details, 1)}


@pytest.mark.parametrize(
    ("seen", "executed", "expected"),
    [
        (summary(ok=10), 10, ""),
        (summary(ok=8, error=2, details=(UNREACHABLE,)), 9, ""),
        (summary(ok=10), 11, "expected 10 to 10 items executed, found 11"),
        (summary(ok=8, error=2, details=(UNREACHABLE,)), 7, "expected 8 to 10 items"),
        (summary(ok=9, error=1, details=("error 500 internal",)), 9, "expected no error but"),
        (summary(ok=9, lost=1), 9, "1 requests: lost"),
        (summary(ok=9, refused=1), 9, "1 requests: refused"),
        (summary(ok=10, faults=["1 answers were another request's"]), 10, "another request's"),
    ],
)
def test_an_answer_too_much_or_too_few_is_wrong(seen: dict[str, Any], executed: int, expected: str) -> None:
    problems = wrong(seen, executed)
    assert bool(problems) == bool(expected)
    assert expected in "".join(problems)
