"""Models that MLflow saved: its `MLmodel` as MLflow 3.17 wrote it, beside files of the libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cloudpickle
import lightgbm
import numpy as np
import onnx
import pandas as pd
import pytest
import skops.io
import xgboost
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression

from penstock.errors import LoadError
from penstock.formats import mlflow
from penstock.response import Response

ROWS = np.random.default_rng(1).random((50, 2))
TABLE = pd.DataFrame(ROWS, columns=["a", "b"])
CLASSES = (ROWS.sum(axis=1) > 1).astype(int)
COLUMNS = """signature:
  inputs: '[{"type": "double", "name": "a", "required": true}, {"type": "double",
    "name": "b", "required": true}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
  params: null
type_hint_from_example: false
"""
TENSORS = """signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 2]}}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
  params: null
"""
SKLEARN = """flavors:
  python_function:
    env:
      conda: conda.yaml
      virtualenv: python_env.yaml
    loader_module: mlflow.sklearn
    model_path: FILE
    predict_fn: predict
    python_version: 3.11.7
  sklearn:
    code: null
    pickled_model: FILE
    serialization_format: skops
    sklearn_version: 1.9.1
    skops_trusted_types: null
mlflow_version: 3.17.2
"""
XGBOOST = """flavors:
  python_function:
    data: model.ubj
    loader_module: mlflow.xgboost
    python_version: 3.11.7
  xgboost:
    code: null
    data: model.ubj
    model_class: KIND
    model_format: ubj
    xgb_version: 3.2.0
"""
LIGHTGBM = """flavors:
  lightgbm:
    code: null
    data: FILE
    lgb_version: 4.7.0
    model_class: KIND
    serialization_format: skops
    skops_trusted_types:
    - lightgbm.sklearn.LGBMRegressor
    - lightgbm.sklearn.LGBMClassifier
    - collections.OrderedDict
    - lightgbm.basic.Booster
  python_function:
    data: FILE
    loader_module: mlflow.lightgbm
    python_version: 3.11.7
"""
ONNX = """flavors:
  onnx:
    code: null
    data: model.onnx
    onnx_session_options: null
    onnx_version: 1.23.2
    providers:
    - CUDAExecutionProvider
    - CPUExecutionProvider
  python_function:
    data: model.onnx
    loader_module: mlflow.onnx
    python_version: 3.11.7
"""
PYFUNC = """flavors:
  python_function:
    cloudpickle_version: 3.1.3
    code: null
    loader_module: mlflow.pyfunc.model
    python_model: python_model.pkl
    python_version: 3.11.7
    streamable: false
"""


def saved(folder: Path, text: str, **words: str) -> str:
    """Write `MLmodel` into a folder; returns its path."""
    folder.mkdir(exist_ok=True)
    for word, value in words.items():
        text = text.replace(word, value)
    (folder / "MLmodel").write_text(text)
    (folder / "requirements.txt").write_text("scikit-learn==1.9.1\n")
    return str(folder)


def answers(path: str, **options: Any) -> Any:
    """The answers to all rows and, last, to one by its columns; what does not fit is refused by itself."""
    model = mlflow.Model(path, **options)
    model.warmup()
    refused: Any
    *found, refused = model.predict([*ROWS.tolist(), dict(zip("ab", ROWS[0], strict=True)), {"a": 1}])
    assert isinstance(refused, Response)
    assert refused.status == 422
    return found


def expected(values: Any) -> Any:
    """What a model says of all rows, and again of the first."""
    return [*values.tolist(), values[0].tolist()]


def test_estimators_are_called_as_mlflow_calls_them(tmp_path: Path) -> None:
    """By the method in `MLmodel`; pickles and types that skops does not know are the user's to allow."""
    path = saved(tmp_path / "skops", SKLEARN + COLUMNS, FILE="model.skops")
    linear = LogisticRegression().fit(ROWS, CLASSES)  # without names: the signature has them
    skops.io.dump(linear, tmp_path / "skops" / "model.skops")
    assert answers(path) == expected(linear.predict(ROWS))
    assert answers(path, method="predict_proba") == expected(linear.predict_proba(ROWS))
    saved(tmp_path / "skops", SKLEARN + COLUMNS, FILE="model.skops", predict_fn="predict_fn: predict_proba #")
    assert answers(path) == expected(linear.predict_proba(ROWS))
    saved(tmp_path / "skops", SKLEARN + TENSORS, FILE="model.skops")
    assert mlflow.Model(path).predict(ROWS.tolist()) == linear.predict(ROWS).tolist()

    path = saved(tmp_path / "pickle", SKLEARN + COLUMNS, FILE="model.pkl")
    pickled = tmp_path / "pickle" / "model.pkl"
    named = LogisticRegression().fit(TABLE, CLASSES)
    pickled.write_bytes(cloudpickle.dumps(named))
    with pytest.raises(LoadError, match=r"found the pickle .*, which runs the code"):
        mlflow.Model(path)
    assert answers(path, allow_pickle=True) == expected(named.predict(TABLE))
    pickled.write_bytes(b"no pickle")
    with pytest.raises(LoadError, match=r"expected an estimator in .* that scikit-learn 1.* can open"):
        mlflow.Model(path, allow_pickle=True)

    path = saved(
        tmp_path / "lgbm", LIGHTGBM + COLUMNS, FILE="model.skops", KIND="lightgbm.sklearn.LGBMClassifier"
    )
    light = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(TABLE, CLASSES)
    skops.io.dump(light, tmp_path / "lgbm" / "model.skops")
    types = skops.io.get_untrusted_types(file=tmp_path / "lgbm" / "model.skops")
    with pytest.raises(LoadError, match=r"found .*lightgbm.basic.Booster.*: name them in trusted"):
        mlflow.Model(path)  # although the file itself trusts them
    assert answers(path, trusted=types) == expected(light.predict(TABLE))


def test_boosters_and_onnx_files_need_no_pickle(tmp_path: Path) -> None:
    """A booster answers as a booster, and the estimator that was saved as an estimator."""
    plain = xgboost.train({"nthread": 1}, xgboost.DMatrix(TABLE, CLASSES), 3)
    path = saved(tmp_path / "booster", XGBOOST + COLUMNS, KIND="xgboost.core.Booster")
    plain.save_model(tmp_path / "booster" / "model.ubj")
    np.testing.assert_allclose(answers(path), expected(plain.predict(xgboost.DMatrix(TABLE))), rtol=1e-6)
    with pytest.raises(LoadError, match="expected no method for a model of xgboost, found transform"):
        mlflow.Model(path, method="transform")

    classifier = xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(TABLE, CLASSES)
    path = saved(tmp_path / "classifier", XGBOOST + COLUMNS, KIND="xgboost.sklearn.XGBClassifier")
    classifier.save_model(tmp_path / "classifier" / "model.ubj")
    assert answers(path) == expected(classifier.predict(TABLE))
    np.testing.assert_allclose(
        answers(path, method="predict_proba"), expected(classifier.predict_proba(TABLE))
    )
    saved(tmp_path / "classifier", XGBOOST, KIND="xgboost.sklearn.os")
    with pytest.raises(LoadError, match="expected an estimator of XGBoost, found os"):
        mlflow.Model(path)

    light = lightgbm.train({"verbose": -1, "num_threads": 1}, lightgbm.Dataset(TABLE, CLASSES), 3)
    path = saved(tmp_path / "light", LIGHTGBM + COLUMNS, FILE="model.lgb", KIND="lightgbm.basic.Booster")
    light.save_model(tmp_path / "light" / "model.lgb")
    np.testing.assert_allclose(answers(path), expected(light.predict(TABLE)))

    path = saved(tmp_path / "onnx", ONNX + TENSORS)
    both = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "twice")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["twice"])], "d", both[:1], both[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "onnx" / "model.onnx")
    assert [each.tolist() for each in mlflow.Model(path).predict([[1, 2]])] == [[2, 4]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            PYFUNC,
            "flavors sklearn, xgboost, lightgbm, onnx in .*, found python_function: serve it by",
        ),
        (SKLEARN.replace("FILE", "../other.skops"), "expected a file beside .*, found '../other.skops'"),
        (SKLEARN.replace("FILE", "none.skops"), "expected a file beside .*, found 'none.skops'"),
        (SKLEARN.replace("pickled_model: FILE", "data: 3"), "expected a file beside .*, found None"),
        ("flavors: [", "expected YAML in .*"),
        (json.dumps({"run_id": "1"}), "expected flavors in .*, found none"),
        ("flavors: !!python/object/apply:os.getcwd []", "expected YAML in .*"),
    ],
)
def test_what_is_not_here_is_refused_with_words(tmp_path: Path, text: str, words: str) -> None:
    """Other flavours, files that are elsewhere, and what is no `MLmodel`."""
    (tmp_path / "other.skops").write_bytes(b"")
    with pytest.raises(LoadError, match=words):
        mlflow.Model(saved(tmp_path / "m", text))
