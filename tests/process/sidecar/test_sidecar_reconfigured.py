"""Who may reconfigure a model: its sidecar. No client can, and what others do to it is seen and undone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock_sidecar.model.reconfigure import Reconfigure
from penstock_wire.http import ConnectionLost, Request, Response
from tests.support.processes.ports import free_port
from tests.support.processes.sidecar_process import Pair, Program, until
from tests.unit.wire.test_closed_paths import SPELLINGS

TARGET = """
class Tuned:
    def __init__(self):
        self.config = None

    def reconfigure(self, config):
        self.config = config

    def predict(self, item):
        return self.config
"""
SECRET = {"PENSTOCK_RECONFIGURE_SECRET": "s3cret"}
SHOWN = {"x-penstock-reconfigure": "s3cret"}
PATH = "/-/reconfigure"


class Served(Pair):
    """A sidecar before the SDK's own server; both have the pod's secret."""

    folder: Path

    async def start_model(self) -> None:
        port = self.model_url.rpartition(":")[2] or free_port()
        (self.folder / "tuned.py").write_text(TARGET)
        env = {**SECRET, "PYTHONPATH": str(self.folder)}
        self.model = Program("penstock.serve", "tuned:Tuned", f"--port={port}", env=env)
        line = await self.model.start()
        self.model_url = "http://" + line.removeprefix("data=")


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path, f"--reconfigure-path={PATH}", env=SECRET)
    made.folder = tmp_path
    made.user_config = {"threshold": 1}
    await made.start()
    yield made
    await made.stop()


async def in_force(pair: Pair) -> Any:
    """What the model computes with."""
    return (await pair.predict(1)).document["predictions"]


async def test_no_client_reconfigures_a_model(pair: Served) -> None:
    """Not in any spelling of the path, and not at the model's own port either."""
    theirs = {"json": {"threshold": 9}, "headers": SHOWN}
    for path in [path for path in SPELLINGS if path.startswith("/") and "#" not in path]:
        for more in ({}, {"method": "PUT"}, {"method": "GET"}):
            reply = await pair.ask(path, **(theirs | more))
            assert (reply.status, reply.reason) == (403, "forbidden"), path
    assert (await pair.ask(PATH + "?x=1", **theirs)).status == 403
    direct = await pair.ask(PATH, base=pair.model_url, json={"threshold": 9})
    assert (direct.status, direct.document["reason"]) == (403, "forbidden")
    assert await in_force(pair) == [{"threshold": 1}]


async def test_a_model_that_was_reconfigured_behind_the_sidecars_back_gets_its_own_again(
    pair: Served,
) -> None:
    """By another client that has the secret and reaches the model's port: its own code, for instance."""
    for _ in range(2):
        reply = await pair.ask(PATH, base=pair.model_url, json={"threshold": 9}, headers=SHOWN)
        assert reply.status == 204

        async def own_again() -> bool:
            return bool(await in_force(pair) == [{"threshold": 1}])

        await until(own_again)
    lines = [json.loads(line) for line in pair.sidecar.log if line.startswith("{")]
    (message,) = [line for line in lines if line["message"] == "another client reconfigured the model"]
    assert message["level"] == "error"


class World:
    """A model that takes what it is given, unless it is to lose the connection."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.lose = False
        self.changes = 0
        self.reconfigure = Reconfigure(
            "/conf", send=self.send, requests=self, changed=self._changed, settled=True, secret="s3cret"
        )

    async def send(self, request: Request, timeout: float) -> Response:
        self.sent.append(request)
        if self.lose:
            raise ConnectionLost("cut")
        return Response(204)

    def pause(self) -> None:
        """Send nothing more."""

    def resume(self) -> None:
        """Send again."""

    async def quiet(self) -> None:
        """Nothing is with the model."""

    def _changed(self) -> None:
        self.changes += 1

    @property
    def name(self) -> bytes:
        """What the last configuration was called."""
        return dict(self.sent[-1].headers)[b"x-penstock-config"]

    def observe(self, name: bytes | None, *, moment: int | None = None) -> bool:
        """The ready path says that this is in force."""
        fields = () if name is None else ((b"x-penstock-config", name),)
        return self.reconfigure.looked(fields, self.reconfigure.moment if moment is None else moment)


async def test_what_is_in_force_is_compared_with_what_was_sent_last() -> None:
    world = World()
    world.reconfigure.want("A", 1)
    before = world.reconfigure.moment
    assert await world.reconfigure.apply()
    assert dict(world.sent[0].headers)[b"x-penstock-reconfigure"] == b"s3cret"
    assert not world.observe(world.name)
    assert not world.observe(None), "a server that does not say"
    assert not world.observe(b"", moment=before), "an answer to what was asked before"
    assert not world.reconfigure.due
    assert world.observe(b"another")
    assert world.reconfigure.due
    assert await world.reconfigure.apply()
    assert not world.observe(world.name)
    result = world.reconfigure.result
    assert result is not None
    assert (result.ok, "another client reconfigured the model" in result.message) == (True, True)
    # Nothing more is logged while that lasts; another userConfig starts anew.
    changes = world.changes
    assert world.observe(b"another")
    assert await world.reconfigure.apply()
    assert world.changes == changes
    world.reconfigure.want("B", 2)
    assert await world.reconfigure.apply()
    assert world.reconfigure.result is not None
    assert world.reconfigure.result.message == ""


async def test_a_configuration_whose_answer_was_lost_is_no_strangers() -> None:
    """Nor one that the model took longer over than the sidecar waits: when it says so, it is in force."""
    world = World()
    world.reconfigure.want("A", 1)
    assert await world.reconfigure.apply()
    world.lose = True
    world.reconfigure.want("B", 2)
    first = world.name
    assert await world.reconfigure.apply(), "the last one stays in force"
    assert not world.observe(first)
    assert world.reconfigure.result is not None
    assert (world.reconfigure.result.ok, "cut" in world.reconfigure.result.message) == (False, True)
    assert not world.observe(world.name)
    assert (world.reconfigure.result.version, world.reconfigure.result.ok) == (2, True)
    assert not world.reconfigure.due
    assert world.observe(first), "and what was before it is none of ours any more"


async def test_what_another_sidecar_process_of_the_pod_gave_the_model_is_no_strangers() -> None:
    """It was started anew, and the model was not."""
    world = World()
    assert not world.observe(b"predecessor's")
    assert world.reconfigure.result is None
    world.reconfigure.want("A", 1)
    assert await world.reconfigure.apply()
    assert world.reconfigure.result is not None
    assert (world.reconfigure.result.ok, world.reconfigure.result.message) == (True, "")


async def test_where_there_is_no_user_config_to_give_back_the_report_says_so() -> None:
    world = World()
    assert not world.observe(b"")
    assert world.reconfigure.result is None
    assert not world.observe(b"another")
    result = world.reconfigure.result
    assert result is not None
    assert (result.ok, "restart the pod" in result.message) == (False, True)
    world.reconfigure.forget()
    assert not world.observe(b"")
