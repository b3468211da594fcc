"""The access log: which requests it has, and what of them."""

from __future__ import annotations

import argparse
import json

import pytest

from penstock_wire.access_log import AccessLog, share
from penstock_wire.http import Request, Response

REQUEST = Request("POST", "/p?secret=1", ((b"authorization", b"secret"),), b"secret")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def write(log: AccessLog, request_id: str, **more: str) -> None:
    answer = Response(200, (), b"secret")
    log.write(REQUEST, answer, request_id=request_id, status=200, reason="", seconds=0.5, received=6, **more)


def test_a_line_has_what_happened_and_nothing_that_was_sent(capsys: pytest.CaptureFixture[str]):
    write(AccessLog(1.0), "r-1", endpoint="e", backend="")
    (line,) = lines(capsys)
    assert line.pop("time")
    assert line == {
        "level": "info",
        "message": "request",
        "request_id": "r-1",
        "method": "POST",
        "path": "/p",
        "status": 200,
        "reason": "",
        "ms": 500.0,
        "received": 6,
        "sent": 6,
        "endpoint": "e",
    }


@pytest.mark.parametrize("length", [None, 6])
def test_nothing_of_a_body_is_sent_to_head(length: int | None, capsys: pytest.CaptureFixture[str]):
    answer = Response(200, (), b"secret", length=length)
    head = Request("HEAD", "/p", (), b"")
    AccessLog(1.0).write(head, answer, request_id="r", status=200, reason="", seconds=0.5, received=0)
    assert lines(capsys)[0]["sent"] == 0


def test_two_processes_choose_the_same_requests_and_about_that_share(capsys: pytest.CaptureFixture[str]):
    chosen = []
    for log in (AccessLog(0.1), AccessLog(0.1), AccessLog(1.0), AccessLog(0.0)):
        for number in range(3000):
            write(log, f"id-{number}")
        chosen.append([line["request_id"] for line in lines(capsys)])
    assert chosen[0] == chosen[1]
    assert 200 < len(chosen[0]) < 400
    assert (len(chosen[2]), len(chosen[3])) == (3000, 0)


def test_requests_without_an_id_are_chosen_by_chance(capsys: pytest.CaptureFixture[str]):
    log = AccessLog(0.5)
    for _ in range(1000):
        write(log, "")
    assert 300 < len(lines(capsys)) < 700


@pytest.mark.parametrize("text", ["1.1", "-0.1", "nan", "half", ""])
def test_a_share_that_is_none(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a share from 0 to 1"):
        share(text)
