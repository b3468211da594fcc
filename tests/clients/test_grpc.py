"""gRPC's clients of other languages call a class behind `penstock run`, many calls at once on one channel."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock_wire.http2 import reflection
from tests.support.processes.penstock_run import Run

HERE = Path(__file__).parent / "grpc"
CACHE = Path(__file__).parents[2] / "bench" / ".cache" / "grpc"
GHZ = "github.com/bojand/ghz/cmd/ghz@v0.121.0"
COUNT = 50
BUILD_SECONDS = 900
SECONDS = 120
CLASS = """
import numpy as np
import penstock
from numpy.typing import NDArray


class Double:
    @penstock.batched
    def double(self, rows: list[NDArray[np.float32]]):
        if any(row.shape != (2,) for row in rows):
            raise ValueError("expected rows of two numbers")
        return [{"y": each} for each in np.stack(rows) * 2]
"""


def tool(name: str) -> str:
    """The path of a program of this machine."""
    path = shutil.which(name)
    assert path is not None, f"expected {name} on PATH, found none"
    return path


def run(command: list[str], folder: Path, **variables: str) -> None:
    """Build something."""
    subprocess.run(
        command, cwd=folder, check=True, timeout=BUILD_SECONDS, env=os.environ | variables, stdout=-3
    )


def _js() -> list[str]:
    if not (HERE / "js" / "node_modules" / ".package-lock.json").exists():
        run([tool("npm"), "ci", "--no-audit", "--no-fund"], HERE / "js")
    return [tool("node"), str(HERE / "js" / "client.js")]


def _java() -> list[str]:
    jars = CACHE / "java"
    if not jars.exists():
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        fetched = CACHE / "java.new"
        run([tool("mvn"), "--quiet", "--batch-mode", goal, f"-DoutputDirectory={fetched}"], HERE / "java")
        fetched.rename(jars)
    return [tool("java"), "-cp", f"{jars}/*", str(HERE / "java" / "Client.java")]


def _rust() -> list[str]:
    built = CACHE / "rust"
    run([tool("cargo"), "build", "--quiet", "--locked", f"--target-dir={built}"], HERE / "rust")
    return [str(built / "debug" / "penstock-test-tonic")]


CLIENTS: dict[str, Callable[[], list[str]]] = {"grpc-js": _js, "grpc-java": _java, "tonic": _rust}


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    (tmp_path / "double.py").write_text(CLASS)
    served = await Run(tmp_path).start("double:Double")
    try:
        await served.ready()
        yield served.url.removeprefix("http://")
    finally:
        await served.stop()


async def said(*command: str) -> tuple[int | None, bytes, bytes]:
    """What a client prints."""
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode, out, err


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CLIENTS)
async def test_every_call_has_its_own_answer_and_a_bad_one_its_status(
    name: str, address: str, tmp_path: Path
) -> None:
    command = await asyncio.to_thread(CLIENTS[name])
    descriptor = reflection.descriptor("grpc_predict_v2.proto")
    files = tmp_path / "descriptors"
    files.write_bytes(b"\x0a" + _varint(len(descriptor)) + descriptor)  # a FileDescriptorSet of one
    code, out, err = await said(*command, address, str(COUNT), str(files))
    assert code == 0, err.decode()[-2000:]
    answers, refused = json.loads(out)
    assert answers == [[f"own-{i}", [2.0 * i, 2.0 * i + 1]] for i in range(COUNT)]
    assert refused == "INVALID_ARGUMENT"


@pytest.mark.timeout(1200)
async def test_grpc_go_makes_many_calls_on_one_connection(address: str) -> None:
    """By ghz, which needs no file of the service: it reads it by reflection."""
    if not (CACHE / "ghz").exists():
        await asyncio.to_thread(run, [tool("go"), "install", GHZ], HERE, GOBIN=str(CACHE))
    x = {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32Contents": [1, 1.5]}}
    request = json.dumps({"modelName": "double", "inputs": [x]})
    method = "inference.GRPCInferenceService/ModelInfer"
    many = ("--insecure", "--call", method, "-d", request, "-c", "16", "--connections", "1", "-n", "800")
    code, out, err = await said(str(CACHE / "ghz"), *many, "-O", "json", address)
    assert code == 0, err.decode()
    assert json.loads(out)["statusCodeDistribution"] == {"OK": 800}


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128, *_varint(number >> 7)]) if number > 127 else bytes([number])
