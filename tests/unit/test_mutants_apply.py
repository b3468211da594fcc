"""Edits of our code do not rot: a kept mutant applies, is Python, and has tests to judge it."""

from __future__ import annotations

import collections
import inspect
import re

import pytest

from penstock_operator.desired import sidecar
from tests.mutants.table import CORE, MUTANTS, Mutant
from tests.mutants.trial import ROOT, CannotApplyError, edit
from tests.support.cluster.later_operator import change


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_where_its_text_is_once_and_has_tests_that_exist(mutant: Mutant) -> None:
    """Where this fails, the code has moved on: put the mutant in its terms (`tests/mutants/table.py`)."""
    edit(mutant)
    assert mutant.tests
    for test in mutant.tests:
        file, *names = test.partition("[")[0].split("::")  # without the id of one set of parameters
        text = (ROOT / file).read_text()
        for name in names:
            assert re.search(rf"(def|class) {name}\b", text), test


def test_each_promise_of_the_core_has_two_mutants_and_no_two_have_one_name() -> None:
    counts = collections.Counter(mutant.breaks for mutant in MUTANTS)
    assert [promise for promise in CORE if counts[promise] < 2] == []
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(
    ("old", "new"), [("no such text is in there", "x"), ("self", "this"), ("class Keys:", "class Keys")]
)
def test_one_that_does_not_apply_is_refused(old: str, new: str) -> None:
    """A text that is missing, one that is there several times, one that makes no Python."""
    mutant = Mutant(name="m", breaks="p", package="penstock_sidecar", old=old, new=new, tests=())
    with pytest.raises(CannotApplyError):
        edit(mutant)


def test_the_later_operator_of_the_upgrade_tests_can_be_made() -> None:
    source = inspect.getsource(sidecar)
    assert change.changed(source) != source
    compile(change.changed(source), "later", "exec")
