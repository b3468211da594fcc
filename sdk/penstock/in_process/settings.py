"""The settings of `@penstock.batch`, validated on construction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from penstock.in_process.costs import Cost, checked
from penstock.near_names import did_you_mean

MAX_CONCURRENT = 64
"""The most batches at once: the largest maxConcurrentBatches of a BatchPolicy, and the number of threads."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The settings of batching.

    Args:
        max_batch_size: the most items of a batch.
        batch_wait_timeout: seconds that a part-full batch can wait for more items while a slot is free.
        max_concurrent_batches: the most batches under way at once.
        timeout: seconds after which a call without an answer raises `DeadlineExceeded`; None = never.
        isolate: run parts of a batch that raised again, until each call has its own outcome.
        cost: what an item costs, by a function or a path (`costs.Cost`); None if all cost about the same.

    Raises:
        TypeError: a value has another type.
        ValueError: a value is out of its range.
    """

    max_batch_size: int = 32
    batch_wait_timeout: float = 0.0
    max_concurrent_batches: int = 1
    timeout: float | None = None
    isolate: bool = True
    cost: Cost | None = None

    def __post_init__(self) -> None:
        for name, most in (("max_batch_size", None), ("max_concurrent_batches", MAX_CONCURRENT)):
            object.__setattr__(self, name, count(name, getattr(self, name), most))
        _seconds("batch_wait_timeout", self.batch_wait_timeout, positive=False)
        if self.timeout is not None:
            _seconds("timeout", self.timeout, positive=True)
        if not isinstance(self.isolate, bool):
            raise TypeError(f"penstock.batch: expected isolate to be True or False, found {self.isolate!r}")
        checked(self.cost, "penstock.batch")


def changed(settings: BatchSettings, changes: Mapping[str, object]) -> BatchSettings:
    """Return settings with some values changed.

    Args:
        settings: the settings to start from.
        changes: new values by name.

    Raises:
        TypeError: a name is unknown, or a value has another type.
        ValueError: a value is out of its range.
    """
    known = [field.name for field in dataclasses.fields(BatchSettings)]
    for name in changes:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"penstock.batch: expected one of {', '.join(known)}, found {name}{hint}")
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type] # it checks them


def count(name: str, value: object, most: int | None, where: str = "penstock.batch") -> int:
    """Return a setting as an integer; 4.0, as it comes of a division or of JSON, is one.

    Args:
        name: the setting's name.
        value: its value.
        most: the largest value; None for no limit.
        where: what the setting belongs to, for messages.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is out of its range.
    """
    limits = "of at least 1" if most is None else f"from 1 to {most}"
    text = f"{where}: expected {name} to be an integer {limits}, found {value!r}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(text)
    if value < 1 or (most is not None and value > most):
        raise ValueError(text)
    return value


def _seconds(name: str, value: object, *, positive: bool) -> None:
    limits = "more than 0" if positive else "0 or more"
    text = f"penstock.batch: expected {name} to be {limits} seconds, found {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(text)
    if not (math.isfinite(value) and (value > 0 or (value == 0 and not positive))):
        raise ValueError(text)
