"""Serves an ONNX file by onnxruntime."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # NB: its builds call their vendor, from the import on
import onnxruntime

from penstock.decorators import batched
from penstock.errors import LoadError
from penstock.formats.files import MOUNTED, misfit, only_file, processors

_KINDS: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bool": np.bool_,
    "string": np.object_,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_V2 = {
    f"tensor({kind})": {"string": "BYTES", "float": "FP32", "double": "FP64", "float16": "FP16"}.get(
        kind, kind.upper()
    )
    for kind in _KINDS
}
"""What the Open Inference Protocol calls the types."""
_PLAIN = {"i": int, "u": int, "b": bool, "O": str}
"""What the values of an input are in Python, by numpy's letter for its type."""


class _Input:
    """An input of a model: its name, and what an item has of it."""

    def __init__(self, described: Any) -> None:
        self.name: str = described.name
        kind = described.type.removeprefix("tensor(").removesuffix(")")
        if kind not in _KINDS or not described.shape:
            raise LoadError(f"expected inputs that are tensors, found {described.name} of {described.type}")
        first, *self.shape = described.shape
        if isinstance(first, int):
            raise LoadError(
                f"expected a first axis of any length in input {described.name}, for batches, found {first}: "
                "export the model with a dynamic batch axis"
            )
        self.dtype = np.dtype(_KINDS[kind])
        self.exact = tuple(self.shape)

    @property
    def words(self) -> str:
        axes = " x ".join("?" if not isinstance(axis, int) else str(axis) for axis in self.shape)
        return f"{axes or 'a single'} {self.dtype.name} for {self.name}"

    def array(self, value: Any) -> Any:
        """The value as an array, None if it does not fit."""
        if getattr(value, "dtype", None) == self.dtype:  # a tensor's row
            return value if self.fits(value.shape) else None
        # NB: numpy cuts 1.7 to an integer, and makes numbers of texts, without a word.
        kind = self.dtype.kind
        try:
            if kind == "f":
                fits = np.asarray(value).dtype.kind in "biuf"
            else:
                fits = all(isinstance(each, _PLAIN[kind]) for each in np.asarray(value, dtype=object).flat)
            if not fits:
                return None
            array = np.asarray(value, dtype=self.dtype)
        except (TypeError, ValueError, OverflowError):
            return None
        return array if self.fits(array.shape) else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an item may have this shape."""
        return shape == self.exact or (
            len(shape) == len(self.shape)
            and all(
                not isinstance(axis, int) or axis == size
                for axis, size in zip(self.shape, shape, strict=True)
            )
        )


class Model:
    """A model; an item is its one input without the batch axis, or an object with a member for each input.

    An answer is its one output for that item, or an object with a member for each output.

    Args:
        path: the file, or a folder with one `.onnx` file in it.

    Raises:
        LoadError: there is no such file, onnxruntime cannot open it, or its inputs cannot be batched.
    """

    def __init__(self, path: str = MOUNTED) -> None:
        file = only_file(path, ".onnx")
        self._session = session(file)
        self._inputs = [_Input(described) for described in self._session.get_inputs()]
        self._names = [each.name for each in self._inputs]
        self._outputs = [described.name for described in self._session.get_outputs()]

    @property
    def __tensors__(self) -> Mapping[str, Any]:
        """The tensors of the file, for the model's metadata."""
        both = {"inputs": self._session.get_inputs(), "outputs": self._session.get_outputs()}
        return {
            kind: [
                {
                    "name": each.name,
                    "datatype": _V2.get(each.type, ""),
                    "shape": [axis if isinstance(axis, int) else -1 for axis in each.shape],
                }
                for each in tensors
            ]
            for kind, tensors in both.items()
        }

    def warmup(self) -> None:
        """Run once, if the shapes are known."""
        if all(isinstance(axis, int) for each in self._inputs for axis in each.shape):
            self._session.run(
                None, {each.name: np.zeros((1, *each.shape), each.dtype) for each in self._inputs}
            )

    @batched(arrays=True)
    def predict(self, items: list) -> list:  # type: ignore[type-arg] # what an item is, the file decides
        """Answer a batch with one run for each shape; an item that does not fit is answered 422 by itself."""
        if (values := self._together(items)) is not None:
            return self._run([values], items[0])
        answers: list[Any] = [None] * len(items)
        alike: dict[tuple[Any, ...], list[tuple[int, list[Any]]]] = defaultdict(list)
        for index, item in enumerate(items):
            arrays = self._arrays(item)
            if arrays is None:
                answers[index] = misfit("expected " + " and ".join(each.words for each in self._inputs))
            else:
                alike[tuple(array.shape for array in arrays)].append((index, arrays))
        for group in alike.values():
            columns = zip(*(arrays for _, arrays in group), strict=True)
            found = self._run([np.stack(column) for column in columns], items[0])
            for (index, _), answer in zip(group, found, strict=True):
                answers[index] = answer
        return answers

    def _run(self, columns: list[Any], first: Any) -> list[Any]:
        """The answers to items of one shape, given as an array for each input."""
        fed = dict(zip(self._names, columns, strict=True))
        outputs = self._session.run(self._outputs, fed)
        # Outputs of tensors have their names; a lone one is a plain answer in JSON.
        if len(outputs) == 1:
            (name,) = self._outputs
            return [{name: row} for row in outputs[0]] if _of_tensors(first) else list(outputs[0])
        return [dict(zip(self._outputs, values, strict=True)) for values in zip(*outputs, strict=True)]

    def _together(self, items: list[Any]) -> Any:
        """All items as one array of the one input; None if they are not alike, or need a closer look."""
        if len(self._inputs) > 1:
            return None
        (one,) = self._inputs
        try:
            values = np.asarray(items)
        except ValueError:  # several shapes
            return None
        if not one.fits(values.shape[1:]):
            return None
        wanted, found = one.dtype, values.dtype
        if found == wanted:
            return None if found.kind == "O" else values
        return values.astype(wanted) if wanted.kind == "f" and found.kind in "iuf" else None

    def _arrays(self, item: Any) -> list[Any] | None:
        if len(self._inputs) == 1 and not (
            isinstance(item, Mapping) and item.keys() == {self._inputs[0].name}
        ):
            values = [item]
        elif isinstance(item, Mapping) and item.keys() == {each.name for each in self._inputs}:
            values = [item[each.name] for each in self._inputs]
        else:
            return None
        arrays = [each.array(value) for each, value in zip(self._inputs, values, strict=True)]
        return None if any(array is None for array in arrays) else arrays


def session(file: Path) -> Any:
    """Open a file by onnxruntime.

    Raises:
        LoadError: it cannot.
    """
    try:
        # onnxruntime itself counts the processors of the node.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = processors()
        return onnxruntime.InferenceSession(
            str(file), options, providers=onnxruntime.get_available_providers()
        )
    except Exception as error:
        raise LoadError(
            f"expected a model in {file} that onnxruntime {onnxruntime.__version__} can open: {error}"
        ) from error


def _of_tensors(item: Any) -> bool:
    if hasattr(item, "dtype"):
        return True
    return isinstance(item, Mapping) and any(hasattr(value, "dtype") for value in item.values())
