"""`penstock run` as its user sees it: real programs on loopback, reloads, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.support.clocks.waiting import until
from tests.support.http.grpc_messages import call, doubles, message
from tests.support.processes.browser import on_page
from tests.support.processes.penstock_run import Run

MODULE = """
import subprocess
import penstock

VERSION = 1


class Echo:
    def __init__(self, helper=False, exits=False):
        if helper:
            print("helper", subprocess.Popen(["sleep", "1000"]).pid, end="")  # no end of the line
        self.exits = exits

    @penstock.batched
    def predict(self, items):
        if self.exits:
            import os
            os._exit(7)
        return [[VERSION, item] for item in items]
"""


Start = Callable[..., Awaitable[Run]]


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def write(folder: Path, text: str) -> None:
    """Save the model as an editor does."""
    (folder / "new").write_text(text)
    (folder / "new").replace(folder / "model.py")


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts `penstock run ARGUMENTS` in a folder with the module above."""
    write(tmp_path, MODULE)
    running: list[Run] = []

    async def begin(*arguments: str, **more: Any) -> Run:
        running.append(Run(tmp_path))
        return await running[-1].start(*arguments, **more)

    yield begin
    for each in running:
        await each.stop()


async def test_a_class_is_served_with_batching_and_a_page_to_try_it(start: Start) -> None:
    """The answers are a router's and a sidecar's; what the class prints is shown, under its name."""
    arguments = ("model:Echo", "--batch", "4", "--init-kwargs", '{"helper": true}')
    run = await (await start(*arguments, PENSTOCK_ACCESS_LOG="1")).ready()
    sizes: list[int] = []

    async def ask(item: int) -> None:
        async with run.session.post(f"{run.url}/predict", json={"instances": [item]}) as answer:
            assert await answer.json() == {"predictions": [[1, item]]}
            assert answer.headers["x-penstock-backend"] == "echo"
            sizes.extend(map(int, re.findall(r'desc="(\d+)"', answer.headers["server-timing"])))

    await asyncio.gather(*map(ask, range(64)))
    assert max(sizes) == 4
    async with grpc.aio.insecure_channel(run.url.removeprefix("http://")) as channel:
        request = doubles(5.0)
        request.inputs[0].shape[:] = [1]
        answer = await call(channel, "ModelInfer", request)
        assert struct.unpack("<dd", answer.raw_output_contents[0]) == (1, 5)
        asked = message("ModelMetadataRequest")(name="echo")
        assert [each.name for each in (await call(channel, "ModelMetadata", asked)).inputs] == ["items"]
    async with run.session.get(f"{run.url}/openapi.json") as answer:
        assert list((await answer.json())["paths"]) == ["/"]
    async with run.session.get(f"{run.url}/docs") as answer:
        page = await answer.text()
        assert answer.headers["content-type"].startswith("text/html")
    assert "http://" not in page
    assert "https://" not in page
    assert re.search(r"^model   \| helper \d+$", run.said, re.MULTILINE)
    for program in ("router", "sidecar"):
        words = rf"^{program:<8}\| \S+ request  .*method=POST  path=/predict  status=200"
        line = re.compile(words, re.MULTILINE)
        await until(lambda line=line: line.search(run.said))
    await reached_by_pages_of_this_machine_alone(run)
    await looked_at(run, ask)


async def looked_at(run: Run, ask: Callable[[int], Awaitable[None]]) -> None:
    """The page that it prints shows queue and batches as they change; nobody reads it without its token."""
    found = re.search(r"to look at it: (http://\S+/)#token=(\S+)", run.said)
    assert found, run.said
    async with run.session.get(f"{found[1]}api/overview") as answer:
        assert answer.status == 403
    script = """
    const until = async look => { while (!look()) await new Promise(done => setTimeout(done, 50)); };
    await until(() => document.querySelector(".rows a"));
    location.hash = document.querySelector(".rows a").hash;
    for (const name of ["time", "batches", "curve"])
      await until(() => document.querySelector(`[data-panel=${name}]:not([hidden])`));
    return document.querySelector("main").innerText;"""
    shown = asyncio.create_task(on_page(f"{found[1]}#token={found[2]}", script, run.folder / "browser"))
    while not shown.done():
        await asyncio.gather(*map(ask, range(16)))
    text = await shown
    assert text.startswith("Overview")
    assert "items queued" in text


async def reached_by_pages_of_this_machine_alone(run: Run) -> None:
    """Web pages of other sites reach no port, neither by a name (DNS rebinding) nor by a simple post."""
    headers: list[tuple[bool, dict[str, str]]] = [
        (True, {}),
        (True, {"Host": "localhost:8000", "Origin": "http://localhost:3000"}),
        (True, {"Host": "notes.localhost", "Origin": "http://127.0.0.1:8000"}),
        (True, {"Host": "[::1]:8000", "Origin": "http://[::1]"}),
        (False, {"Host": "rebound.example:8000"}),
        (False, {"Host": "127.0.0.1.rebound.example"}),
        (False, {"Origin": "https://localhost.example", "Content-Type": "text/plain"}),
        (False, {"Origin": "null", "Content-Type": "text/plain"}),
    ]
    ports, body = run.ports(), b'{"instances": [1]}'
    assert len(ports) == 5, ports  # two of the router and of the sidecar each, the model's
    for served, fields in headers:
        for port in ports:
            url = f"http://127.0.0.1:{port}/predict"
            async with run.session.post(url, data=body, headers=fields) as answer:
                assert (answer.status != 403) == served, (port, fields)
        async with run.session.post(f"{run.url}/predict", data=body, headers=fields) as answer:
            assert answer.status == (200 if served else 403), (fields, await answer.text())


APPLICATION = """
import penstock

print("reading", end="")

@penstock.backend
class Adder:
    @penstock.batched
    def add(self, values):
        return [value + STEP for value in values]


@penstock.backend(spec={"batching": {"maxBatchSize": 2}})
class Root:
    def __init__(self, adder, twice):
        self.adder, self.twice = adder, twice

    async def __call__(self, value):
        return await self.twice(self.adder(value))


@penstock.backend
def twice(value: int) -> int:
    return 2 * value


app = Root.bind(Adder.bind(), twice.bind())
"""


async def test_an_application_has_a_model_server_and_a_sidecar_a_node(start: Start, tmp_path: Path) -> None:
    """Handles find each other; a change replaces all nodes, and no answer is lost meanwhile."""
    write(tmp_path, APPLICATION.replace("STEP", "1"))
    run = await (await start("model:app", "--reload")).ready()
    assert await run.ask(3) == 8
    assert len(run.children()) == 2 + 2 * 3
    seen = []

    async def client() -> None:
        while seen[-1:] != [26]:
            seen.append(await run.ask(3))

    write(tmp_path, APPLICATION.replace("STEP", "10"))
    await asyncio.gather(*(client() for _ in range(4)))
    assert set(seen) == {8, 26}
    pids = run.children()
    run.process.send_signal(signal.SIGINT)
    assert await run.ended() == 0
    await until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model:app", "--settings", "s.yaml"], "expected --settings for one class, found an application"),
        (["model:app", "--init-kwargs", '{"a": 1}'], "expected no init kwargs for an application"),
        (["model:none"], "expected none in module model, found no none"),
    ],
)
async def test_what_an_application_does_not_take(
    start: Start, tmp_path: Path, arguments: list[str], message: str
) -> None:
    write(tmp_path, APPLICATION.replace("STEP", "1"))
    (tmp_path / "s.yaml").write_text("{}")
    run = await start(*arguments)
    assert await run.ended() == 1
    assert message in run.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_no_process_is_left_behind(start: Start, number: signal.Signals) -> None:
    """Nor one that the model started; also where nothing is left of the command to end them."""
    run = await (await start("model:Echo", "--init-kwargs", '{"helper": true}')).ready()
    await run.tells("helper ")
    helper = re.search(r"helper (\d+)", run.said)
    assert helper is not None
    pids = run.children() | {int(helper[1])}
    assert len(pids) == 5  # the guard, the router, the sidecar, the model, and what the model started
    run.process.send_signal(number)
    assert await run.ended() == (-9 if number == signal.SIGKILL else 0)
    await until(lambda: not any(map(alive, pids)))


async def test_ctrl_c_ends_it_while_the_model_loads(start: Start) -> None:
    write((run := await start("--reload", "slow:Slow")).folder, MODULE)
    (run.folder / "slow.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(1000)\n")
    await run.tells("begun")
    pids = run.children()
    run.process.send_signal(signal.SIGINT)
    assert await run.ended() == 0
    await until(lambda: not any(map(alive, pids)))
    assert "Traceback" not in run.said


async def test_a_reload_loses_nothing_and_a_mistake_stops_nothing(start: Start) -> None:
    """The old version answers until the new one is ready; a syntax error is shown."""
    run = await (await start("model:Echo", "--reload")).ready()
    seen: list[int] = []
    stop = asyncio.Event()

    async def client(item: int) -> None:
        while not stop.is_set():
            version, same = await run.ask(item)
            assert same == item
            seen.append(version)

    clients = [asyncio.create_task(client(item)) for item in range(16)]
    for version in (2, 3):
        write(run.folder, MODULE.replace("VERSION = 1", "VERSION = ="))
        await run.tells("SyntaxError")
        run.said = run.said.replace("SyntaxError", "")
        await run.tells("the version before serves on")
        run.said = run.said.replace("serves on", "")
        write(run.folder, MODULE.replace("VERSION = 1", f"VERSION = {version}"))
        await until(lambda version=version: seen[-1:] == [version])  # type: ignore[misc]
    # Once a new version answers, no old one does, but for what it had taken.
    await until(lambda: len(run.children()) == 4)
    stop.set()
    await asyncio.gather(*clients)
    assert set(seen) == {1, 2, 3}
    assert "changed: model.py" in run.said


@pytest.mark.parametrize("mistake", ["raise OSError('no weights')", "VERSION = ="])
async def test_a_target_that_cannot_be_loaded(start: Start, tmp_path: Path, mistake: str) -> None:
    """It ends with the reason; with `--reload` it waits for the mend, and so do requests."""
    write(tmp_path, mistake)
    run = await start("model:Echo")
    assert await run.ended() == 1
    assert "cannot load model:Echo" in run.said
    assert "the model ended with exit code 1 before it was ready" in run.said
    again = await start("model:Echo", "--reload")
    await again.tells("requests wait; save a change")
    write(tmp_path, MODULE)
    assert await (await again.ready()).ask(5) == [1, 5]


async def test_a_model_that_dies_ends_the_command(start: Start) -> None:
    run = await (await start("model:Echo", "--init-kwargs", '{"exits": true}')).ready()
    async with run.session.post(f"{run.url}/predict", json={"instances": [1]}) as answer:
        assert answer.status in (502, 503)
    assert await run.ended() == 1
    assert "penstock run: the model ended with exit code 7" in run.said


async def test_a_model_that_died_comes_back_with_the_next_change(start: Start) -> None:
    """What is asked meanwhile waits for it."""
    run = await (await start("model:Echo", "--reload", "--init-kwargs", '{"exits": true}')).ready()
    async with run.session.post(f"{run.url}/predict", json={"instances": [1]}):
        pass
    await run.tells("requests wait; save a change")
    asked = asyncio.create_task(run.ask(3))
    write(run.folder, MODULE.replace("self.exits = exits", "self.exits = False"))
    assert await asked == [1, 3]


async def test_a_port_that_is_taken_is_named_with_the_way_out(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = await start("model:Echo", port=port)
        assert await run.ended() == 1
    expected = (
        rf"penstock run: expected port {port} of 127.0.0.1 to be free, found it taken: --port \d+ is free"
    )
    assert re.match(expected, run.said)


async def test_a_terminal_shows_queue_and_batches_and_a_pipe_does_not(start: Start) -> None:
    ours, its = pty.openpty()
    run = await start("model:Echo", terminal=its)
    os.close(its)
    os.set_blocking(ours, False)
    shown = b""
    await run.ready()

    def look() -> bool:
        nonlocal shown
        with contextlib.suppress(OSError):
            shown += os.read(ours, 4096)
        return b"items/s" in shown

    await run.ask(1)
    await until(look)
    os.close(ours)
    assert b"echo  queued 0  in the model 0" in shown
    assert b"\x1b[1A\r\x1b[2K" in shown
    plain = await (await start("model:Echo")).ready()
    await plain.ask(1)
    plain.process.send_signal(signal.SIGINT)
    assert await plain.ended() == 0
    assert "\x1b" not in plain.said
    assert "queued" not in plain.said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["model.py"],
            "expected a target such as module:Class, found 'model.py'; for the file model.py that is",
        ),
        (["model"], "expected a target such as module:Class, found 'model'"),
        (["model:Echo", "--batch", "0"], "expected a number of items from 1 to 4096, found '0'"),
        (["model:Echo", "--port", "70000"], "expected a port from 0 to 65535, found '70000'"),
        (["model:Echo", "--settings", "none.yaml"], "expected a file, found none at 'none.yaml'"),
        (["model:Echo", "--init-kwargs", "[]"], "expected a JSON object, found '[]'"),
        (["model:Echo", "--batch", "4", "--settings", "model.py"], "not allowed with argument"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from penstock.cli import main

    write(tmp_path, MODULE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as raised:
        main(["run", *arguments])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_another_system_than_linux_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """With what to do there."""
    from penstock.cli import main

    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert main(["run", "model:Echo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("penstock run: expected Linux, found Darwin; run it in a virtual machine")


async def test_a_class_gives_its_sidecar_the_cost_of_its_items_and_its_batching(
    start: Start, tmp_path: Path
) -> None:
    """As `penstock export` writes them; `--batch` counts more than the class's own size."""
    own = '@penstock.backend(batching={"maxBatchSize": 6})\nclass Echo'
    module = MODULE.replace("@penstock.batched", '@penstock.batched(cost="$.text")')
    write(tmp_path, module.replace("class Echo", own))
    for arguments, size in (((), 6), (("--batch", "3"), 3)):
        run = await (await start("model:Echo", *arguments)).ready()
        sizes: list[int] = []

        async def ask(item: Any, status: int, found: str, run: Run = run, sizes: list[int] = sizes) -> None:
            async with run.session.post(f"{run.url}/predict", json={"instances": [item]}) as answer:
                assert (answer.status, found in await answer.text()) == (status, True)
                sizes.extend(map(int, re.findall(r'desc="(\d+)"', answer.headers.get("server-timing", ""))))

        await asyncio.gather(*[ask({"text": "ab"}, 200, "[1,") for _ in range(64)])
        assert max(sizes) == size
        await ask("ab", 422, "$.text of item 0")


async def test_items_of_a_class_that_takes_one_come_alone_and_many_at_once(
    start: Start, tmp_path: Path
) -> None:
    """As on a cluster, and as in an application: 64 calls wait for each other here, and each is answered."""
    module = """
import asyncio

class Alone:
    def __init__(self):
        self.all = asyncio.Barrier(64)

    async def predict(self, item):
        await self.all.wait()
        return item
"""
    write(tmp_path, module)
    assert await sizes_of(await (await start("model:Alone")).ready()) == {1}


async def sizes_of(run: Run) -> set[int]:
    """The sizes of the batches of items that come at once, each of which has to be answered."""

    async def ask() -> list[str]:
        async with run.session.post(f"{run.url}/predict", json={"instances": [1]}) as answer:
            assert answer.status == 200, await answer.text()
            return re.findall(r'desc="(\d+)"', answer.headers.get("server-timing", ""))

    found = await asyncio.gather(*[ask() for _ in range(64)])
    return {int(size) for each in found for size in each}


async def test_a_class_whose_cost_is_not_of_all_methods_runs_without_it(start: Start, tmp_path: Path) -> None:
    """`penstock export` refuses it; here a warning says so, unless a file says all."""
    module = MODULE.replace("@penstock.batched", '@penstock.batched(cost="$.text")')
    write(tmp_path, module + "\n    def other(self, item):\n        return item\n")
    (tmp_path / "s.yaml").write_text("{}")
    for arguments, warns in ((("--settings", "s.yaml"), False), ((), True)):
        run = await (await start("model:Echo", *arguments)).ready()
        assert await run.ask("no object") == [1, "no object"]
        assert ("expected one cost path for all methods" in run.said) is warns


async def test_a_module_with_the_name_of_one_of_pythons_hides_none_from_the_programs(
    start: Start, tmp_path: Path
) -> None:
    """As with `penstock deploy`, the target's code gets Python's own, too."""
    for name in ("statistics", "heapq", "logging"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(__name__)")
    (tmp_path / "helper.py").touch()
    write(tmp_path, f"import helper\n{MODULE}")
    assert await (await (await start("model:Echo")).ready()).ask(3) == [1, 3]


@pytest.mark.parametrize(
    "printed",
    [
        "settings {'lr': 0.1}",
        'settings {"batching": {"maxBatchSize": 2}}',
        "ready data=here",
        "application [{}]",
    ],
)
async def test_what_a_module_prints_is_shown_and_never_read(
    start: Start, tmp_path: Path, printed: str
) -> None:
    """Though it looks like a line of the model server's own."""
    write(
        tmp_path,
        f"import sys\nprint({printed!r})\nprint({printed!r}, end='')\n{MODULE}sys.stdout = sys.stderr\n",
    )
    run = await (await start("model:Echo")).ready()
    assert await run.ask(3) == [1, 3]
    assert run.said.count(f"model   | {printed}\n") == 2
    assert max(await sizes_of(run)) > 2


async def test_a_line_that_cannot_be_read_ends_the_command(start: Start, tmp_path: Path) -> None:
    """NaN is JSON for Python alone."""
    spec = '@penstock.backend(spec={"userConfig": {"x": float("nan")}})\nclass Root'
    write(
        tmp_path,
        APPLICATION.replace('@penstock.backend(spec={"batching": {"maxBatchSize": 2}})\nclass Root', spec),
    )
    run = await start("model:app")
    assert await run.ended() == 1
    assert "the model's output cannot be read" in run.said


async def test_settings_of_a_file_are_followed(start: Start, tmp_path: Path) -> None:
    """The class gets its userConfig; what it refuses is said."""
    write(
        tmp_path,
        MODULE + "    def reconfigure(self, config):\n        print('config', config['name'], flush=True)\n",
    )
    (tmp_path / "s.yaml").write_text("userConfig: {name: first}")
    run = await start("model:Echo", "--settings", "s.yaml")
    await run.ready()
    await run.tells("config first")
    (tmp_path / "s.yaml").write_text(json.dumps({"userConfig": {"name": "second"}}))
    await run.tells("config second")
    (tmp_path / "s.yaml").write_text("userConfig: {}")
    refused = await start("model:Echo", "--settings", "s.yaml")
    await refused.tells("not ready: ")
