"""Several scalers of one backend: what nine minutes of them have come to (`make test`), or an hour."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.support.cluster.k8s import assert_nothing_lost, condition_of
from tests.support.cluster.watched import writer_of_replicas
from tests.support.ledger.fight import PERSON, Fight

YIELD = 300
"""Seconds for which the autoscaler lets another scaler's number stand; twice as long if it comes back."""


@pytest.mark.xdist_group("fight")
@pytest.mark.timeout(4800)  # --fight-seconds 3600 lets them disagree for an hour
def test_scalers_that_disagree_do_not_fight_and_lose_nothing(fight: Fight) -> None:
    """An HPA holds 2, a person wants 3, a controller reconciles again and again, and the load wants 4.

    While numbers of others come, the autoscaler writes none; the HPA's alone it writes over after 5 minutes,
    then after 10, and so on. `ForeignScaler` stands in all the states of the backend that a watch sees
    until then, and no request is lost to the pods that come and go. In a run of all tests it began in
    `test_ownership.py`, and goes on through what the tests of its group since then do to the operator.
    """
    summary = fight.ended()
    assert_nothing_lost(summary)

    states, seconds = fight.states, fight.seconds
    changes = [(writer_of_replicas(state), state["spec"]["replicas"]) for state in states]
    writes = [
        owner
        for (owner, number), before in zip(changes[1:], changes, strict=False)
        if (owner, number) != before
    ]
    counted = ", ".join(f"{owner} {writes.count(owner)}" for owner in sorted(set(writes)))
    print(f"{seconds:.0f} s, {len(states)} states, replicas written by: {counted}")
    assert {"kubectl", "kube-controller-manager"} <= set(writes), changes
    # Then the HPA is alone: 5 minutes, then 10, then 20.
    assert writes.count("penstock-autoscaler") <= math.log2(seconds * (1 - PERSON) / YIELD + 1)
    others = itertools.takewhile(lambda state: writer_of_replicas(state) != "penstock-autoscaler", states)
    conditions = [condition_of(state, "ScalingActive") for state in others]
    assert {(each["status"], each["reason"]) for each in conditions} == {("False", "ForeignScaler")}
    namespace = fight.namespace  # its pods take room from the tests that follow
    namespace.cluster.kubectl("delete", "namespace", namespace.name, "--wait=false")
