"""`penstock.run` in a script of a user's: HTTP beside handles, and a run that blocks until Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import penstock
from penstock.composition import bound
from tests.support.processes.ports import free_port


class Letters:
    """Counts letters; says how many items its batch had."""

    @penstock.batched
    def predict(self, texts: list[str], *, plus: int = 0) -> list[object]:
        if "" in texts:
            raise ValueError("no text")
        return [[len(text) + plus, len(texts)] for text in texts]

    def whole(self, request: penstock.Request) -> object:
        chosen: object = {"b": b"\0b", "n": None, "s": "s"}.get(request.query_params["a"], iter("ab"))
        return chosen if request.method == "GET" else penstock.Response(body=chosen)

    def spell(self, text: str) -> object:
        yield from text


def ask(port: int, path: str, body: object = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Status and body of the answer to a GET, or to a POST with a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers or {})
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_requests_and_handles_share_batches() -> None:
    """By HTTP it answers as a model server does: items, parameters, streams, problems, a page."""
    port = free_port()
    two = {"instances": ["a", "bb"]}
    with penstock.run(bound(Letters, {}), port=port) as handle:
        assert ask(port, "/", two) == (200, '{"predictions":[[1,2],[2,2]]}')
        assert ask(port, "/predict", two | {"plus": 3}) == (200, '{"predictions":[[4,2],[5,2]]}')
        assert ask(port, "/spell", two) == (200, '{"predictions":[["a"],["b","b"]]}')
        lines = ask(port, "/spell", {"instances": ["no"]}, {"accept": "application/x-ndjson"})
        assert lines == (200, '"n"\n"o"\n')
        status, text = ask(port, "/", {"instances": ["abc", ""]})
        assert (status, json.loads(text)["items"][0]["index"]) == (500, 1)
        assert ask(port, "/", {"instances": [5]})[0] == 422
        assert json.loads(ask(port, "/", two | {"minus": 1})[1])["reason"] == "bad_shape"
        texts = [ask(port, f"/whole?a={each}") for each in "bns"]
        assert texts == [(200, "\0b"), (200, "null"), (200, "s")]
        assert ask(port, "/whole?a=b", {}) == (200, "\0b")
        assert ask(port, "/whole?a=iterator", {})[0] == ask(port, "/whole?a=iterator")[0] == 502
        assert ask(port, "/docs")[0] == 200
        assert ask(port, "/-/reconfigure", {})[0] == 404
        assert ask(port, "/", two, {"origin": "https://elsewhere.example"})[0] == 403
        assert handle("abc").result() == [3, 1]
        with pytest.raises(OSError, match="in use"):
            penstock.run(bound(Letters, {}).named("other"), port=port)
    with pytest.raises(urllib.error.URLError):
        ask(port, "/")


def test_a_run_that_blocks_ends_at_ctrl_c(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, penstock\n"
        # A shell's background jobs ignore it, and so would this one, where these tests run in one.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Echo:\n"
        "    def __call__(self, item):\n"
        "        return item\n"
        "    def close(self):\n"
        "        print('closed', flush=True)\n"
        f"penstock.run(Echo, blocking=True, port={(port := free_port())})\n"
        "print('over')\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert said == f"penstock.run: echo is served at http://127.0.0.1:{port}; Ctrl-C ends it\n"
            assert ask(port, "/", {"instances": [1]}) == (200, '{"predictions":[1]}')
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=20) == ("closed\nover\n", "")
        finally:
            process.kill()
    assert process.returncode == 0
