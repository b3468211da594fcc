"""Parts of `penstock run`: which files count, what a person reads, and the page's own script."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import try_page
from penstock.local import live_view, ports, source_files
from penstock.local.options import Options
from penstock.local.page import Page
from penstock.local.terminal import Terminal
from tests.support.clocks.waiting import SECONDS


@pytest.mark.parametrize(
    ("target", "name"),
    [("model:Digits", "digits"), ("a.b:LargeModel2X", "large-model2-x"), ("m:predict_all", "predict-all")],
)
def test_a_backend_is_named_after_its_target(target: str, name: str) -> None:
    options = Options(target=target, init_kwargs={}, port=0, batch=None, settings=None, reload=False)
    assert options.name == name


async def test_changes_of_python_files_are_found_and_of_nothing_else(tmp_path: Path) -> None:
    """New, gone and changed ones; not in hidden folders, virtual environments and caches."""
    for folder in ("sub", ".git", "venv", "node_modules"):
        (tmp_path / folder).mkdir()
    (tmp_path / "venv/pyvenv.cfg").touch()
    for path in ("a.py", "sub/b.py", "gone.py", ".git/c.py", "venv/d.py", "node_modules/e.py", "notes.md"):
        (tmp_path / path).write_text("1")
    before = source_files.look(tmp_path)
    assert sorted(path.removeprefix(f"{tmp_path}/") for path in before) == ["a.py", "gone.py", "sub/b.py"]
    for path in ("sub/b.py", "new.py", ".git/c.py", "notes.md"):
        (tmp_path / path).write_text("23")
    (tmp_path / "gone.py").unlink()
    stamp = (tmp_path / "a.py").stat()
    os.utime(tmp_path / "a.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    async with asyncio.timeout(SECONDS):
        assert await source_files.changed(tmp_path, before) == ["gone.py", "new.py", "sub/b.py"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("a print", "model   | a print"),
        ('{"time": "x"', 'model   | {"time": "x"'),
        ('{"time": "x", "level": "info", "message": "backend has no targets"}', None),
        (
            '{"time": "2026-01-02T03:04:05+00:00", "level": "error", "message": "failed", "n": 1, "e": "x"}',
            "model   | 03:04:05 error: failed  n=1  e=x",
        ),
        (
            '{"time": "?", "level": "error", "message": "failed", "trace": "File\\n  l\\nX: x\\n", "n": 1}',
            "model   | error: failed  trace=File\nmodel   |   l\nmodel   | X: x\nmodel   |   n=1",
        ),
    ],
)
def test_lines_of_children_for_people(line: str, shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs in words, anything else as it is; what the command does on purpose is not told as a warning."""
    monkeypatch.setenv("TZ", "UTC")
    out = io.StringIO()
    Terminal(out, live=False).child_line("model", line)
    assert out.getvalue() == ("" if shown is None else f"{shown}\n")


def test_the_view_stays_below_the_lines() -> None:
    out = io.StringIO()
    terminal = Terminal(out, live=True)
    terminal.show(["one", "two"])
    terminal.say("said")
    up = "\x1b[1A\r\x1b[2K"
    assert out.getvalue() == f"one\ntwo\n{up}{up}said\none\ntwo\n"
    terminal.show([])
    assert out.getvalue().endswith(up + up)


def test_the_view_is_what_happened_since_the_last_look() -> None:
    def look(at: float, items: int, batches: int, seconds: float) -> live_view.Sample:
        prefix = "penstock_sidecar_"
        text = (
            f"# HELP {prefix}batch_items_sum Items\n{prefix}batch_items_sum {items}\n"
            f"{prefix}batch_items_count {batches}\n{prefix}service_seconds_sum {seconds}\n"
            f"{prefix}batch_limit_items 32.0\n"
        )
        queue = json.dumps({"queued": 5, "ongoing": 32, "lines": []}).encode()
        return live_view.read(queue, text.encode(), at=at)

    before, now = look(10.0, 100, 10, 1.0), look(10.5, 420, 20, 1.5)
    assert live_view.line("digits", None, before) == "digits  queued 5  in the model 32"
    assert live_view.line("digits", before, now) == (
        "digits  queued 5  in the model 32  640 items/s  batches of 32.0 (at most 32)  50.0 ms each"
    )


SCRIPT = """
const sent = [];
const nodes = [];
function node(tag) {
  const found = {tag, children: [], appendChild(child) { this.children.push(child); return child; }};
  nodes.push(found);
  return found;
}
const kept = {h1: node("h1"), main: node("main")};
globalThis.document = {createElement: node, querySelector: name => kept[name]};
globalThis.fetch = async (path, options) => {
  if (path === "openapi.json") return new Response(JSON.stringify(SERVED));
  sent.push([path, options]);
  return new Response("the answer", {headers: {"server-timing": "batch"}});
};
PAGE
setTimeout(async () => {
  const buttons = nodes.filter(each => each.tag === "button");
  for (const button of buttons) await button.onclick();
  const shown = nodes.filter(each => each.tag === "pre").map(each => each.textContent);
  console.log(JSON.stringify({sent, shown, title: kept.h1.textContent, main: kept.main.textContent}));
}, 0);
"""


async def test_a_scrape_that_fails_is_no_scrape() -> None:
    """All batches since the start are not those of a second, because one answer in between had none."""
    metrics: list[tuple[int, int | None]] = [(200, 5), (0, None), (200, 6)]

    async def ask(path: str) -> tuple[int, bytes]:
        if path == "/queue":
            return 200, b'{"queued": 0, "ongoing": 0}'
        status, count = metrics.pop(0)
        lines = f'_bucket{{le="1"}} {count}\npenstock_sidecar_batch_items_bucket{{le="+Inf"}} {count}\n'
        return status, b"" if count is None else f"penstock_sidecar_batch_items{lines}".encode()

    pair: Any = SimpleNamespace(name="m", ask=ask)
    page, problems = Page(lambda: [pair]), []
    while metrics:
        await page._look()
        problems.append(page._scraped["m"].problem)
    assert problems == ["", "its sidecar does not answer", ""]
    assert [sizes for _, sizes in page._scraped["m"].sizes] == [[(1.0, 1.0), (float("inf"), 0.0)]]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js, which runs the page's script")
def test_the_page_sends_an_example_of_what_is_served() -> None:
    """Its script, run by Node.js on a stand-in for the document: a browser is not there in every checkout."""
    from penstock import openapi
    from penstock.examples import Digits
    from penstock.target import target_of

    class Scores:
        def predict(self, text: str, words: list, deep: dict[str, float], scale: float = 2.5) -> float:
            return 1.0

    shapes = {"predict": target_of("m:Scores", Scores).shape, "read": target_of("m:Digits", Digits).shape}
    served = openapi.document("scores", shapes, "predict")
    page = try_page.response().body.decode()
    script = page.partition("<script>")[2].partition("</script>")[0]
    program = SCRIPT.replace("SERVED", json.dumps(served)).replace("PAGE", script)
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert printed["title"] == "scores", printed
    (path, options), (other, read) = printed["sent"]
    assert (path, other, options["headers"]["accept"]) == ("/", "/read", "application/json")
    (item,) = json.loads(options["body"])["instances"]
    assert item == {"text": "text", "words": [1], "deep": {}, "scale": 2.5}
    (answer,) = Digits().predict(json.loads(read["body"])["instances"])
    assert answer["digit"] == 3
    assert "200" in printed["shown"][0]
    assert "the answer" in printed["shown"][0]


def test_a_free_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on it yet when the next one is asked for, where several children start at once."""
    monkeypatch.setattr(ports, "_LISTENED", range(31_000, 31_060))
    given = [ports.free_port() for _ in range(40)]
    assert len(set(given)) == 40
