"""Models that take a table: a row of each item, all rows of a batch in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.decorators import batched
from penstock.formats.files import misfit

_REFUSALS = (AttributeError, OverflowError, TypeError, ValueError)
"""What models raise at values that they cannot take."""


class Rows:
    """Serves a function of a table; an item is a row: its values, or an object with a member for each column.

    Args:
        call: takes a table and returns an answer for each row.
        width: columns of a table; None if it takes something else, such as texts.
        names: of the columns; none if they have no names.
        frames: whether a table of named columns is a DataFrame of any values; else it is an array of numbers.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        *,
        width: int | None,
        names: Sequence[str] = (),
        frames: bool = False,
    ) -> None:
        self._call, self._width, self._names = call, width, list(names)
        self._frames = frames and bool(names)

    def name(self, columns: Sequence[str]) -> None:
        """Let rows be objects with these columns, too, if the model itself names none and has as many."""
        if not self._names and len(columns) == self._width:
            self._names = list(columns)

    @property
    def __tensors__(self) -> Mapping[str, Any] | None:
        """What tensors it takes, for its metadata: a column each, or all columns as one."""
        if self._width is None:
            return None
        kind = "" if self._frames else "FP64"
        if not self._names:
            return {"inputs": [{"name": "rows", "datatype": kind, "shape": [-1, self._width]}]}
        return {"inputs": [{"name": name, "datatype": kind, "shape": [-1]} for name in self._names]}

    def warmup(self) -> None:
        """Call once, which loads what libraries load late."""
        if self._width is not None and not self._frames:
            self._call(np.zeros((1, self._width)))

    @batched(arrays=True)
    def predict(self, rows: list) -> list:  # type: ignore[type-arg] # what a row is, the file decides
        """Answer a batch of rows with one call; a row that does not fit is answered 422 by itself."""
        if (table := self._numbers(rows)) is not None:
            try:
                return _listed(self._call(table))
            except _REFUSALS:
                pass  # at one of the rows
        taken = rows if self._width is None else [self._row(row) for row in rows]
        fits = [row for row in taken if row is not None]
        answers = iter(self._answers(fits) if fits else ())
        return [misfit(self._expected) if row is None else next(answers) for row in taken]

    def _numbers(self, rows: list[Any]) -> Any:
        """All rows as one array; None if they are not alike."""
        if self._width is None or self._frames:
            return None
        values = _array(rows)
        return values if values is not None and values.shape == (len(rows), self._width) else None

    def _answers(self, rows: list[Any]) -> list[Any]:
        """The answers to rows; where the model refuses them together, those to each by itself."""
        try:
            return _listed(self._call(self._table(rows)))
        except _REFUSALS as error:
            if len(rows) > 1:
                return [answer for row in rows for answer in self._answers([row])]
            return [misfit(f"{self._expected}, found: {str(error).partition(chr(10))[0]}")]

    @property
    def _expected(self) -> str:
        if self._width is None:  # such as of texts
            return "expected what the estimator takes"
        if self._names:
            return f"expected {self._width} values, or an object with {', '.join(self._names)}"
        return f"expected {self._width} numbers"

    def _row(self, row: Any) -> Any:
        """The row as its values, None if it does not fit."""
        if isinstance(row, dict):
            if not self._names or row.keys() != set(self._names):
                return None
            row = [_single(row[name]) for name in self._names]
        if not isinstance(row, list | np.ndarray) or len(row) != self._width:
            return None
        if self._frames:
            return row
        values = _array(row)
        return values if values is not None and values.ndim == 1 else None

    def _table(self, rows: Sequence[Any]) -> Any:
        if self._width is None:
            return rows
        return _frame(rows, self._names) if self._frames else np.stack(rows)


def _array(values: Any) -> Any:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def _single(value: Any) -> Any:
    """The value of a column, of which a tensor may have an axis of one."""
    return value[0] if isinstance(value, list | np.ndarray) and np.shape(value) == (1,) else value


def _frame(values: Any, names: Sequence[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(values, columns=names)


def _listed(answers: Any) -> list[Any]:
    return answers.tolist() if hasattr(answers, "tolist") else list(answers)
