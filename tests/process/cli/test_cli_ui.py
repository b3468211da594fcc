"""`kubectl penstock ui`: who gets in, what is shown and how soon, and what while the cluster is away."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gzip
import itertools
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import urllib3
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ReadTimeoutError

from penstock_cli.cluster import Cluster, body
from penstock_cli.ui import store
from penstock_cli.ui.scrapes import Scrapes, Target
from penstock_cli.ui.server import Server
from penstock_cli.ui.store import Store, Watches, _lines
from penstock_operator.kinds import BACKEND
from penstock_wire.http import Request, Response
from penstock_wire.http.server.server import H1Front
from penstock_wire.page.door import Door
from penstock_wire.page.measures import SIDECAR, Scraped, batches, buckets, parsed, quantile
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.browser import Browser, devtools, on_page, until_run
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, split

HOSTILE = "<img src=x onerror=\"document.title='run'\">"
STATIC = Path(__file__).parents[3] / "wire/penstock_wire/page/static"


@dataclass
class Page:
    """The page's server on a cluster of an apiserver on loopback."""

    server: TinyApiserver
    harness: Harness
    store: Store
    url: str
    fragment: str
    code: str
    session: aiohttp.ClientSession
    kubeconfig: Path
    admitted: list[str]
    """What requests asked for that had the token."""
    arrived: list[tuple[str, str]]
    """Method and target of all requests."""

    async def ask(self, path: str, *, status: int = 200, method: str = "GET", **more: Any) -> Any:
        """What the page gets, as JSON."""
        token = self.fragment.removeprefix("#token=")
        headers = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
        async with self.session.request(method, self.url + path, headers=headers, **more) as answer:
            assert answer.status == status, await answer.text()
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            return await answer.json(content_type=None)

    async def whole(self) -> Any:
        """The overview once every kind was read."""
        said: Any = {"revision": 0, "listed": False}
        rows: dict[str, Any] = {}
        async with asyncio.timeout(SECONDS):
            while not said["listed"]:
                said = await self.ask(f"api/overview?since={said['revision']}")
                rows |= said["rows"]
        return said | {"rows": rows}


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is true."""
    async with asyncio.timeout(SECONDS):
        while not await look():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.05)


def connected(folder: Path, server: asyncio.Server) -> Cluster:
    """A cluster whose API server is this one."""
    api, path = TinyApiserver(), folder / "kubeconfig"
    api.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    path.write_text(api.kubeconfig())
    return Cluster.connect(str(path), None, "n")


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    harness = Harness()
    harness.apply(policy())
    harness.apply(backend("busy", autoscaling={"targetLoad": 10, "maxReplicas": 4}))
    harness.apply(backend("idle", batchPolicyRef="p"))
    harness.apply(endpoint(backend="busy"))
    harness.apply(split(busy=90, idle=10))
    await harness.run()
    await harness.turn(1)
    async with paged(harness, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def paged(harness: Harness, folder: Path) -> AsyncIterator[Page]:
    """The page of a world, which ends with it."""
    async with TinyApiserver(harness.cluster) as server, aiohttp.ClientSession() as session:
        path = folder / "kubeconfig"
        path.write_text(server.kubeconfig())
        cluster = Cluster.connect(str(path), None, "n")
        front, store = H1Front(), Store()
        watches, scrapes = Watches(cluster, store, everywhere=False), Scrapes(cluster, store)
        server_of_it, admitted = Server(cluster, store, scrapes, everywhere=False), list[str]()

        async def answer(request: Request) -> Any:
            admitted.append(request.target)
            return await server_of_it.answer(request)

        served, arrived = Door(answer), list[tuple[str, str]]()

        async def handle(request: Request) -> Response:
            arrived.append((request.method, request.target))
            return await served.handle(request)

        listener = await front.listen("127.0.0.1", 0, handle)
        watches.start()
        scrapes.start()
        url = "http://{}:{}/".format(*listener.address)
        yield Page(
            server, harness, store, url, served.fragment(), served.code(), session, path, admitted, arrived
        )
        watches.close()
        scrapes.close()
        store.close()
        await front.close(0.0)
    harness.stop()


async def test_who_gets_in(page: Page) -> None:
    """The token of the URL, or a code of one use; no page of another site, and no other name."""
    for headers in ({"authorization": ""}, {"authorization": "Bearer "}, {"authorization": "Bearer x"}):
        said = await page.ask("api/overview", status=403, headers=headers)
        assert said["detail"].startswith("expected the token of this page's URL")
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        await page.ask("api/overview", status=403, headers=headers)
        await page.ask("", status=403, headers=headers)
    code = page.code.removeprefix("#code=")
    said = await page.ask("api/token", method="POST", data=code, headers={"authorization": ""})
    assert said == {"token": page.fragment.removeprefix("#token=")}
    for path, status in (("api/nothing", 404), ("api/overview?since=x", 400), ("api/view/Secret/n/s", 404)):
        await page.ask(path, status=status)
    assert (await page.ask("api/view/ModelBackend/n/nobody"))["view"] is None
    # A code's second user cannot say who was the first: nobody has the token then.
    await page.ask("api/token", method="POST", data="a code of nobody", status=403)
    await page.ask("api/overview")
    for path, more in (("api/token", {"method": "POST", "data": code}), ("api/overview", {})):
        said = await page.ask(path, status=403, **more)
        assert said["detail"] == "the code was used by somebody else: start the command again"


async def test_a_number_that_json_has_not_is_an_error_of_its_own() -> None:
    async def answer(_: Request) -> Any:
        return {"rate": float("inf")}

    door = Door(answer)
    token = door.fragment().removeprefix("#token=").encode()
    headers = ((b"host", b"127.0.0.1:1"), (b"authorization", b"Bearer " + token))
    said = await door.handle(Request("GET", "/api/overview", headers, b""))
    assert (said.status, json.loads(said.body)["reason"]) == (500, "internal")


async def test_a_change_is_news_and_the_rest_is_not(page: Page) -> None:
    said = await page.whole()
    assert {"ModelBackend/n/busy", "ModelEndpoint/n/e", "TrafficSplit/n/s"} < said["rows"].keys()
    assert said["rows"]["ModelBackend/n/busy"]["details"][0] == "0 of 1 ready"
    news = [asyncio.create_task(page.ask(f"api/overview?since={said['revision']}")) for _ in range(60)]
    assert (await page.ask("api/view/BatchPolicy/n/p"))["view"]["name"] == "p"  # many that wait hinder nobody
    page.harness.apply(backend("third"))
    for answer in await asyncio.wait_for(asyncio.gather(*news), 3.0):
        assert list(answer["rows"]) == ["ModelBackend/n/third"]
    await page.harness.cluster.delete(BACKEND, "n", "third")

    async def gone() -> bool:
        news = await page.ask(f"api/overview?since={said['revision']}")
        return "ModelBackend/n/third" in news["gone"]

    await eventually(gone)


async def test_a_cluster_that_goes_away_comes_back(page: Page) -> None:
    """What was read stays, with the cause beside it; a kind that may not be read costs the others nothing.

    Nor does a resource of a form that the page does not know.
    """
    await page.whole()
    page.harness.cluster.objects["ModelBackend", "n", "idle"]["status"] = {
        "conditions": ["of another version"]
    }
    page.server.fail["GET", "batchpolicies"] = [403, 403]
    page.server.fail["GET", "modelbackends"] = [401]  # an expired token
    page.server.break_watches()

    async def problems(*wanted: str) -> bool:
        said = await page.ask("api/overview")
        assert "ModelBackend/n/busy" in said["rows"]
        return sorted(each.split(":")[0] for each in said["problems"]) == [
            f"cannot read {each}" for each in wanted
        ]

    await eventually(lambda: problems("batchpolicies", "modelbackends"))
    await eventually(problems)
    (note,) = (await page.ask("api/overview"))["rows"]["ModelBackend/n/idle"]["notes"]
    assert note.startswith("cannot be shown: TypeError")
    said = await page.ask("api/view/ModelBackend/n/idle", status=500)
    assert said["detail"].startswith("cannot show this ModelBackend: TypeError")
    page.harness.apply(backend("after"))

    async def seen() -> bool:
        return "ModelBackend/n/after" in (await page.ask("api/overview"))["rows"]

    await eventually(seen)


async def test_a_changed_kubeconfig_is_read_after_any_failure(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is half written or away ends no watch; a login program that waits hinders no other kind."""
    monkeypatch.setattr(store, "AGAIN_SECONDS", (0.05,))
    server, began, go = page.server, tmp_path / "began", tmp_path / "go"
    await page.whole()

    async def problem(words: str = "") -> bool:
        problems = (await page.ask("api/overview"))["problems"]
        return words in problems[0] if words and problems else not words and not problems

    server.fail["GET", "modelbackends"] = [403] * 10_000  # as an anonymous user gets
    server.break_watches()
    await eventually(lambda: problem("induced"))
    page.kubeconfig.write_bytes(b"\xff")
    await eventually(lambda: problem("induced; cannot log in by"))
    page.kubeconfig.unlink()
    await eventually(lambda: problem("No configuration found"))

    login = json.loads(server.kubeconfig())
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    said |= {"status": {"token": "tiny"}}
    script = f"touch {began}; until [ -e {go} ]; do sleep 0.05; done; echo '{json.dumps(said)}'"
    program = {"apiVersion": said["apiVersion"], "command": "sh", "args": ["-c", script]}
    login["users"][0]["user"] = {"exec": program | {"interactiveMode": "Never"}}
    page.kubeconfig.write_text(json.dumps(login))
    await eventually(lambda: asyncio.to_thread(began.exists))
    asked = len(server.requests)
    server.break_watches()

    async def watched() -> bool:
        return any("batchpolicies" in path for _, path, *_ in server.requests[asked:])

    await eventually(watched)
    go.touch()
    server.fail.clear()
    await eventually(problem)

    async with TinyApiserver(page.harness.cluster) as moved:
        page.kubeconfig.write_text(moved.kubeconfig())
        await server.refuse()
        await eventually(lambda: asyncio.to_thread(lambda: len(moved.requests) > 0))
        await eventually(problem)


async def test_a_browser_says_what_the_cluster_does_and_goes_on(page: Page, tmp_path: Path) -> None:
    """Refused connections, an expired login, no answer: said in words, and live within seconds after each."""
    server, loop = page.server, asyncio.get_running_loop()

    async def expire() -> None:
        server.token = "anew"
        server.break_watches()

    async def log_in() -> None:
        page.kubeconfig.write_text(server.kubeconfig())

    async def stall() -> None:
        server.gate.clear()
        server.break_watches()

    async def go_on() -> None:
        server.gate.set()

    harms = (
        (server.refuse, server.accept, "Connection refused"),
        (expire, log_in, "Unauthorized; log in again"),
        (stall, go_on, "the API server has not answered for 3 s"),
    )
    look = """return [document.querySelector("#state").textContent,
      document.querySelector("#problems").innerText, document.querySelectorAll(".rows > li").length];"""
    async with devtools(page.url + page.fragment, tmp_path / "browser") as call:

        async def shows(state: str, *words: str) -> float:
            async def whole() -> bool:
                said = await until_run(call, look)
                return said[0] == state and (words[0] in said[1] if words else not said[1]) and said[2] >= 5

            began = loop.time()
            await eventually(whole)
            return loop.time() - began

        await shows("live")
        for harm, cure, words in harms:
            await harm()
            await shows("not all is live", words)
            await cure()
            assert await shows("live") < 10
        page.harness.apply(backend("after"))
        seen = "main.innerText.includes('after')"
        await until_run(call, f"while (!{seen}) await new Promise(done => setTimeout(done, 50));")


async def test_a_page_of_another_site_reads_nothing_and_acts_in_nothing(page: Page, tmp_path: Path) -> None:
    """Whatever it makes a browser send: from a name of its own, from another port, or by DNS rebinding."""
    whole = (await page.whole())["rows"]
    page.admitted.clear()
    act = ("POST", "/api/steer/n/s")
    attack = """
    const to = %s, results = {}, steer = to + "api/steer/n/s";
    const act = {method: "POST", body: '{"verb": "abort"}'};
    const attempt = async (name, call) => {
      try { results[name] = await call(); } catch { results[name] = "refused"; }
    };
    const loads = (tag, fields) => new Promise(done => document.body.append(Object.assign(
      document.createElement(tag), fields, {onload: () => done("loaded"), onerror: () => done("refused")})));
    const opens = made => new Promise(done =>
      Object.assign(made, {onopen: () => done("open"), onerror: () => done("refused")}));
    const framed = (name, go) => new Promise(done => {
      const frame = document.createElement("iframe");
      Object.assign(frame, {name, onload: () => {
        if (frame.contentDocument?.URL !== "about:blank") done(frame.contentDocument ? "read" : "refused");
      }});
      if (!go) frame.src = to;
      document.body.append(frame);
      go?.();
    });
    const headers = {authorization: "Bearer x"};
    await attempt("fetch", async () => (await fetch(to + "api/overview")).status);
    await attempt("fetch of the page", async () => (await fetch(to)).text());
    await attempt("fetch with a token", async () => (await fetch(to + "api/overview", {headers})).status);
    await attempt("act", async () => (await fetch(steer, act)).status);
    await attempt("act unread", async () => (await fetch(steer, {...act, mode: "no-cors"})).type);
    await attempt("code", async () => (await fetch(to + "api/token", {method: "POST", body: "x"})).json());
    await attempt("image", () => loads("img", {src: to + "api/overview"}));
    await attempt("script", () => loads("script", {src: to + "page.js"}));
    await attempt("module", () => loads("script", {src: to + "page.js", type: "module"}));
    await attempt("style", () => loads("link", {href: to + "page.css", rel: "stylesheet"}));
    await attempt("socket", () => opens(new WebSocket(to.replace("http", "ws") + "api/overview")));
    await attempt("events", () => opens(new EventSource(to + "api/overview")));
    await attempt("frame", () => framed("shown"));
    navigator.sendBeacon(steer, act.body);
    const form = Object.assign(document.createElement("form"),
      {method: "POST", action: steer, target: "posted", enctype: "text/plain"});
    form.append(Object.assign(document.createElement("input"), {name: act.body, value: ""}));
    document.body.append(form);
    await attempt("form", () => framed("posted", () => form.submit()));
    return results;"""
    rebound = """
    const headers = {authorization: %s}, body = '{"verb": "abort"}';
    const said = async (...asked) => {
      const answer = await fetch(...asked);
      return [answer.status, await answer.text()];
    };
    return [await said("/"), await said("/api/overview", {headers}),
      await said("/api/token", {method: "POST", body}),
      await said("/api/steer/n/s", {method: "POST", headers, body})];"""
    async with Browser(tmp_path).serving() as other:
        for number, origin in enumerate((other.origin.replace("127.0.0.1", "evil.example"), other.origin)):
            page.arrived.clear()
            said = await on_page(f"{origin}/", attack % json.dumps(page.url), tmp_path / f"site-{number}")
            assert page.arrived.count(act) == 4, "fetch, fetch unread, beacon, form"
            assert {("GET", "/"), ("GET", "/api/overview"), ("OPTIONS", "/api/overview")} < set(page.arrived)
            assert len(said) == 14
            assert set(said.values()) == {"refused"}, (origin, said)
    token = json.dumps(f"Bearer {page.fragment.removeprefix('#token=')}")  # even with it
    evil = page.url.replace("127.0.0.1", "evil.example")
    for status, text in await on_page(evil, rebound % token, tmp_path / "rebound"):
        assert status == 403
        assert "expected a Host of this machine" in text
    assert page.admitted == []
    assert (await page.whole())["rows"].keys() == whole.keys()


async def test_a_release_is_steered_in_the_words_of_the_command(page: Page) -> None:
    await page.whole()
    said = await page.ask("api/steer/n/s", method="POST", data='{"verb": "abort"}', status=400)
    assert "has fixed weights, and no release" in said["detail"]
    said = await page.ask("api/steer/n/s", method="POST", data='{"verb": "explode"}', status=400)
    assert said["detail"].startswith("verb: expected one of promote, promote-full, pause, abort")
    await page.ask("api/try/n/e", method="POST", data='{"method": "GET", "path": "//evil.example?a=b c"}')
    method, path, query, _ = page.server.requests[-1]
    assert (method, path) == ("GET", "/api/v1/namespaces/n/services/e:80/proxy//evil.example")
    assert query == {"a": "b c"}
    for path in ("/../../../secrets/x", "/%2e%2E/x", "predict", ""):
        asked = json.dumps({"method": "GET", "path": path})
        said = await page.ask("api/try/n/e", method="POST", data=asked, status=400)
        assert f"found 'GET' and {path!r}" in said["detail"]


async def test_what_a_browser_shows(page: Page, tmp_path: Path) -> None:
    """Every view, without an error; text stays text, however it is spelled."""
    page.server.spelled["NoRouter"] = page.server.spelled["RouterStarting"] = json.dumps(HOSTILE)[1:-1]
    script = """
    const faults = [], pause = () => new Promise(done => setTimeout(done, 100));
    addEventListener("error", event => faults.push(event.message));
    addEventListener("unhandledrejection", event => faults.push(String(event.reason)));
    addEventListener("securitypolicyviolation", event => faults.push(event.violatedDirective));
    const until = async look => { while (!look()) await pause(); };
    await until(() => document.querySelectorAll(".rows > li").length >= 5);
    const overview = document.querySelector("main").innerText, views = {};
    for (const [hash, panel] of %s) {
      location.hash = hash;
      await until(() => document.querySelector(`[data-panel=${panel}]:not([hidden])`));
      views[hash] = document.querySelector("main").innerText;
    }
    delete Map.groupBy;  // as in browsers from before 2024
    location.hash = "#/reasons/Serving";
    await until(() => document.querySelector("tr.wanted"));
    const get = fetch;
    // With another token the next look would be refused, and show that.
    const kept = JSON.stringify({token: sessionStorage.getItem("token")});
    let late = null;
    window.fetch = (path, more) => !["/api/reasons", "/api/token"].includes(path) ? get(path, more)
      : new Promise(done => { late = () => done(new Response(path === "/api/reasons" ? "[]" : kept)); });
    location.hash = "#/reasons/Unschedulable";
    await until(() => late);
    location.hash = "#/BatchPolicy/n/p";
    await until(() => document.querySelector("[data-panel=spec]:not([hidden])"));
    late();
    late = null;
    location.hash = "#code=late";
    await until(() => late);
    location.hash = "#/ModelEndpoint/n/e";
    await until(() => document.querySelector("[data-panel=try]:not([hidden])"));
    late();
    await pause();
    const left = document.querySelector("h1").innerText;
    const unnamed = [...document.querySelectorAll("button, input, select, textarea")]
      .filter(each => !each.textContent && !each.ariaLabel && !each.getAttribute("aria-label")).length;
    const asked = performance.getEntriesByType("resource").map(each => new URL(each.name).origin);
    return {overview, views, faults, unnamed, left, title: document.title, images: document.images.length,
      asked: [...new Set(asked)], address: location.href};"""
    views = [
        ("#/ModelBackend/n/busy", "pods"),
        ("#/TrafficSplit/n/s", "weights"),
        ("#/BatchPolicy/n/p", "spec"),
        ("#/ModelEndpoint/n/e", "try"),
    ]
    said = await on_page(page.url + page.fragment, script % json.dumps(views), tmp_path)
    assert said["faults"] == []
    assert (said["images"], said["unnamed"], said["title"]) == (0, 0, "e - Penstock")
    assert said["left"].startswith("e")  # no answer of a view that was left comes over it
    assert HOSTILE in said["overview"]
    assert said["address"].endswith("#/ModelEndpoint/n/e")
    assert said["asked"] == [page.url.rstrip("/")]
    assert "Where requests go" in said["views"]["#/ModelEndpoint/n/e"]
    assert "idle" in said["views"]["#/BatchPolicy/n/p"]


async def test_a_page_left_open_keeps_nothing(page: Page, tmp_path: Path) -> None:
    """After 600 changes of a backend the browser holds what it held after 200."""
    resource = copy.deepcopy(page.harness.cluster.objects["ModelBackend", "n", "busy"])

    async def change() -> None:
        for number in itertools.count():
            resource["status"]["load"] = {"queued": number % 97, "ongoing": number % 13}
            page.store.take("ModelBackend", "MODIFIED", copy.deepcopy(resource))
            await asyncio.sleep(0.001)

    watched = """
    const pause = setTimeout, asked = fetch;
    window.updates = 0;
    window.setTimeout = (call, time, ...more) => pause(call, time === 250 ? 0 : time, ...more);
    window.fetch = (...more) => { updates++; return asked(...more); };
    location.hash = "#/ModelBackend/n/busy";"""
    held = []
    async with devtools(page.url + page.fragment, tmp_path) as call:
        await until_run(
            call, "while (!document.querySelector('.rows > li')) await new Promise(r => setTimeout(r, 50));"
        )
        changing = asyncio.create_task(change())
        await until_run(call, watched)
        for updates in (200, 600):
            await until_run(
                call, f"while (updates < {updates}) await new Promise(done => setTimeout(done, 20));"
            )
            await call("HeapProfiler.collectGarbage")
            heap, counters = await call("Runtime.getHeapUsage"), await call("Memory.getDOMCounters")
            held.append((heap["result"]["usedSize"], counters["result"]["nodes"]))
        changing.cancel()
    (bytes_before, nodes_before), (bytes_after, nodes_after) = held
    assert bytes_after < bytes_before + 500_000, held
    assert nodes_after < nodes_before + 1000, held


async def test_pods_that_answer_anything_hinder_no_other(tmp_path: Path) -> None:
    """More of them than there are threads, each with a bucket without a bound; one answers well."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bound = b"le" if b"/good" in await reader.readuntil(b"\r\n\r\n") else b"of"
        text = b'penstock_sidecar_batch_items_bucket{%s="1"} 1\n' % bound
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        scrapes = Scrapes(connected(tmp_path, server), Store())
        scrapes.start()
        targets = [Target("n", name, 8013, "penstock_sidecar_") for name in (*map(str, range(20)), "good")]

        async def read() -> bool:
            known = scrapes.of(targets)
            broken = [each for name, each in known.items() if name != "good" and "KeyError" in each.problem]
            return len(broken) == 20 and len(known["good"].values) > 1 and not known["good"].problem

        await eventually(read)
        scrapes.close()


async def test_an_answer_without_an_end_is_cut(tmp_path: Path) -> None:
    """By its bytes, or by its time, an error's too; its connection ends then."""
    ended = asyncio.Semaphore(0)

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"1000\r\n" + bytes(4096) + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        ended.release()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        url = "http://{}:{}/".format(*server.sockets[0].getsockname())
        for most, seconds in ((10_000, SECONDS), (10**9, 0.1)):
            answer = await asyncio.to_thread(urllib3.request, "GET", url, preload_content=False)
            read, whole = await asyncio.to_thread(body, answer, most=most, seconds=seconds)
            assert not whole
            assert 4096 <= len(read) < 1_000_000
            await asyncio.wait_for(ended.acquire(), SECONDS)
        cluster = connected(tmp_path, server)
        with pytest.raises(ApiException) as caught:
            await asyncio.to_thread(cluster.call, "/", seconds=0.1)
        assert 4096 <= len(caught.value.body) < 1_000_000
        await asyncio.wait_for(ended.acquire(), SECONDS)


@pytest.mark.parametrize("head", ["transfer-encoding: chunked", "connection: close", ""])
async def test_the_head_of_a_watch_is_waited_for_less_long_than_its_lines(tmp_path: Path, head: str) -> None:
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if head:
            writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % head.encode())
            await asyncio.sleep(0.4)
            writer.write(b"3\r\n{}\n\r\n0\r\n\r\n" if "chunked" in head else b"{}\n")
        else:
            await asked.wait()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        call = functools.partial(connected(tmp_path, server).call, "/", seconds=0.2, silence=SECONDS)
        if head:
            assert await asyncio.to_thread(lambda: [*_lines(call())]) == [b"{}"]
        else:
            with pytest.raises(ReadTimeoutError):
                await asyncio.to_thread(call)
        asked.set()


def test_on_a_system_without_its_server_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(TinyApiserver().kubeconfig())
    script = (
        "import sys; sys.modules['fcntl'] = None; from penstock_cli.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", script, "ui", "--kubeconfig", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("kubectl-penstock: ui needs Linux or macOS"), done.stderr


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    texts = [path.read_text() for path in sorted(STATIC.iterdir())]
    assert sum(len(gzip.compress(text.encode())) for text in texts) < 300_000
    for text in texts:
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
        assert "innerHTML" not in text


def test_a_histogram_between_two_scrapes() -> None:
    def scraped(*counts: float) -> Any:
        lines = [
            f'x_s_bucket{{b="a",le="{le}"}} {n}' for le, n in zip(("1", "2", "+Inf"), counts, strict=True)
        ]
        return parsed(
            "# TYPE x_s histogram\n"
            + "\n".join([*lines, 'x_s_count{b="a"} 0', 'x_s_sum{b="a"} NaN', "y 1"])
            + "\n",
            "x_s",
        )

    assert "x_s_sum" not in scraped(1, 1, 1), "JSON has no NaN"
    counts = buckets(scraped(5, 5, 5), scraped(6, 9, 9), "x_s", {"b": "a"})
    assert counts == [(1.0, 1.0), (2.0, 3.0), (float("inf"), 0.0)]
    assert [quantile(share, counts) for share in (0.25, 0.625)] == [(0.0, 1.0), (1.0, 2.0)]
    assert quantile(0.5, [(1.0, 0.0), (float("inf"), 3.0)]) == (1.0, float("inf"))
    assert quantile(0.5, buckets(scraped(5, 5, 5), scraped(5, 5, 5), "x_s", {"b": "a"})) is None


@pytest.mark.parametrize("bound", ["-Inf", "NaN", "1.7e308", "1"])
def test_numbers_that_no_sum_can_hold_are_left_out(bound: str) -> None:
    """Of values, and of bounds; what JSON gets is finite."""
    name = "penstock_sidecar_batch_items"
    scraped = Scraped(0.0)
    for count in (1, 2):
        lines = [f'{name}_bucket{{le="{le}"}} {count}' for le in ("1", bound, "2", "+Inf")]
        lines += [f'{name}_sum{{a="{each}"}} {count - 1}.7e308' for each in "bc"]
        scraped.add("\n".join([f"# TYPE {name} histogram", *lines, ""]).encode(), SIDECAR)
    json.dumps([scraped.rate(f"{name}_sum"), batches([scraped], datetime.now(UTC))], allow_nan=False)
    assert [at for at, _ in scraped.sizes[-1][1]] == [1.0, 2.0, float("inf")]
