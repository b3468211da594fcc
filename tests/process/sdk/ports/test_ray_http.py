"""Programs of Ray Serve's guide that take HTTP requests, ported in the fewest edits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import aiohttp

from tests.support.processes.penstock_run import Run
from tests.support.processes.ports import free_port

HELLO = """
import penstock
from penstock import Handle, Request


@penstock.backend
class LanguageClassifer:
    def __init__(
        self, spanish_responder: Handle, french_responder: Handle
    ):
        self.spanish_responder = spanish_responder
        self.french_responder = french_responder

    async def __call__(self, http_request: Request):
        request = await http_request.json()
        language, name = request["language"], request["name"]

        if language == "spanish":
            response = self.spanish_responder.say_hello(name)
        elif language == "french":
            response = self.french_responder.say_hello(name)
        else:
            return "Please try again."

        return await response


@penstock.backend
class SpanishResponder:
    def say_hello(self, name: str):
        return f"Hola {name}"


@penstock.backend
class FrenchResponder:
    def say_hello(self, name: str):
        return f"Bonjour {name}"


spanish_responder = SpanishResponder.bind()
french_responder = FrenchResponder.bind()
language_classifier = LanguageClassifer.bind(spanish_responder, french_responder)
"""

CLIENT = """
import json, urllib.request
request = urllib.request.Request(
    "http://localhost:{port}/", json.dumps({{"language": "spanish", "name": "Dora"}}).encode(),
    {{"content-type": "application/json"}},
)
print(urllib.request.urlopen(request).read().decode())
"""

SITE = """
import asyncio

import penstock
from penstock import Request


class Site:
    def __call__(self, request: Request):
        return f"{request.method} {request.query_params['name']} {request.headers['x-who']}"

    @penstock.batched
    async def batch_handler(self, requests: list[Request]):
        await asyncio.sleep(0.05)  # others come meanwhile, and are the next batch
        return [f"{request.headers['authorization']} of {len(requests)}" for request in requests]
"""


async def test_hello(tmp_path: Path) -> None:
    """hello.py: 9 of its 35 lines changed (2 imports, 3 decorators, 2 calls, 2 annotations).

    It runs by the command, with a sidecar for each class, and in a script by `penstock.run`.
    """
    (tmp_path / "hello.py").write_text(HELLO)
    run = await Run(tmp_path).start("hello:language_classifier")
    try:
        url = (await run.ready()).url
        for language, said in (
            ("spanish", "Hola Dora"),
            ("french", "Bonjour Dora"),
            ("", "Please try again."),
        ):
            sent = {"language": language, "name": "Dora"}
            async with run.session.post(url, json=sent) as answer:
                assert (answer.status, answer.content_type, await answer.text()) == (200, "text/plain", said)
    finally:
        await run.stop()
    port = free_port()
    script = HELLO + f"handle = penstock.run(language_classifier, port={port})\n" + CLIENT.format(port=port)
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("Hola Dora\n", "", 0)


async def test_behind_a_sidecar_requests_of_any_kind_reach_the_method(tmp_path: Path) -> None:
    """Each with its own fields, also those that part the batches of items, and in one batch."""
    (tmp_path / "web.py").write_text(SITE)
    run = await Run(tmp_path).start("web:Site", "--batch", "32")
    try:
        url = (await run.ready()).url

        async def ask(session: aiohttp.ClientSession, method: str, path: str, who: str) -> str:
            fields = {"x-who": who, "authorization": who}
            data = b"\0" if method == "PUT" else None
            async with session.request(method, url + path, headers=fields, data=data) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.text()

        for method in ("GET", "PUT"):
            assert await ask(run.session, method, "/?name=Ann", "ann") == f"{method} Ann ann"
        answers = await asyncio.gather(
            *(ask(run.session, "GET", "/batch_handler", f"u{number}") for number in range(40))
        )
        assert [answer.partition(" ")[0] for answer in answers] == [f"u{number}" for number in range(40)]
        assert {answer.rpartition(" ")[2] for answer in answers} != {"1"}
        async with run.session.post(f"{url}/batch_handler", json={"instances": [1, 2]}) as answer:
            assert answer.status == 500, "there is no authorization"
    finally:
        await run.stop()
