"""What the ledger of the router's bench calls wrong, request by request."""

from __future__ import annotations

import gc
import json
from collections import Counter
from pathlib import Path

import pytest

from bench import bodies
from bench.ledger import Entry, Ledger
from bench.open_loop import arrivals
from bench.router_ledger import (
    FIRST_ITEM,
    HURRIED,
    Identified,
    Load,
    fates,
    is_hurried,
    name_of,
    write_each,
    wrong,
)
from tests.support.http.wrong_server import serving

HASTY, PLAIN = FIRST_ITEM, FIRST_ITEM + 1
UNREACHABLE = ("error", "502 model_unreachable")
LATE = ("error", "504 deadline")
REFUSED = ("refused", "503 deadline")


@pytest.mark.parametrize(
    ("number", "outcome", "run", "expected"),
    [
        (PLAIN, ("ok", "200"), 1, ""),
        (PLAIN, ("ok", "200"), 0, "1 requests, ok: expected to be run 1 times, found 0"),
        (PLAIN, ("ok", "200"), 2, "expected to be run 1 times, found 2"),
        (PLAIN, UNREACHABLE, 0, ""),
        (PLAIN, UNREACHABLE, 1, ""),
        (PLAIN, UNREACHABLE, 2, "error 502 model_unreachable: expected to be run 0 or 1 times, found 2"),
        (PLAIN, REFUSED, 0, "1 requests: refused 503 deadline"),
        (PLAIN, LATE, 0, "1 requests: error 504 deadline"),
        (PLAIN, ("error", "500 internal"), 0, "1 requests: error 500 internal"),
        (PLAIN, ("lost", "connection ended"), 0, "1 requests: lost"),
        (PLAIN, ("", ""), 0, "1 requests: unanswered"),
        (PLAIN, ("mismatched", "200"), 1, "1 answers were another request's"),
        (HASTY, ("ok", "200"), 1, ""),
        (HASTY, REFUSED, 0, ""),
        (HASTY, REFUSED, 1, "hurried refused 503 deadline: expected to be run 0 times, found 1"),
        (HASTY, LATE, 1, ""),
        (HASTY, LATE, 2, "expected to be run 0 or 1 times"),
    ],
)
def test_each_request_is_judged_by_itself(
    number: int, outcome: tuple[str, str], run: int, expected: str
) -> None:
    """That the sum of what was run is right excuses none: another one is run so often that it is."""
    other = FIRST_ITEM + 2
    entries = [Entry(number, 0.0, 0.0, 1.0, *outcome), Entry(other, 0.0, 0.0, 1.0, "ok", "200")]
    problems = wrong(Ledger(1000.0, entries), Counter({number: run, other: 1}))
    assert bool(problems) == bool(expected)
    assert expected in " ".join(problems)


def test_what_nobody_sent_must_not_be_run_but_for_probes() -> None:
    entries = [Entry(PLAIN, 0.0, 0.0, 1.0, "ok", "200")]
    assert wrong(Ledger(1000.0, entries), {PLAIN: 1, 7: 3}) == []
    assert "nobody sent" in wrong(Ledger(1000.0, entries), {PLAIN: 1, PLAIN + 5: 1})[0]


def test_a_line_for_each_request_says_what_became_of_it(tmp_path: Path) -> None:
    entries = [Entry(HASTY, 1.0, 1.0, 1.5, *REFUSED), Entry(PLAIN, 1.0, 1.0, 1.25, "ok", "200")]
    executed = {PLAIN: 1}
    assert fates(entries, executed) == {"hurried refused 503 deadline": {0: 1}, "ok": {1: 1}}
    write_each(tmp_path / "each", entries, executed)
    assert [json.loads(line) for line in (tmp_path / "each").read_text().splitlines()] == [
        {"id": "ledger-1000", "fate": "hurried refused 503 deadline", "run": 0, "seconds": 0.5},
        {"id": "ledger-1001", "fate": "ok", "run": 1, "seconds": 0.25},
    ]


@pytest.mark.parametrize("word", ["right", "renamed", "refuse"])
async def test_an_answer_must_name_its_request(word: str) -> None:
    """Of whatever status it is: an error has no item by which it could be told whose it is."""
    ledger = Ledger(1000.0)
    async with serving(lambda _: word) as port:
        load = Load(
            "127.0.0.1",
            port,
            "/",
            arrivals(400, 0.1, seed=None),
            ledger,
            form=bodies.FORMS["instances"],
            timeout=60.0,
            connections=4,
            kind=Identified,
            first_number=FIRST_ITEM,
        )
        try:
            await load.run()
        finally:
            gc.unfreeze()
    outcome = {"right": "ok", "renamed": "mismatched", "refuse": "refused"}[word]
    assert {entry.outcome for entry in ledger.entries} == {outcome}
    assert bool(ledger.faults()) == (word == "renamed")


def test_one_request_in_some_has_little_time() -> None:
    numbers = range(FIRST_ITEM, FIRST_ITEM + 10 * HURRIED)
    assert sum(map(is_hurried, numbers)) == 10
    load = Load.__new__(Load)
    load.path, load.bodies = b"/p", bodies.FORMS["instances"]
    for number in (HASTY, PLAIN):
        head, _, body = load.message(number).partition(b"\r\n\r\n")
        assert b"\r\nx-request-id: %b\r\n" % name_of(number) in head
        assert (b"x-penstock-timeout-ms" in head) == is_hurried(number)
        assert body == b'{"instances":[%d]}' % number
