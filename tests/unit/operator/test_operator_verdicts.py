"""The verdict and the limit that are told of a number which the load alone does not explain."""

from __future__ import annotations

from dataclasses import replace

from penstock_operator.autoscaling import PodLoad, RouterHolds, Sample, ScalerState, Target, recommend
from tests.support.worlds.measured_pods import pod

TARGET = Target(min_replicas=1, max_replicas=10, target_load=10, stable_window=60, downscale_delay=300)


def test_a_lower_limit_is_named_where_the_load_may_not_lower_the_number_yet() -> None:
    """The number changes all the same, and the change must have its cause."""
    state = ScalerState(first_look=0, wanted=((90, 10),))
    pods = [pod(f"p{n}", load=1) for n in range(10)]
    target = replace(TARGET, max_replicas=5, most_by="night")
    seen, _ = recommend(target, current=10, pods=pods, state=state, now=100)
    assert (seen.replicas, seen.verdict) == (5, "Delayed")
    assert "; maxReplicas of schedule night is 5; " in seen.message
    seen, _ = recommend(target, current=5, pods=pods, state=state, now=100)
    assert (seen.replicas, seen.verdict) == (5, "Delayed")
    assert "maxReplicas" not in seen.message


def test_a_number_that_is_kept_until_a_pod_is_ready_is_not_what_the_load_asks_for() -> None:
    """Held requests ask for fewer pods than start for them."""
    starts = [PodLoad(name=f"p{n}", ready=False, was_ready=False) for n in range(3)]
    held = RouterHolds(name="r", samples=(Sample(at=100, load=5),))
    state = ScalerState(first_look=0, wanted=((0, 1),))
    seen, _ = recommend(TARGET, current=3, pods=starts, state=state, now=100, holds=[held])
    assert (seen.replicas, seen.verdict, seen.inputs.wanted) == (3, "Delayed", 1)
    assert seen.limit == "not lowered while no pod is ready"
