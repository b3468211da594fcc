"""The decorator and the public names."""

from __future__ import annotations

import pytest

import penstock
from penstock.decorators import Batched, mark_of


def test_the_public_names_are_these() -> None:
    """Whoever takes a name away or adds one does it on purpose."""
    names = (
        "AnswerError Application Batcher CallCycle Client CompositionError Context ControlError "
        "DeadlineExceeded END EndpointNotFound Handle LoadError Request Response SlowReader "
        "UnknownModel UpstreamError UpstreamTimeout backend batch batched context multiplexed run"
    )
    assert sorted(penstock.__all__) == names.split()


def test_a_marked_method_stays_callable_and_is_marked() -> None:
    """The decorator changes nothing for a caller of the method."""

    @penstock.batched
    def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    assert double([1, 2]) == [2, 4]
    assert mark_of(double) == Batched(columns=False)


def test_columns_are_asked_for_with_an_argument() -> None:
    """`@penstock.batched(columns=True)` and `@penstock.batched()` are both decorators."""
    marks = [mark_of(penstock.batched(columns=True)(lambda a: a)), mark_of(penstock.batched()(lambda a: a))]
    assert marks == [Batched(columns=True), Batched(columns=False)]


def test_an_unmarked_method_has_no_mark() -> None:
    assert mark_of(lambda item: item) is None


def test_a_class_cannot_be_marked() -> None:
    """The mark belongs on the method; on the class it would say nothing."""
    with pytest.raises(TypeError, match="expected a method or a function, found <class 'int'>"):
        penstock.batched(int)


@pytest.mark.parametrize("status", [100, 199, 600, True, "200"])
def test_a_response_refuses_a_status_that_http_has_not(status: object) -> None:
    with pytest.raises(ValueError, match="expected a status from 200 to 599"):
        penstock.Response(status)  # type: ignore[arg-type]
