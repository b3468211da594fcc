"""Warm-up requests: what their file may say, and how they are sent."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from penstock_sidecar.model import warmup
from penstock_sidecar.model.warmup import Warmup
from penstock_wire.errors import DocumentError
from penstock_wire.http import ConnectionLost, Request, Response

JSON = (b"content-type", b"application/json")


def test_a_file_is_json_or_yaml_and_a_body_is_json_text_or_base64(tmp_path: Path):
    path = tmp_path / "warmup.yaml"
    path.write_text(
        """
        - path: /v1/models/m:predict
          body: {instances: [[1.5, 2]]}
        - {path: '/text?x=%20', body: 'as it is', headers: {Content-Type: text/plain, X-Tenant: t}}
        - {path: /bytes, bodyB64: AAEC}
        - {path: /, method: GET}
        """
    )
    assert [
        (request.method, request.target, request.headers, request.body) for request in warmup.read(path)
    ] == [
        ("POST", "/v1/models/m:predict", (JSON,), b'{"instances":[[1.5,2]]}'),
        ("POST", "/text?x=%20", ((b"content-type", b"text/plain"), (b"x-tenant", b"t")), b"as it is"),
        ("POST", "/bytes", (JSON,), b"\x00\x01\x02"),
        ("GET", "/", (), b""),
    ]
    assert warmup.decode(b'[{"path": "/p", "body": 1e3}]')[0].body == b"1000.0"
    assert warmup.decode(b"[]") == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "expected JSON or YAML, found neither"),
        (b"{}", "Expected `array`, got `object`"),
        (b'[{"body": 1}]', "missing required field `path` - at `$[0]`"),
        (b'[{"path": 5}]', "Expected `str`, got `int` - at `$[0].path`"),
        (b'[{"path": "/", "retries": 5}]', "unknown field `retries` - at `$[0]`"),
        (b'[{"path": "/"}, {"path": "p"}]', "$[1].path: expected a path of visible ASCII that begins with /"),
        (b'[{"path": "/a b"}]', "$[0].path: expected a path"),
        (b'[{"path": "/", "method": "post"}]', "$[0].method: expected an upper-case method"),
        (b'[{"path": "/", "headers": {"a b": "x"}}]', "$[0].headers.a b: expected a field name"),
        (b'[{"path": "/", "headers": {"a": "x\\r\\ny: z"}}]', "$[0].headers.a: expected ASCII text"),
        (
            b'[{"path": "/", "headers": {"Content-Length": "1"}}]',
            "expected a field that is not about the connection",
        ),
        (b'[{"path": "/", "body": 1, "bodyB64": "AA=="}]', "expected body or bodyB64, found both"),
        (b'[{"path": "/", "bodyB64": "%"}]', "$[0].bodyB64: expected base64"),
        (b"- {path: /, body: {1: 2, [a]: !!set {b}}}", "expected JSON"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_place(data: bytes, message: str):
    with pytest.raises(DocumentError) as caught:
        warmup.decode(data)
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(DocumentError, match="expected a file"):
        warmup.read(tmp_path / "none")


class World:
    """A model with scripted answers."""

    def __init__(self, *answers: int | Exception, timeout: float = 10.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.answers = list(answers)
        self.sent: list[tuple[float, str]] = []
        requests = tuple(Request("POST", f"/{n}?secret", (), b"") for n in range(1, 4))
        self.warmup = Warmup(requests, timeout=timeout, send=self.send, clock=self.loop.time)
        self.current = True

    async def send(self, request: Request, timeout: float) -> Response:
        self.sent.append((self.loop.time() - 1000, request.path))
        answer = self.answers.pop(0) if self.answers else 200
        await asyncio.sleep(1)
        if isinstance(answer, Exception):
            raise answer
        return Response(status=answer, headers=(), body=b"words of the model")

    async def run(self) -> bool:
        return await self.warmup.run(lambda: self.current)


async def test_requests_are_sent_one_after_the_other():
    world = World()
    assert await world.run()
    assert world.sent == [(0, "/1"), (1, "/2"), (2, "/3")]


async def test_one_that_fails_is_sent_again_with_longer_pauses_and_told_when_it_took_too_long(
    capsys: pytest.CaptureFixture[str],
):
    world = World(200, *[ConnectionLost("lost")] + [500] * 8, timeout=10.0)
    run = asyncio.create_task(world.run())
    await asyncio.sleep(3.1)
    assert world.warmup.message == "warm-up request 2 of 3, POST /2: lost"
    assert capsys.readouterr().err == ""
    await asyncio.sleep(12)
    wrong = "warm-up request 2 of 3, POST /2: not answered 2xx within 10 s: expected a 2xx, found 500"
    assert world.warmup.message == wrong
    assert wrong in (logged := capsys.readouterr().err)
    assert logged.count("\n") == 1
    assert await run
    at = [when for when, path in world.sent if path == "/2"]
    pauses = [later - earlier - 1 for earlier, later in itertools.pairwise(at)]
    assert pauses == [0.25, 0.5, 1, 2, 4, 5, 5, 5, 5]
    assert [path for _, path in world.sent][-1] == "/3"


async def test_another_model_ends_it():
    world = World()
    run = asyncio.create_task(world.run())
    await asyncio.sleep(1.5)
    world.current = False
    assert not await run
    assert len(world.sent) == 2
