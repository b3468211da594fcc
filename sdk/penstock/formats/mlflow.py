"""Serves a model that MLflow saved, without MLflow: by the class of the format that its files have.

MLflow writes files of other libraries, and beside them `MLmodel`, which says which. Of its flavours those of
scikit-learn, XGBoost, LightGBM and ONNX are here. A `python_function` alone is a pickle of a class, with the
packages of its writer: such a model needs an image of its own.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from penstock.decorators import batched
from penstock.errors import LoadError
from penstock.formats.files import MOUNTED, only_file
from penstock.formats.rows import Rows

_FILE = {"sklearn": "pickled_model", "xgboost": "data", "lightgbm": "data", "onnx": "data"}
"""The flavours, and what each calls its file."""
_ESTIMATORS = (".skops", ".pkl", ".pickle", ".joblib")


class Model:
    """A model of MLflow; items and answers are those of its flavour's format.

    A row can also be an object with the columns of the signature. The method is the one that MLflow would
    call, unless another is given.

    Args:
        path: the folder that has `MLmodel`, or one above it.
        method: what is called of an estimator, such as predict_proba.
        trusted: as of `penstock.formats.sklearn.Model`; what the file itself says of that does not count.
        allow_pickle: as of `penstock.formats.sklearn.Model`.
        on_version_mismatch: as of `penstock.formats.sklearn.Model`.

    Raises:
        LoadError: there is no such folder, its flavours are others, or its file cannot be served.
    """

    def __init__(
        self,
        path: str = MOUNTED,
        *,
        method: str | None = None,
        trusted: Sequence[str] = (),
        allow_pickle: bool = False,
        on_version_mismatch: Literal["Refuse", "Warn"] = "Refuse",
    ) -> None:
        described = only_file(path, "MLmodel")
        document = _read(described)
        flavors = document["flavors"]
        flavor = next((name for name in _FILE if isinstance(flavors.get(name), dict)), None)
        if flavor is None:
            raise LoadError(
                f"expected one of the flavors {', '.join(_FILE)} in {described}, found "
                f"{', '.join(map(str, flavors)) or 'none'}: serve it by a class and an image of your own"
            )
        file = _beside(described, flavors[flavor].get(_FILE[flavor]))
        kind = str(flavors[flavor].get("model_class", ""))
        function = flavors.get("python_function")
        said = function.get("predict_fn") if isinstance(function, dict) else None
        if file.name.endswith(_ESTIMATORS):
            from penstock.formats import sklearn

            self._model: Any = sklearn.Model(
                str(file),
                method=method or str(said or "predict"),
                trusted=trusted,
                allow_pickle=allow_pickle,
                on_version_mismatch=on_version_mismatch,
            )
        elif flavor == "xgboost" and kind.startswith("xgboost.sklearn."):
            from penstock.formats import xgboost

            self._model = xgboost.estimator(file, kind.rpartition(".")[2], method or "predict")
        elif method is not None:
            raise LoadError(f"expected no method for a model of {flavor}, found {method}")
        else:
            self._model = importlib.import_module(f"penstock.formats.{flavor}").Model(str(file))
        names = _columns(document)
        if isinstance(self._model, Rows) and names:
            self._model.name(names)

    @property
    def __tensors__(self) -> Mapping[str, Any] | None:
        """What tensors the format takes, for the model's metadata."""
        return self._model.__tensors__  # type: ignore[no-any-return]

    def warmup(self) -> None:
        """Call once, as the format does."""
        self._model.warmup()

    @batched(arrays=True)
    def predict(self, items: list) -> list:  # type: ignore[type-arg] # what an item is, the file decides
        """Answer a batch with one call; an item that does not fit is answered 422 by itself."""
        return self._model.predict(items)  # type: ignore[no-any-return]


def _read(described: Path) -> dict[str, Any]:
    """The document of `MLmodel`."""
    try:
        document = yaml.safe_load(described.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"expected YAML in {described}: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("flavors"), dict):
        raise LoadError(f"expected flavors in {described}, found none")
    return document


def _beside(described: Path, name: Any) -> Path:
    """The model's file, which is below the folder of `MLmodel`."""
    folder = described.parent.resolve()
    file = (folder / name).resolve() if isinstance(name, str) else folder
    if not file.is_relative_to(folder) or not file.is_file():
        raise LoadError(f"expected a file beside {described}, found {name!r} named there")
    return file


def _columns(document: dict[str, Any]) -> list[str]:
    """The columns of the signature's inputs; none if there is none, or its inputs have no names."""
    try:
        inputs = json.loads(document["signature"]["inputs"])
        return [str(each["name"]) for each in inputs if each["type"] != "tensor"]
    except (KeyError, TypeError, ValueError):
        return []
