"""Requests of the Open Inference Protocol before a class: what its methods get, and what clients get."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from penstock.model import Model
from penstock.server import ModelServer
from penstock.target import target_of
from penstock_wire.http import Request, Response

LENGTH = b"inference-header-content-length"


@dataclasses.dataclass
class Pair:
    """An answer with two outputs."""

    half: float
    words: list[str]


class Echo:
    """Says what it got."""

    @penstock.batched
    def predict(self, items: list[Any]) -> list[Any]:
        return items

    @penstock.batched
    def doubled(self, rows: list[NDArray[np.float32]], *, plus: int = 0) -> Any:
        for row in rows:
            row *= 2
        return np.stack(rows) + np.float32(plus)

    @penstock.batched(columns=True)
    def named(self, number: list[int], blob: list[bytes]) -> list[Any]:
        return [Pair(each / 2, [str(len(data))]) for each, data in zip(number, blob, strict=True)]

    @penstock.batched
    def own(self, items: list[Any]) -> list[Any]:
        return [penstock.Response(418, body={"no": item}) if item == 7 else item for item in items]

    def ragged(self, item: int) -> Any:
        return [1] * item if item < 3 else {"a": [None, object] if item > 3 else None}

    async def lone(self, item: float, times: int) -> dict[str, Any]:
        return {"y": item * times, "ok": times > 1, "vector": np.arange(2, dtype=np.uint8)}


class Served:
    """The class behind a server, and its requests."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        built = target_of("Echo", Echo).build()
        self.server = ModelServer()
        methods = {name: Model(each, threads) for name, each in built.methods.items()}
        self.server.serve(Model(built, threads), methods)

    async def get(self, path: str) -> Any:
        """The document at a path."""
        answer = await self.server.handle(Request("GET", path, (), b""))
        assert answer.status == 200
        return json.loads(answer.body)

    async def infer(
        self, model: str, *inputs: tuple[str, str, list[int], Any], **members: Any
    ) -> tuple[int, Any, Response]:
        """The status and document of an answer; data that are bytes go behind the JSON."""
        tensors: list[dict[str, Any]] = []
        raw = b""
        for name, datatype, shape, data in inputs:
            tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
            if isinstance(data, bytes):
                raw += data
                tensors.append(tensor | {"parameters": {"binary_data_size": len(data)}})
            else:
                tensors.append(tensor | {"data": data})
        text = json.dumps({"inputs": tensors, **members}).encode()
        headers = ((LENGTH, b"%d" % len(text)),) if raw else ()
        answer = await self.server.handle(Request("POST", f"/v2/models/{model}/infer", headers, text + raw))
        length = dict(answer.headers).get(LENGTH)
        return answer.status, json.loads(answer.body[: int(length)] if length else answer.body), answer


@pytest.fixture
def echo() -> Iterator[Served]:
    with ThreadPoolExecutor(2) as threads:
        yield Served(threads)


@pytest.mark.parametrize(
    ("datatype", "sent", "values", "said"),
    [
        ("FP32", struct.pack("<4f", 1, 2.5, -3, 0), [1.0, 2.5, -3.0, 0.0], "FP64"),
        ("FP16", struct.pack("<4e", 1, 2.5, -3, 0), [1.0, 2.5, -3.0, 0.0], "FP64"),
        ("BF16", b"\x80\x3f\x20\x40\x40\xc0\0\0", [1.0, 2.5, -3.0, 0.0], "FP64"),
        ("INT64", struct.pack("<4q", 1, -(2**63), 3, 4), [1, -(2**63), 3, 4], "INT64"),
        ("UINT8", b"\0\1\xfe\xff", [0, 1, 254, 255], "INT64"),
        ("BOOL", b"\0\1\1\0", [False, True, True, False], "BOOL"),
        ("BYTES", b"\1\0\0\0a\0\0\0\0\2\0\0\0\xc3\xa9\1\0\0\0d", ["a", "", "é", "d"], "BYTES"),
        ("FP64", [1, 2.5, [-3, 0]], [1.0, 2.5, -3.0, 0.0], "FP64"),
        ("FP32", [1, 2, 3, math.nan], [1.0, 2.0, 3.0, None], "FP64"),
    ],
)
async def test_a_tensor_becomes_values_and_a_tensor_again(
    echo: Served, datatype: str, sent: Any, values: list[Any], said: str
) -> None:
    status, document, _ = await echo.infer("any", ("x", datatype, [2, 2], sent), id="own")
    assert (status, document) == (
        200,
        {
            "model_name": "any",
            "model_version": "1",
            "outputs": [{"name": "predictions", "datatype": said, "shape": [2, 2], "data": values}],
            "id": "own",
        },
    )


async def test_arrays_stay_arrays_and_are_the_method_s_own(echo: Served) -> None:
    """Bytes in, bytes out, in the method's type; also from another type, whose values it checks."""
    raw = np.arange(6, dtype=np.float32).tobytes()
    members = {"parameters": {"binary_data_output": True, "plus": 1}}
    status, document, answer = await echo.infer("doubled", ("any", "FP32", [2, 3], raw), **members)
    (output,) = document["outputs"]
    assert (status, output["datatype"], output["shape"]) == (200, "FP32", [2, 3])
    assert output["parameters"] == {"binary_data_size": 24}
    assert np.frombuffer(answer.body[-24:], np.float32).tolist() == [1, 3, 5, 7, 9, 11]
    status, document, _ = await echo.infer("doubled", ("x", "INT32", [1], [4]))
    assert (status, document["outputs"][0]["data"]) == (200, [8.0])


async def test_inputs_are_arguments_and_members_are_outputs_by_name(echo: Served) -> None:
    inputs = ("number", "INT32", [2], [1, 4]), ("blob", "BYTES", [2], b"\1\0\0\0\xff\0\0\0\0")
    status, document, _ = await echo.infer("named", *inputs)
    assert status == 200
    assert [tuple(each.values()) for each in document["outputs"]] == [
        ("half", "FP64", [2], [0.5, 2.0]),
        ("words", "BYTES", [2, 1], ["1", "0"]),
    ]
    status, document, _ = await echo.infer("named", *inputs, outputs=[{"name": "words"}])
    assert [each["name"] for each in document["outputs"]] == ["words"]
    lone = await echo.infer("lone", ("item", "FP64", [2], [1.5, 2]), ("times", "INT8", [2], [1, 2]))
    assert [(each["datatype"], each["shape"], each["data"]) for each in lone[1]["outputs"]] == [
        ("FP64", [2], [1.5, 4.0]),
        ("BOOL", [2], [False, True]),
        ("UINT8", [2, 2], [0, 1, 0, 1]),
    ]


X = ("x", "INT64", [1], [1])
REFUSED = {
    "fewer bytes": ("predict", [("x", "FP32", [2], b"1234")], {}, 422, "$.inputs[0]"),
    "a size beyond the body": ("predict", [("x", "BYTES", [1], b"\xff\xff\xff\x7f")], {}, 422, "$.inputs[0]"),
    "two of one name": ("predict", [X, X], {}, 422, "$.inputs[1]"),
    "other rows": ("named", [X, ("y", "INT64", [2], [1, 2])], {}, 422, "$.inputs[1]"),
    "no row": ("predict", [("x", "INT64", [0], [])], {}, 422, "$.inputs"),
    "arrays without a row": ("doubled", [("x", "FP32", [0, 10**30], [])], {}, 422, "$.inputs"),
    "arrays of more axes than numpy has": (
        "doubled",
        [("x", "FP32", [1] * 65, [1])],
        {},
        422,
        "$.inputs[0].shape",
    ),
    "arrays larger than memory": (
        "doubled",
        [("x", "FP32", [1, 0, 10**30], [])],
        {},
        422,
        "$.inputs[0].shape",
    ),
    "no tensor": ("predict", [], {}, 422, "$.inputs"),
    "a type that is none": ("predict", [("x", "INT", [1], [1])], {}, 422, "$.inputs[0].data"),
    "a shape that is none": ("predict", [("x", "INT64", "a", [1])], {}, 422, "$.inputs[0].shape"),
    "bytes that are no text": ("predict", [("x", "BYTES", [1], b"\1\0\0\0\xff")], {}, 422, "$.inputs[0]"),
    "an unknown output": ("predict", [X], {"outputs": [{"name": "z"}]}, 422, "$.outputs[0].name"),
    "an unknown parameter": ("predict", [X], {"parameters": {"z": 1}}, 422, "$"),
    "an unknown input": ("named", [X], {}, 422, None),
    "an own answer": ("own", [("x", "INT64", [1], [7])], {}, 418, None),
    "an own answer among others": ("own", [("x", "INT64", [2], [1, 7])], {}, 418, None),
    "several shapes": ("ragged", [("x", "INT64", [2], [1, 2])], {}, 502, None),
    "an answer without a form": ("ragged", [("x", "INT64", [1], [4])], {}, 502, None),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_does_not_fit_is_refused_with_its_place(echo: Served, name: str) -> None:
    model, inputs, members, expected, path = REFUSED[name]
    status, document, _ = await echo.infer(model, *inputs, **members)  # type: ignore[arg-type]
    assert (status, document.get("path")) == (expected, path), document


async def test_a_server_says_what_its_methods_take(echo: Served) -> None:
    assert (await echo.get("/v2"))["extensions"] == ["binary_tensor_data"]
    assert await echo.get("/v2/health/ready") == {}
    assert await echo.get("/v2/models/named/ready") == {"name": "named", "ready": True}
    named = await echo.get("/v2/models/named/versions/1")
    assert named["inputs"] == [
        {"name": "number", "datatype": "INT64", "shape": [-1]},
        {"name": "blob", "datatype": "BYTES", "shape": [-1]},
    ]
    assert (await echo.get("/v2/models/doubled"))["inputs"] == [
        {"name": "rows", "datatype": "FP32", "shape": [-1, -1]}
    ]


async def test_a_body_with_instances_is_taken_at_such_a_path_too(echo: Served) -> None:
    body = b'{"instances": [[1], "inputs"]}'
    answer = await echo.server.handle(Request("POST", "/v2/models/predict/infer", (), body))
    assert json.loads(answer.body) == {"predictions": [[1], "inputs"]}
