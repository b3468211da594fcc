"""A page in a real browser calls an endpoint of another origin through a real router."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.router_process import RouterProcess, backend, endpoint
from tests.support.router_upstream import UpstreamServer, refuse

ASK = """
  async function ask(url, options) {
    try {
      const answer = await fetch(url, {method: "POST", body: "{}", ...options});
      const body = await answer.json();
      return [answer.status, body.reason ?? body.id, answer.headers.get("x-request-id"),
              answer.headers.get("retry-after")];
    } catch (error) { return error.name; }
  }
  const json = {"content-type": "application/json"};
"""


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with Browser(tmp_path / "profiles").serving() as started:
        yield started


@pytest.fixture
async def model() -> AsyncIterator[UpstreamServer]:
    server = await UpstreamServer().start()
    yield server
    await server.stop()


@pytest.fixture
async def full() -> AsyncIterator[UpstreamServer]:
    server = await UpstreamServer(refuse("queue_full")).start()
    yield server
    await server.stop()


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[RouterProcess]:
    process = RouterProcess(tmp_path)
    yield process
    await process.stop()


async def test_a_page_calls_an_endpoint_as_its_cors_says(
    browser: Browser, model: UpstreamServer, full: UpstreamServer, router: RouterProcess
) -> None:
    """A page may send and read what the policy lists, refusals included, and nothing else."""

    def serving(name: str, server: UpstreamServer, **cors: Any) -> dict[str, Any]:
        return endpoint(
            name,
            backend("model" if server is model else "full", server.target),
            methods=["POST", "PUT"],
            coldStart={"maxPending": 0},
            **({"cors": cors} if cors else {}),
        )

    await router.start(
        serving("listed", model, origins=[browser.origin], headers=["x-tenant"], credentials=True),
        serving("full", full, origins=[browser.origin]),
        serving("all", model, origins=["*"]),
        serving("other", model, origins=["https://app.example"]),
        serving("none", model),
    )
    asked = {
        "json": ("listed", '{headers: {...json, "x-request-id": "json"}}'),
        "put": ("listed", '{method: "PUT", headers: {"x-request-id": "put"}}'),
        "field": ("listed", '{headers: {...json, "x-tenant": "a", "x-request-id": "field"}}'),
        "credentials": ("listed", '{credentials: "include", headers: {"x-request-id": "credentials"}}'),
        "refused": ("full", '{headers: {...json, "x-request-id": "refused"}}'),
        "star": ("all", '{headers: {...json, "x-request-id": "star"}}'),
        "method": ("listed", '{method: "DELETE"}'),
        "unlisted field": ("listed", '{headers: {...json, "x-other": "a"}}'),
        "star with credentials": ("all", '{credentials: "include"}'),
        "other origin": ("other", "{headers: json}"),
        "no cors": ("none", "{headers: json}"),
    }
    calls = ", ".join(
        f"{json.dumps(name)}: await ask('{router.data}/{path}/x', {options})"
        for name, (path, options) in asked.items()
    )
    answers = await browser.run(f"{ASK} return {{{calls}}};")
    read = {name: [200, name, name, None] for name in ("json", "put", "field", "credentials", "star")} | {
        "refused": [503, "queue_full", "refused", "7"]
    }
    assert answers == {name: read.get(name, "TypeError") for name in asked}
    assert {seen.method for seen in model.seen} <= {"POST", "PUT", "OPTIONS"}
    assert {seen.header("origin") for seen in model.seen} == {browser.origin}
    # Those that a preflight forbade were not sent, and the one without `cors` has its preflight at the model.
    assert [seen.target for seen in model.seen if seen.method == "OPTIONS"] == ["/x"]
