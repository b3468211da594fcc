"""What the candidate's ready pods allow, and which pods both backends keep while a release is under way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.releases import capacity
from penstock_operator.releases.state import BackendSeen
from tests.support.worlds.releases import LAST, NOW, at, strategy

S = strategy()


@given(st.integers(0, 100), st.integers(0, 300), st.integers(0, 300))
def test_a_weight_is_allowed_by_exactly_the_pods_that_it_needs(
    weight: int, ready: int, replicas: int
) -> None:
    """The part of the pods that served all requests, rounded up, and never none."""
    assert (weight <= capacity.allowed(ready, replicas)) == (ready >= capacity.needed(weight, replicas))


@pytest.mark.parametrize(
    ("step", "phase", "state", "floors"),
    [
        pytest.param(0, "Progressing", {}, (10, 1), id="mirror-and-the-next"),
        pytest.param(1, "Progressing", {}, (10, 5), id="over-a-timed-pause"),
        pytest.param(3, "Progressing", {"weight": 10, "target": 10}, (10, 5), id="not-over-a-manual-one"),
        pytest.param(3, "Progressing", {"weight": 20}, (10, 5), id="of-the-target-while-pods-are-lost"),
        pytest.param(4, "Paused", {}, (10, 5), id="paused"),
        pytest.param(3, "Paused", {"weight": 10, "target": 10}, (10, 1), id="paused-before-its-weight"),
        pytest.param(5, "Progressing", {}, (10, 10), id="promotion-is-next"),
        pytest.param(0, "Progressing", {"replicas": 0}, (0, 1), id="a-stable-without-pods"),
        pytest.param(LAST, "Promoted", {}, (10, 10), id="promoted"),
        pytest.param(LAST, "Promoted", {"idle_since": "2026-01-31T11:59:31Z"}, (10, 10), id="not-idle-yet"),
        pytest.param(LAST, "Promoted", {"idle_since": "2026-01-31T11:59:30Z"}, (0, 0), id="idle"),
        pytest.param(3, "RolledBack", {}, (10, 0), id="rolled-back"),
        pytest.param(3, "RolledBack", {"idle_since": "2026-01-31T11:59:00Z"}, (0, 0), id="idle-candidate"),
        pytest.param(3, "Progressing", {"candidate": "another"}, (0, 0), id="another-pair"),
    ],
)
def test_floors(step: int, phase: str, state: dict[str, Any], floors: tuple[int, int]) -> None:
    """Of the stable and the candidate."""
    kept = capacity.floors(S, at(S, step, phase, **state), NOW)
    assert kept == {name: pods for name, pods in zip(("old", "new"), floors, strict=True) if pods}


def test_without_a_strategy_or_a_release_there_are_no_floors() -> None:
    assert capacity.floors(None, at(S, 3), NOW) == capacity.floors(S, None, NOW) == {}


def test_promotion_by_hand_starts_no_pods_before_it() -> None:
    manual = strategy(promotion="Manual")
    assert capacity.floors(manual, at(manual, 5), NOW + timedelta(hours=1))["new"] == 8


@pytest.mark.parametrize(
    ("ready", "replicas", "most", "weight", "pods"),
    [
        pytest.param(9, 9, 20, 0, 10, id="never-fewer"),
        pytest.param(13, 10, 20, 0, 10, id="not-the-surplus-of-a-rollout"),
        pytest.param(0, 12, 20, 0, 12, id="none-is-ready-yet"),
        pytest.param(12, 0, 20, 0, 12, id="on-its-way-to-none"),
        pytest.param(12, 12, 20, 0, 12, id="grown"),
        pytest.param(12, 12, 20, 25, 16, id="grown-with-a-part"),
        pytest.param(12, 12, None, 25, 12, id="scaled-by-hand"),
        pytest.param(11, 11, 20, 99, 17, id="no-more-than-both-have"),
        pytest.param(12, 12, 14, 25, 14, id="no-more-than-it-may-have"),
        pytest.param(12, 12, 20, 100, 12, id="without-requests"),
    ],
)
def test_what_serves_all_requests_grows_with_the_stable(
    ready: int, replicas: int, most: int | None, weight: int, pods: int
) -> None:
    """In proportion to its part, where its load made it grow, of which there are ten pods before."""
    stable = BackendSeen(exists=True, ready=ready, replicas=replicas, most=most)
    assert capacity.whole(stable, BackendSeen(exists=True, ready=6), weight, 10) == pods
