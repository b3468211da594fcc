"""Makes a list with an entry for each item of what a batched method, or a step of its generator, returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.end import End
from penstock.errors import AnswerError


def listed(result: Any, count: int, name: str, *, step: bool = False) -> list[Any]:
    """The answers of a batch.

    Args:
        result: a sequence, or an array or tensor of any library, whose first axis then counts.
        count: items of the batch.
        name: how messages call the method.
        step: it is one step of a generator, where `END` may stand in a slot.

    Raises:
        AnswerError: it is no list, of another length, or has `END` where there is nothing to end.
    """
    what = "entries in each step" if step else "answers"
    if isinstance(result, str | bytes | bytearray | memoryview) or not (
        isinstance(result, Sequence) or callable(getattr(result, "tolist", None))
    ):
        raise AnswerError(f"{name}: expected a list of {count} {what}, found {type(result).__name__}")
    try:
        answers = list(result)
    except TypeError:  # an array without axes
        raise AnswerError(f"{name}: expected a list of {count} {what}, found one value") from None
    if len(answers) != count:
        raise AnswerError(f"{name}: expected {count} {what}, found {len(answers)}")
    if not step:
        for index, answer in enumerate(answers):
            if type(answer) is End:
                raise AnswerError(
                    f"{name}: expected penstock.END in what a generator yields, found it as answer {index}"
                )
    return answers
