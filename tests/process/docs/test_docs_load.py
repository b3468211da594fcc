"""The load of docs/how-to/autoscaling.md, run as it stands there, and the settings that it is to move."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import yaml

from penstock_operator.api import ModelBackend
from tests.support.clocks.waiting import SECONDS
from tests.support.http.stream_peer import Scripted, Wire, scripted
from tests.support.pages.page import DOCS, Page

PAGE = Page.of(DOCS / "how-to" / "autoscaling.md")
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def test_as_many_requests_are_under_way_as_there_are_callers() -> None:
    """Each is what the page says, and none gives up after a refusal."""
    (container,) = yaml.safe_load(PAGE.files()["load.yaml"])["spec"]["containers"]
    program, url, callers, body = container["args"]
    bodies: list[bytes] = []
    everybody = asyncio.Event()

    async def play(wire: Wire) -> None:
        head = await wire.head()
        assert b"POST /predict HTTP/1.1" in head
        bodies.append(await wire.reader.readexactly(len(body)))
        if len(bodies) == 1:
            await wire.send(REFUSAL)
            return
        if len(bodies) > int(callers):
            everybody.set()
        await wire.gone()

    server = Scripted()
    server.scripts = [play]
    async with scripted(server):
        here = url.replace("http://language", f"http://127.0.0.1:{server.port}")
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            *container["command"][1:],
            program,
            here,
            callers,
            body,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await asyncio.wait_for(everybody.wait(), SECONDS)
            assert client.stdout is not None
            line = await asyncio.wait_for(client.stdout.readline(), SECONDS)
        finally:
            client.kill()
            await client.communicate()
    assert line == b"HTTP Error 503: Service Unavailable\n"
    assert {json.dumps(json.loads(each)) for each in bodies} == {body}


def test_the_load_is_what_its_settings_divide() -> None:
    """The patch fits the resource, and moves it to its maximum."""
    (patch,) = [command.line for command in PAGE.commands() if " patch " in command.line]
    changed: dict[str, Any] = json.loads(patch.split("'")[1])
    model = {"python": {"image": "i", "target": "a:B"}}
    backend = ModelBackend.parse({"metadata": {"name": "b"}, "spec": {"model": model, **changed["spec"]}})
    scaling = backend.spec.autoscaling
    assert scaling is not None
    assert scaling.target_load is not None
    (container,) = yaml.safe_load(PAGE.files()["load.yaml"])["spec"]["containers"]
    assert int(container["args"][2]) == scaling.target_load * scaling.max_replicas
