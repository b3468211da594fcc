"""Conditions keep their time while they stay, and say what they have to in few words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock_operator.api import Condition
from penstock_operator.status import conditions
from tests.support.worlds.observed import LATER, NOW


def test_a_condition_that_stays_keeps_its_time() -> None:
    """Only a change of status is a transition; reason, message and generation follow at once."""
    old = [
        Condition(type="A", status="True", reason="R", last_transition_time=NOW),
        Condition(type="B", status="True", reason="R", last_transition_time=NOW),
        Condition(type="Gone", status="True", reason="R", last_transition_time=NOW),
    ]
    new = [
        conditions.condition("B", "False", "S", "why"),
        conditions.condition("Ready", "True", "R"),
        conditions.condition("A", "True", "T"),
    ]
    assert conditions.merge(old, new, generation=2, now=LATER) == [
        {"type": "Ready", "status": "True", "reason": "R", "message": "",
         "observedGeneration": 2, "lastTransitionTime": LATER},
        {"type": "A", "status": "True", "reason": "T", "message": "",
         "observedGeneration": 2, "lastTransitionTime": NOW},
        {"type": "B", "status": "False", "reason": "S", "message": "why",
         "observedGeneration": 2, "lastTransitionTime": LATER},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["b", "a"], "a, b"), (["c", "b", "a"], "a, b, c"), (list("fedcba"), "a, b, c and 3 more")],
)
def test_some_names(names: Sequence[str], text: str) -> None:
    """Up to three names, and a count."""
    assert conditions.some(names) == text


def test_shares() -> None:
    """Percentages of the sum; weights of nothing are nothing."""
    assert conditions.shares([("one", 90), ("two", 10)]) == "one 90%, two 10%"
    assert conditions.shares([("a", 1), ("b", 2)]) == "a 33.3%, b 66.7%"
    assert conditions.shares([("a", 0)]) == "a 0%"
    assert conditions.shares([]) == ""


def test_a_long_message_is_cut() -> None:
    """A model's last words may be a book; the status is not."""
    assert len(conditions.condition("A", "True", "R", "x" * 10_000).message) == 2048
