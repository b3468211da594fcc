"""What is said of a pod's trouble stays the same while the trouble does."""

from __future__ import annotations

from penstock_operator.status import pods
from tests.support.observed import container, pod


def test_a_pull_that_is_tried_again_and_again_is_told_once() -> None:
    """Kubelet alternates between two wordings of one failure, from a new port each time."""
    told = set()
    for port in (40902, 41118):
        cause = (
            'failed to resolve image: Head "https://r.example/v2/": lookup r.example on 10.0.0.10:53: '
            f"read udp 10.0.0.5:{port}->10.0.0.10:53: i/o timeout"
        )
        held = f'Back-off pulling image "r.example/m:1": ErrImagePull: {cause}'
        for turn in (
            {"reason": "ErrImagePull", "message": cause},
            {"reason": "ImagePullBackOff", "message": held},
        ):
            found = pods.trouble([pod(ready=False, containerStatuses=[container(waiting=turn)])])
            assert found is not None
            told.add((found.reason, found.message))
    ((reason, message),) = told
    assert reason == "ImagePullFailed"
    assert message.endswith("10.0.0.10:53: read udp 10.0.0.5->10.0.0.10:53: i/o timeout")
