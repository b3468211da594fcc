"""Files of scikit-learn and ONNX, written by their own libraries, served as they are."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import onnx
import pandas as pd
import pytest
import skops.io
import xgboost
from onnx import TensorProto, helper
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from penstock import signature, target
from penstock import tensors as v2
from penstock.encoding import encode
from penstock.errors import LoadError
from penstock.formats import lightgbm as lightgbm_format
from penstock.formats import onnx as onnx_format
from penstock.formats import sklearn as sklearn_format
from penstock.formats import xgboost as xgboost_format
from penstock.response import Response
from penstock_wire import http

ROWS = np.random.default_rng(37).random((200, 4))
TREES = ["sklearn.tree._tree.Tree"]
CLASSES = (ROWS.sum(axis=1) > 2).astype(int)


def tensors(model: Any, *inputs: Any) -> list[Any]:
    """The answers of a model to the rows of tensors, as the SDK's server gives them to it."""
    asked = [
        {"name": name, "datatype": kind, "shape": shape, "data": data} for name, kind, shape, data in inputs
    ]
    request = http.Request("POST", "/v2/models/m/infer", (), json.dumps({"inputs": asked}).encode())
    shape = signature.read(model.predict, "predict")
    sent = v2.read(request, shape)
    assert sent is not None
    return model.predict(sent.items(shape))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def forest() -> RandomForestClassifier:
    """A small one."""
    return RandomForestClassifier(n_estimators=8, random_state=0).fit(ROWS, CLASSES)


def test_a_forest_is_served_from_its_folder(forest: RandomForestClassifier, tmp_path: Path) -> None:
    """One call a batch, as the estimator answers; a row that does not fit fails alone, and by its words."""
    skops.io.dump(forest, tmp_path / "forest.skops")
    model = sklearn_format.Model(str(tmp_path), method="predict_proba", trusted=TREES)
    model.warmup()
    rows: list[Any] = ROWS[:5].tolist()
    expected = forest.predict_proba(ROWS[:5]).tolist()
    answers = model.predict([rows[0], [1, 2], *rows[1:], ["a", 1, 2, 3], {"a": 1}, None])
    assert [answer for answer in answers if isinstance(answer, list)] == expected
    refused = [answer for answer in answers if isinstance(answer, Response)]
    assert [(each.status, each.body) for each in refused] == [(422, {"detail": "expected 4 numbers"})] * 4


def test_a_forest_takes_the_rows_of_a_tensor(forest: RandomForestClassifier, tmp_path: Path) -> None:
    """Of any type of numbers; rows that do not fit are refused as those of JSON."""
    skops.io.dump(forest, tmp_path / "forest.skops")
    model = sklearn_format.Model(str(tmp_path), trusted=TREES)
    expected = forest.predict(ROWS[:3].astype(np.float32)).tolist()
    for kind in ("FP32", "FP64"):
        assert tensors(model, ("any", kind, [3, 4], ROWS[:3].tolist())) == expected
    for wrong in (("x", "FP64", [1, 3], [1, 2, 3]), ("x", "BYTES", [1, 4], ["a", "b", "c", "d"])):
        assert [each.status for each in tensors(model, wrong)] == [422]


def test_columns_of_a_table_are_named(tmp_path: Path) -> None:
    """A pipeline that was fitted to a DataFrame gets one, from objects, rows or a tensor for each column."""
    table = pd.DataFrame({"town": ["a", "b", "a", "b"], "size": [1.0, 2.0, 3.0, 4.0]})
    columns = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    pipeline = make_pipeline(columns, LogisticRegression()).fit(table, ["x", "y", "x", "y"])
    joblib.dump(pipeline, tmp_path / "towns.joblib")
    model = sklearn_format.Model(str(tmp_path), allow_pickle=True)
    model.warmup()
    answers = model.predict([{"size": 2.0, "town": "b"}, ["a", 3.0], {"town": "b"}, ["c", 1.0]])
    assert (answers[:2], [each.status for each in answers[2:]]) == (["y", "x"], [422, 422])
    assert tensors(model, ("town", "BYTES", [2, 1], ["b", "a"]), ("size", "FP64", [2], [2, 3])) == ["y", "x"]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_row_that_the_estimator_refuses_fails_alone(forest: RandomForestClassifier, tmp_path: Path) -> None:
    """Whatever its numbers are; and of what is no table, such as texts, too."""
    skops.io.dump(forest, tmp_path / "forest.skops")
    model = sklearn_format.Model(str(tmp_path / "forest.skops"), trusted=TREES)
    good: list[Any] = ROWS[0].tolist()
    bad: list[Any] = [[[1, 2]] * 4, [10**400, 0, 0, 0], [1e39, 0, 0, 0]]
    answers = model.predict([good, *bad, good])
    assert [answers[0], answers[-1]] == forest.predict([good, good]).tolist()
    assert [each.status for each in answers[1:-1]] == [422] * 3
    assert answers[3].body["detail"].startswith("expected 4 numbers, found: Input X contains infinity")

    skops.io.dump(LogisticRegression().fit(ROWS, CLASSES), tmp_path / "linear.skops")
    answers = sklearn_format.Model(str(tmp_path / "linear.skops")).predict([good, [None, 0, 0, 0]])
    assert (answers[0] in (0, 1), answers[1].status) == (True, 422)

    words = make_pipeline(HashingVectorizer(), DummyClassifier(strategy="constant", constant="ham"))
    joblib.dump(words.fit(["a", "b"], ["ham", "spam"]), tmp_path / "words.joblib")
    texts = sklearn_format.Model(str(tmp_path / "words.joblib"), allow_pickle=True)
    answers = texts.predict(["yes", 7, "no"])
    assert [answers[0], answers[2], answers[1].status] == ["ham", "ham", 422]


def test_a_pickle_and_another_version_are_refused_unless_asked_for(
    forest: RandomForestClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both with what to do; a file that may run code in skops' form, too."""
    with monkeypatch.context() as then:
        then.setattr("sklearn.base.__version__", "1.0.2")
        joblib.dump(forest, tmp_path / "old.joblib")
        skops.io.dump(forest, tmp_path / "old.skops")
    joblib.dump(forest, tmp_path / "new.joblib")
    skops.io.dump(FunctionTransformer(print), tmp_path / "code.skops")
    found = "found (RandomForest|DecisionTree)Classifier of 1.0.2 in .*: install that, or set"
    for name, words, options in (
        ("new.joblib", "the pickle .*new.joblib, which runs the code of whoever wrote it", {}),
        ("old.joblib", found, {"allow_pickle": True}),
        ("old.skops", found, {"trusted": TREES}),
        ("old.skops", "expected types that skops trusts in .*, found sklearn.tree._tree.Tree: name", {}),
        ("code.skops", "found builtins.print: name them in", {"trusted": TREES}),
        ("none.skops", "expected one file that ends in .skops or .joblib .* found none", {}),
        ("", "expected one file that ends in .* found .*code.skops, ", {}),
    ):
        with pytest.raises(LoadError, match=words):
            sklearn_format.Model(str(tmp_path / name), **options)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        old = sklearn_format.Model(
            str(tmp_path / "old.joblib"), allow_pickle=True, on_version_mismatch="Warn"
        )
    assert any("1.0.2" in str(warning.message) for warning in heard)
    for model in (old, sklearn_format.Model(str(tmp_path / "new.joblib"), allow_pickle=True)):
        assert model.predict(ROWS.tolist()) == forest.predict(ROWS).tolist()
    with pytest.raises(LoadError, match=r"expected an estimator with transform in .*found RandomForest"):
        sklearn_format.Model(str(tmp_path / "new.joblib"), allow_pickle=True, method="transform")


NAMES = ["width", "height", "age", "weight"]


def test_boosters_are_served_in_their_own_form(tmp_path: Path) -> None:
    """As they predict themselves, by the trees of the best round; null is a missing value."""
    labels = CLASSES + (ROWS[:, 0] > 0.9)  # three classes
    data = lightgbm.Dataset(ROWS, labels, feature_name=NAMES, params={"verbose": -1})
    parameters = {"objective": "multiclass", "num_class": 3, "verbose": -1, "num_threads": 1}
    light = lightgbm.train(parameters, data, num_boost_round=3)
    light.save_model(tmp_path / "light.txt")
    given = xgboost.DMatrix(ROWS, CLASSES, feature_names=NAMES)
    early: dict[str, Any] = {"evals": [(xgboost.DMatrix(ROWS, 1 - CLASSES, feature_names=NAMES), "other")]}
    early |= {"num_boost_round": 9, "early_stopping_rounds": 2, "verbose_eval": False}
    extreme = xgboost.train({"objective": "binary:logistic", "nthread": 1}, given, **early)
    assert (extreme.best_iteration, extreme.num_boosted_rounds()) == (0, 3)
    extreme.save_model(tmp_path / "extreme.ubj")

    row = ROWS[0].tolist()
    item, lacking = dict(zip(NAMES, row, strict=True)), [None, *row[1:]]
    table = np.array([row, row, lacking], dtype=np.float64)
    alone = xgboost.DMatrix(table, feature_names=NAMES)
    for name, kind, expected in (
        ("light.txt", lightgbm_format, light.predict(table)),
        ("extreme.ubj", xgboost_format, extreme.predict(alone, iteration_range=(0, 1))),
    ):
        model: Any = kind.Model(str(tmp_path / name))  # type: ignore[attr-defined] # a module
        model.warmup()
        np.testing.assert_allclose(model.predict([row, row, lacking]), expected)
        answers = model.predict([row, item, lacking, {"width": 1}, row[:3], "a"])
        np.testing.assert_allclose(answers[:3], expected)
        assert [each.status for each in answers[3:]] == [422] * 3
        named = [{"name": each, "datatype": "FP64", "shape": [-1]} for each in NAMES]
        assert (
            v2.metadata(signature.read(model.predict, "predict"), "m", model.__tensors__)["inputs"] == named
        )
        columns = [(each, "FP64", [1], [value]) for each, value in zip(NAMES, row, strict=True)]
        for inputs in ([("any", "FP64", [1, 4], row)], columns):
            np.testing.assert_allclose(tensors(model, *inputs), expected[:1])
        (tmp_path / name).write_bytes(b"no model")
        with pytest.raises(LoadError, match=r"expected a model in .* that (LightGBM|XGBoost) .* can open: "):
            kind.Model(str(tmp_path / name))  # type: ignore[attr-defined] # a module


def onnx_file(path: Path, *, batch: str | int = "n") -> None:
    """Two inputs, `x` of two numbers and `y` of any length; outputs their sums, and x doubled."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sx"], keepdims=0),
        helper.make_node("ReduceSum", ["y", "axis"], ["sy"], keepdims=0),
        helper.make_node("Add", ["sx", "sy"], ["total"]),
        helper.make_node("Add", ["x", "x"], ["double"]),
    ]
    shapes = {"x": [batch, 2], "y": [batch, "length"], "total": [batch], "double": [batch, 2]}
    tensors = [helper.make_tensor_value_info(each, TensorProto.FLOAT, shapes[each]) for each in shapes]
    graph = helper.make_graph(nodes, "sums", tensors[:2], tensors[2:], [axis])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, path)


def test_an_onnx_file_with_two_inputs_runs_once_for_each_shape(tmp_path: Path) -> None:
    """Items of several lengths in one batch are answered in order; what does not fit fails alone."""
    onnx_file(tmp_path / "sums.onnx")
    model = onnx_format.Model(str(tmp_path))
    model.warmup()
    items: list[Any] = [{"x": [1, 2], "y": [3]}, {"x": [1, 2], "y": [1, 1]}, {"x": [0, 0], "y": [5]}]
    wrong: list[Any] = [{"x": [1, 2]}, {"x": [1, 2, 3], "y": [1]}, {"x": ["a", "b"], "y": [1]}, 7]
    answers = model.predict([*items, *wrong])
    assert json.loads(encode(answers[:3])) == [
        {"total": 6.0, "double": [2.0, 4.0]},
        {"total": 5.0, "double": [2.0, 4.0]},
        {"total": 5.0, "double": [0.0, 0.0]},
    ]
    detail = {"detail": "expected 2 float32 for x and ? float32 for y"}
    assert [(each.status, each.body) for each in answers[3:]] == [(422, detail)] * 4


def test_an_onnx_file_takes_the_rows_of_tensors(tmp_path: Path) -> None:
    """By its inputs' names and types; its outputs keep their type."""
    onnx_file(tmp_path / "sums.onnx")
    model = onnx_format.Model(str(tmp_path))
    x, y = ("x", "FP32", [2, 2], [1, 2, 3, 4]), ("y", "FP32", [2, 1], [5, 6])
    answers = tensors(model, x, y)
    built = target.find("penstock.formats.onnx:Model", {"path": str(tmp_path)}).build()
    described = v2.metadata(built.shape, "m", built.tensors)
    assert described["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "y", "datatype": "FP32", "shape": [-1, -1]},
    ]
    assert [each["name"] for each in described["outputs"]] == ["total", "double"]
    assert [(each["total"].dtype, each["total"].item()) for each in answers] == [
        ("float32", 8),
        ("float32", 13),
    ]
    assert [each["double"].tolist() for each in answers] == [[2, 4], [6, 8]]
    for wrong in ([x], [("x", "FP32", [2, 3], [1] * 6), y]):
        assert [each.status for each in tensors(model, *wrong)] == [422] * 2


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (TensorProto.INT64, [1, -2], [[1.7, 1], [10**20, 1], [None, 1], ["1", 2]]),
        (TensorProto.UINT64, [1, 2**63], [[-1, 1]]),
        (TensorProto.STRING, ["a", "b"], [["a", 1], [None, "a"], [["a"], "b"], "ab"]),
        (TensorProto.BOOL, [True, False], [[0.5, True], ["no", True]]),
        (TensorProto.FLOAT, [1, 2.5], [["1", 2], [None, 1], [10**400, 1]]),
    ],
)
def test_an_onnx_input_takes_values_of_its_type_alone(
    tmp_path: Path, kind: int, right: list[Any], wrong: list[Any]
) -> None:
    """Nothing is cut or made of something else; what is wrong fails alone."""
    described = [helper.make_tensor_value_info(name, kind, ["n", 2]) for name in ("x", "same")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "same", *([each] for each in described)
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "same.onnx")
    model = onnx_format.Model(str(tmp_path))
    answers = model.predict([right, *wrong, right])
    assert [answers[0].tolist(), answers[-1].tolist()] == [right, right]
    name = {"FLOAT": "FP32", "STRING": "BYTES"}.get(kind_name := TensorProto.DataType.Name(kind), kind_name)
    assert [each["same"].tolist() for each in tensors(model, ("any", name, [1, 2], right))] == [right]
    assert [each.status for each in answers[1:-1]] == [422] * len(wrong)


def test_an_onnx_file_that_is_none_or_cannot_be_batched(tmp_path: Path) -> None:
    """Refused when the model loads, with what to do."""
    assert (
        os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    )  # set before the import: no client of the vendor's began
    onnx_file(tmp_path / "one.onnx", batch=1)
    (tmp_path / "none.onnx").write_bytes(b"no model")
    with pytest.raises(LoadError, match=re.escape("input x, for batches, found 1: export the model with")):
        onnx_format.Model(str(tmp_path / "one.onnx"))
    with pytest.raises(LoadError, match=r"that onnxruntime .* can open"):
        onnx_format.Model(str(tmp_path / "none.onnx"))
