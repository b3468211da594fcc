"""Writes the files that the resources serve: `python train.py FOLDER`; needs scikit-learn, skops and onnx."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import skops.io
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression


def linear(classifier: LogisticRegression) -> onnx.ModelProto:
    """A linear classifier as ONNX: rows in, the class of each out; a batch has any length."""
    weights = {"weights": classifier.coef_.T, "bias": classifier.intercept_}
    nodes = [
        helper.make_node("Gemm", ["rows", "weights", "bias"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["species"], axis=1, keepdims=0),
    ]
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", classifier.n_features_in_])
    species = helper.make_tensor_value_info("species", TensorProto.INT64, ["batch"])
    tensors = [numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "iris", [rows], [species], initializer=tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main(folder: Path) -> None:
    """Train on the irises that come with scikit-learn, and write `forest.skops` and `linear.onnx`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, species = load_iris(return_X_y=True)
    skops.io.dump(
        RandomForestClassifier(n_estimators=50, random_state=7).fit(rows, species), folder / "forest.skops"
    )
    onnx.save(linear(LogisticRegression(max_iter=1000).fit(rows, species)), folder / "linear.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
