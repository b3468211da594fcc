"""Makes a list, an entry for each item, from a batched method's return value or its generator's step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.end import END, End
from penstock.errors import AnswerError
from penstock.user_code import USER_CODE

_STOPS = {StopIteration, StopAsyncIteration, type}


def listed(result: Any, count: int, name: str, *, step: bool = False) -> list[Any]:
    """Make the list of a batch's answers.

    Args:
        result: a sequence, or an array or tensor of any library, with the items on its first axis.
        count: number of items of the batch.
        name: the method's name in messages.
        step: the result is one step of a generator, in which a slot can hold `END`, or, as in Ray Serve,
            `StopIteration` or `StopAsyncIteration`, which become `END`.

    Raises:
        AnswerError: it is not a list, has another length, or holds `END` outside of a step.
    """
    what = "entries in each step" if step else "answers"
    if isinstance(result, str | bytes | bytearray | memoryview) or not (
        isinstance(result, Sequence) or callable(getattr(result, "tolist", None))
    ):
        raise AnswerError(f"{name}: expected a list of {count} {what}, found {type(result).__name__}")
    try:
        with USER_CODE:
            answers = list(result)
    except TypeError:  # an array without axes
        raise AnswerError(f"{name}: expected a list of {count} {what}, found one value") from None
    if len(answers) != count:
        raise AnswerError(f"{name}: expected {count} {what}, found {len(answers)}")
    if step:
        if _STOPS.isdisjoint(map(type, answers)):
            return answers
        return [END if _stops(each) else each for each in answers]
    for index, answer in enumerate(answers):
        if type(answer) is End:
            raise AnswerError(
                f"{name}: expected penstock.END in what a generator yields, found it as answer {index}"
            )
    return answers


def _stops(entry: Any) -> bool:
    kind = entry if type(entry) is type else type(entry)
    return kind is StopIteration or kind is StopAsyncIteration
