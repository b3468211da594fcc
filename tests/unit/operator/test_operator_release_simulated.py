"""Simulated releases: the operator's machine and evidence take a bad candidate back, and a healthy one on."""

from __future__ import annotations

import pytest

from tests.support.worlds.simulated_releases import KINDS, release


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_ends_as_it_should(name: str) -> None:
    """Bad ones are taken back within two intervals, healthy ones are promoted; a seed has one end.

    Where whole batches fail or are late, a healthy one may take longer than the time that is simulated.
    """
    kind = KINDS[name]
    outcomes = [release(name, seed) for seed in (1, 2, 3, 1)]
    slow = {"Progressing"} if kind.versions[0].batch > 1 else set()
    assert {each.phase for each in outcomes} - slow == {"RolledBack" if kind.bad else "Promoted"}
    assert not kind.bad or max(each.intervals for each in outcomes) <= 2
    assert outcomes[0] == outcomes[3]
