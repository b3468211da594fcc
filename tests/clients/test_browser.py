"""A page in a real browser calls an endpoint of another origin through a real router."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.router_upstream import UpstreamServer, refuse
from tests.support.processes.browser import Browser, on_page
from tests.support.processes.penstock_run import Run
from tests.support.processes.router_process import RouterProcess, backend, endpoint

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


TRIED = """
import penstock


class Tried:
    @penstock.batched
    def predict(self, items, *, times=2):
        return [[item, times] for item in items]

    @penstock.batched
    def write(self, items):
        for word in ("one", "two"):
            yield [word for _ in items]
"""
CLICK = """
  const wait = async look => { while (!look()) await new Promise(done => setTimeout(done, 20)); };
  await wait(() => document.querySelectorAll("section").length === 2);
  const shown = [];
  for (const button of document.querySelectorAll("button")) {
    const answer = button.closest("section").querySelector("pre");
    button.click();
    await wait(() => answer.textContent.endsWith("in all"));
    shown.push([button.textContent, ...answer.textContent.split("\\n\\n").slice(0, -1)]);
    answer.textContent = "";
  }
  const bodies = [...document.querySelectorAll("textarea")];
  const cut = bodies.filter(each => each.scrollHeight > each.clientHeight);
  return {shown, cut: cut.length, heads: [...document.querySelectorAll("h2")].map(each => each.textContent)};
"""


async def test_the_page_to_try_what_penstock_run_serves(tmp_path: Path) -> None:
    """Each request that it offers can be sent as it stands, and its answer is shown."""
    (tmp_path / "tried.py").write_text(TRIED)
    run = await Run(tmp_path).start("tried:Tried")
    try:
        await run.ready()
        answers = await on_page(f"{run.url}/docs", CLICK, tmp_path / "profile")
    finally:
        await run.stop()
    assert (answers["cut"], answers["heads"]) == (0, ["POST / (predict)", "POST /write"])
    shown = {name: (head.splitlines()[0], *rest) for name, head, *rest in answers["shown"][1:]}
    assert answers["shown"][0][0] == "Send (application/json)"
    assert answers["shown"][0][2:] == ['{"predictions":[[null,2]]}']
    assert shown == {
        "Send (application/json)": ("200 OK", '{"predictions":[["one","two"]]}'),
        "Send (text/event-stream)": ("200 OK", 'data: "one"', 'data: "two"'),
        "Send (application/x-ndjson)": ("200 OK", '"one"\n"two"'),
    }
    assert answers["shown"][0][1].startswith("200 OK\nqueue: ")
