"""Serves a model of XGBoost from a file in one of its own forms, which later versions read, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xgboost

from penstock.errors import LoadError
from penstock.formats.files import MOUNTED, only_file, processors
from penstock.formats.rows import Rows


class Model(Rows):
    """A booster; an item is a row: its numbers, null where one is missing, or an object with its features.

    An answer is what a booster predicts: a value, or the probability of the class or of each class.

    Args:
        path: the file, or a folder with one `.json`, `.ubj` or `.xgb` file in it.

    Raises:
        LoadError: there is no such file, or XGBoost cannot open it.
    """

    def __init__(self, path: str = MOUNTED) -> None:
        file = only_file(path, ".json", ".ubj", ".xgb")
        booster = xgboost.Booster({"nthread": processors()})
        with _opening(file):
            booster.load_model(file)
            trees = booster.num_boosted_rounds()
        # Training that stopped early has more trees than its best.
        best = booster.attr("best_iteration")
        used = (0, trees if best is None else int(best) + 1)
        super().__init__(
            lambda table: booster.inplace_predict(table, iteration_range=used),
            width=booster.num_features(),
            names=booster.feature_names or (),
        )


def estimator(file: Path, kind: str, method: str) -> Rows:
    """The estimator of XGBoost that wrote a file by its `save_model`; a classifier answers with classes.

    Args:
        file: in one of XGBoost's own forms.
        kind: the estimator's class, such as XGBClassifier.
        method: what is called with the rows.

    Raises:
        LoadError: there is no such class or method, or XGBoost cannot open the file.
    """
    made = getattr(xgboost, kind, None)
    if not (isinstance(made, type) and issubclass(made, xgboost.XGBModel)):
        raise LoadError(f"expected an estimator of XGBoost, found {kind}")
    found = made(n_jobs=processors())
    with _opening(file):
        found.load_model(file)
    call = getattr(found, method, None)
    if not callable(call):
        raise LoadError(f"expected an estimator with {method} in {file}, found {kind}")
    booster = found.get_booster()
    return Rows(call, width=booster.num_features(), names=booster.feature_names or ())


@contextmanager
def _opening(file: Path) -> Iterator[None]:
    try:
        yield
    except (xgboost.core.XGBoostError, UnicodeDecodeError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"expected a model in {file} that XGBoost {xgboost.__version__} can open: {reason}"
        ) from error
