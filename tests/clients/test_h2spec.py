"""h2spec, built from its Go module: what RFC 9113 and RFC 7541 ask of a server, of both programs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes.ports import free_port
from tests.support.processes.protocol_pair import pairs
from tests.support.processes.router_process import RouterProcess, backend, endpoint

VERSION = "v2.2.1+incompatible"
CACHE = Path(__file__).parents[2] / "bench" / ".cache" / "bin"
EXPECTED = {"Sends invalid connection preface"}
"""h2spec wants the connection closed at once; a port that takes HTTP/1.1, too, answers 400 first."""


@pytest.fixture(scope="module")
def program() -> Path:
    made = CACHE / "h2spec"
    if not made.exists():
        wanted = f"github.com/summerwind/h2spec/cmd/h2spec@{VERSION}"
        subprocess.run(["go", "install", wanted], check=True, env={**os.environ, "GOBIN": str(CACHE)})
    return made


async def failures(program: Path, address: str, report: Path) -> set[str]:
    """The cases that fail, of some hundred and forty."""
    host, _, port = address.rpartition(":")
    asked = await asyncio.create_subprocess_exec(
        program, "-h", host, "-p", port, "-o", "5", "-P", "/v2/health/live", "-j", report, stdout=-3
    )
    await asked.wait()
    text = await asyncio.to_thread(report.read_text)
    cases = text.split("<testcase ")[1:]
    assert len(cases) > 140
    return {
        case.split('classname="')[1].split('"')[0]
        for case in cases
        if "<failure>" in case or "<error>" in case
    }


async def test_both_programs_keep_to_http2(program: Path, tmp_path: Path) -> None:
    async with pairs(tmp_path) as start:
        pair = await start("v2", "--ready-path=/-/runs")
        await pair.ask("/-/gate?open=1", base=pair.model_url)
        sidecar = pair.data.removeprefix("http://")
        port = free_port()
        router = RouterProcess(tmp_path)
        try:
            await router.start(endpoint("e", backend("b", sidecar), port=port))
            found = {
                name: await failures(program, address, tmp_path / f"{name}.xml")
                for name, address in (("sidecar", sidecar), ("router", f"127.0.0.1:{port}"))
            }
        finally:
            await router.stop()
    assert found == {"sidecar": EXPECTED, "router": EXPECTED}, json.dumps(
        {k: sorted(v) for k, v in found.items()}
    )
