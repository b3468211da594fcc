"""Serves a model of LightGBM from a file in its own form, which later versions read, too."""

from __future__ import annotations

import re

import lightgbm

from penstock.errors import LoadError
from penstock.formats.files import MOUNTED, only_file, processors
from penstock.formats.rows import Rows

_NO_NAME = re.compile(r"Column_\d+")
"""What LightGBM calls a feature that has no name."""


class Model(Rows):
    """A booster; an item is a row: its numbers, null where one is missing, or an object with its features.

    An answer is what a booster predicts: a value, or the probability of the class or of each class.

    Args:
        path: the file, or a folder with one `.txt` or `.lgb` file in it.

    Raises:
        LoadError: there is no such file, or LightGBM cannot open it.
    """

    def __init__(self, path: str = MOUNTED) -> None:
        file = only_file(path, ".txt", ".lgb")
        try:
            booster = lightgbm.Booster(model_file=file)
        except lightgbm.basic.LightGBMError as error:
            raise LoadError(
                f"expected a model in {file} that LightGBM {lightgbm.__version__} can open: {error}"
            ) from error
        names, threads = booster.feature_name(), processors()
        super().__init__(
            lambda table: booster.predict(table, num_threads=threads),
            width=booster.num_feature(),
            names=[] if all(map(_NO_NAME.fullmatch, names)) else names,
        )
