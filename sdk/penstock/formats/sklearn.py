"""Serves an estimator or a pipeline of scikit-learn from its file.

skops' files hold no code. A pickle (joblib's too) runs whatever its writer put into it when it is opened, so
it is opened only where the user says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import sklearn
from sklearn.exceptions import InconsistentVersionWarning

from penstock.errors import LoadError
from penstock.formats.files import MOUNTED, only_file
from penstock.formats.rows import Rows

PICKLES = (".joblib", ".pkl", ".pickle")


class Model(Rows):
    """An estimator; an item is a row: its numbers, or an object with a member for each feature.

    Args:
        path: the file, or a folder with one `.skops`, `.joblib`, `.pkl` or `.pickle` file in it.
        method: what is called with the rows, such as predict, predict_proba or transform.
        trusted: types that a `.skops` file may have although skops does not vouch for them, such as
            sklearn.tree._tree.Tree, which each forest has.
        allow_pickle: whether a pickle may be opened: it can run any code.
        on_version_mismatch: whether a file of another version of scikit-learn is refused, or opened with a
            warning: its predictions may differ.

    Raises:
        LoadError: there is no such file, it may not be opened, or has no such method.
    """

    def __init__(
        self,
        path: str = MOUNTED,
        *,
        method: str = "predict",
        trusted: Sequence[str] = (),
        allow_pickle: bool = False,
        on_version_mismatch: Literal["Refuse", "Warn"] = "Refuse",
    ) -> None:
        file = only_file(path, ".skops", *PICKLES)
        refuse = on_version_mismatch == "Refuse"
        with warnings.catch_warnings():
            warnings.simplefilter("error" if refuse else "always", InconsistentVersionWarning)
            try:
                estimator = _opened(file, trusted=trusted, allow_pickle=allow_pickle)
            except InconsistentVersionWarning as found:
                raise LoadError(
                    f"expected a file of scikit-learn {found.current_sklearn_version}, the one that is here, "
                    f"found {found.estimator_name} of {found.original_sklearn_version} in {file}: install "
                    "that, or set on_version_mismatch to Warn"
                ) from found
            except LoadError:
                raise
            except (
                Exception
            ) as error:  # whatever a file of other bytes, or of classes that are not here, raises
                reason = str(error).strip().partition("\n")[0]
                raise LoadError(
                    f"expected an estimator in {file} that scikit-learn {sklearn.__version__} can open: "
                    f"{type(error).__name__}: {reason}"
                ) from error
        call = getattr(estimator, method, None)
        if not callable(call):
            raise LoadError(
                f"expected an estimator with {method} in {file}, found {type(estimator).__name__}"
            )
        super().__init__(
            call,
            width=getattr(estimator, "n_features_in_", None),
            names=list(map(str, getattr(estimator, "feature_names_in_", ()))),
            frames=True,
        )


def _opened(file: Path, *, trusted: Sequence[str], allow_pickle: bool) -> Any:
    if file.suffix == ".skops":
        from skops.io import get_untrusted_types, load

        if unknown := sorted(set(get_untrusted_types(file=file)) - set(trusted)):
            raise LoadError(
                f"expected types that skops trusts in {file}, found {', '.join(unknown)}: name them in "
                "trusted if you trust whoever wrote the file"
            )
        return load(file, trusted=list(trusted))
    if not allow_pickle:
        raise LoadError(
            f"expected a .skops file, found the pickle {file}, which runs the code of whoever wrote it: set "
            "allow_pickle if you trust them, or write the file by skops.io.dump"
        )
    import joblib

    return joblib.load(file)
