"""Chromium, as Debian has it: what a script returns, in a page of the test's own or in one of ours.

A page of the test's own is served on loopback, at an origin of its own; the browser does not contact any
other server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.router_upstream import Answer, Seen, UpstreamServer

PACKAGE = "chromium-headless-shell"
_PAGE = """<!doctype html><meta charset="utf-8"><title>test</title><script>
async function run() { %s }
run().then(value => ({value}), error => ({error: String(error)})).then(
  result => fetch("/result", {method: "POST", body: JSON.stringify(result)}));
</script>"""


async def install() -> str:
    """The path of the browser, which apt-get installs where it is not there (as root)."""
    if (program := shutil.which(PACKAGE)) is None:
        command = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", PACKAGE)
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0, f"{' '.join(command)}: exit code {process.returncode}"
        program = shutil.which(PACKAGE)
    assert program is not None, f"expected the program {PACKAGE}, found none"
    return program


_OFFLINE = (
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP evil.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",  # it stays until it is killed
)


@contextlib.asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[None]:
    """A browser with a page."""
    browser = await asyncio.create_subprocess_exec(
        *(await install(), *_OFFLINE, f"--user-data-dir={folder}", url),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(browser.pid, signal.SIGKILL)  # Debian's program is a script that starts the browser
        await browser.wait()


@contextlib.asynccontextmanager
async def devtools(
    url: str, folder: Path, *, seconds: float | None = SECONDS
) -> AsyncIterator[Callable[..., Awaitable[dict[str, Any]]]]:
    """Open a page; gives a function that calls a method of the DevTools protocol, and returns its result.

    Args:
        folder: of the browser's profile.
        seconds: the most that all of it takes; None for as long as the caller likes.
    """
    port_file = folder / "DevToolsActivePort"  # the browser writes it: its port, and a path
    async with opened(url, folder), asyncio.timeout(seconds), aiohttp.ClientSession() as session:
        await until(lambda: port_file.exists() and "\n" in port_file.read_text())
        port = port_file.read_text().split()[0]
        async with session.get(f"http://127.0.0.1:{port}/json") as listed:
            page = next(each for each in await listed.json() if each["type"] == "page")
        async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:

            async def call(method: str, **parameters: Any) -> dict[str, Any]:
                await socket.send_json({"id": 1, "method": method, "params": parameters})
                while "id" not in (said := dict[str, Any](await socket.receive_json())):
                    pass  # an event, which some methods ask for
                return said

            yield call


async def on_page(url: str, script: str, folder: Path) -> Any:
    """Open a page and return what a script in it returns, by the DevTools protocol.

    Args:
        script: the body of an async function of JavaScript; what it returns must fit into JSON.
    """
    async with devtools(url, folder) as call:
        return await until_run(call, script)


async def until_run(call: Callable[..., Awaitable[dict[str, Any]]], script: str) -> Any:
    """As `run_in`, once the page is opened; returns what the function returns."""
    said: dict[str, Any] = {}
    opened = """while (location.href === "about:blank" || document.readyState === "loading")
        await new Promise(done => setTimeout(done, 20));"""
    while "result" not in said:  # else the page was still being opened
        said = await run_in(call, opened + script)
    assert "exceptionDetails" not in said["result"], said
    return said["result"]["result"].get("value")


async def run_in(call: Callable[..., Awaitable[dict[str, Any]]], script: str) -> dict[str, Any]:
    """Run the body of an async function in a page of `devtools`."""
    expression = f"(async () => {{ {script} }})()"
    return await call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)


async def picture(call: Callable[..., Awaitable[dict[str, Any]]], width: int, scheme: str = "light") -> bytes:
    """A picture (PNG) of a whole page of `devtools`.

    Args:
        width: of the page, in pixels.
        scheme: light or dark.
    """
    await call("Emulation.setScrollbarsHidden", hidden=True)
    await call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    height: int = 900
    for _ in range(2):  # rows below the window are not painted, so the window is made as high as the page
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await call("Emulation.setDeviceMetricsOverride", **size)
        drawn = """for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
            return document.documentElement.scrollHeight;"""
        height = (await run_in(call, drawn))["result"]["result"]["value"]
    said = await call("Page.captureScreenshot", captureBeyondViewport=True)
    return base64.b64decode(said["result"]["data"])


def _axe() -> str:
    packaged = importlib.metadata.distribution("axe-playwright-python")
    return Path(str(packaged.locate_file("axe_playwright_python/axe.min.js"))).read_text("utf-8")


async def findings(call: Callable[..., Awaitable[dict[str, Any]]], scheme: str) -> list[str]:
    """What axe (https://github.com/dequelabs/axe-core) calls serious or critical in a page of `devtools`.

    Args:
        scheme: light or dark.
    """
    await call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await call("Runtime.evaluate", expression=_axe())
    found = await run_in(
        call,
        """const {violations} = await axe.run(document, {resultTypes: ["violations"]});
        return violations.filter(each => ["serious", "critical"].includes(each.impact)).flatMap(each =>
          each.nodes.map(node => `${each.id}: ${node.html}: ${node.failureSummary}`));""",
    )
    assert "exceptionDetails" not in found["result"], found
    said: list[str] = found["result"]["result"]["value"]
    return said


class Browser:
    """A page that runs one script after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._script = ""
        self._result: asyncio.Future[dict[str, Any]] | None = None
        self._server = UpstreamServer(self._serve)
        self._runs = 0

    @property
    def origin(self) -> str:
        """The page's."""
        return f"http://{self._server.target}"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Browser]:
        """Serve the page."""
        await self._server.start()
        try:
            yield self
        finally:
            await self._server.stop()

    async def run(self, script: str) -> Any:
        """Open the page anew and return what a script returns.

        Args:
            script: the body of an async function of JavaScript; what it returns must fit into JSON.

        Raises:
            AssertionError: it threw an error.
        """
        self._script = script
        self._result = asyncio.get_running_loop().create_future()
        self._runs += 1
        async with opened(f"{self.origin}/", self._folder / str(self._runs)):
            result = await asyncio.wait_for(self._result, SECONDS)
        assert "error" not in result, result["error"]
        return result.get("value")

    async def _serve(self, seen: Seen) -> Answer:
        if seen.target == "/":
            return Answer(body=(_PAGE % self._script).encode(), headers=b"content-type: text/html\r\n")
        if seen.target == "/result" and self._result is not None and not self._result.done():
            self._result.set_result(json.loads(seen.body))
        return Answer(body=b"")
