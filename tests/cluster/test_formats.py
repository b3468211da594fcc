"""A model's file of a known format: served from a bucket, without a class and an image of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from devcluster import images
from devcluster.network import FIRST
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Namespace, endpoint
from tests.support.processes.s3_server import S3Server


def doubling(path: Path, *, batch: str | int) -> bytes:
    """An ONNX file whose output is its input of two numbers, doubled."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 2]) for name in ("x", "twice")]
    node = helper.make_node("Add", ["x", "x"], ["twice"])
    graph = helper.make_graph([node], "doubling", *([each] for each in tensors))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path.read_bytes()


def backend(name: str) -> dict[str, Any]:
    """A backend that serves an ONNX file of a bucket."""
    artifact = {"uri": f"s3://weights/{name}.onnx", "secretRef": {"name": "reader"}}
    model = {"format": {"name": "onnx"}, "artifact": artifact}
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {"name": name},
        "spec": {"model": model},
    }


def test_an_onnx_file_of_a_bucket_is_served_by_both_protocols(namespace: Namespace, tmp_path: Path) -> None:
    """By the format's own image; a file that cannot be batched is refused with what to do."""
    namespace.cluster.load(*images.build_targets(["onnx-model"]))
    with S3Server(FIRST.address, prefix=namespace.cluster.exec_prefix) as s3:
        s3.put("weights")
        for name, batch in (("rows", "n"), ("fixed", 1)):
            s3.put(f"weights/{name}.onnx", doubling(tmp_path / f"{name}.onnx", batch=batch))
        namespace.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "reader"}, "stringData": s3.env},
            backend("rows"),
            backend("fixed"),
            endpoint("rows", "rows"),
        )
        namespace.wait_ready("modelbackend", "rows")
        answer = namespace.curl(namespace.url("rows"), body='{"instances": [[1, 2], [3], [4, 0.5]]}')
        assert answer[0] == 422
        answer = namespace.curl(namespace.url("rows"), body='{"instances": [[1, 2], [4, 0.5]]}')
        assert answer[2] == '{"predictions":[[2.0,4.0],[8.0,1.0]]}'
        tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
        url = namespace.url("rows", "/v2/models/m/infer")
        answer = namespace.curl(url, body=json.dumps({"inputs": [tensor]}))
        assert json.loads(answer[2])["outputs"] == [tensor | {"name": "twice", "data": [2.0, 4.0]}]
        words = "expected a first axis of any length in input x, for batches, found 1: export the model with"
        wait_for(
            "the words for a model of batches of one",
            lambda: words in str(namespace.condition("modelbackend", "fixed", "Ready").get("message")),
        )
