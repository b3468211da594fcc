"""The open-loop generator's ledger records a server's faults, request by request."""

import gc

import pytest

from bench import bodies
from bench.ledger import Entry, Ledger
from bench.open_loop import OpenLoop, arrivals
from tests.support.http.wrong_server import Plan, serving

COUNT = 60


async def run(plan: Plan, *, timeout: float = 60.0) -> Ledger:
    """A short run against a server that follows a plan."""
    ledger = Ledger(objective_ms=1000)
    times = arrivals(400, COUNT / 400, seed=None)
    async with serving(plan) as port:
        load = OpenLoop(
            "127.0.0.1",
            port,
            "/",
            times,
            ledger,
            form=bodies.FORMS["instances"],
            timeout=timeout,
            connections=4,
        )
        try:
            await load.run()
        finally:
            gc.unfreeze()
    return ledger


def every_sixth(word: str) -> Plan:
    """Every sixth request so, the others right."""
    return lambda number: word if number % 6 == 0 else "right"


async def test_a_right_server_answers_each_request_once() -> None:
    ledger = await run(lambda _: "right")
    summary = ledger.summary(COUNT / 400)
    assert summary["outcomes"] == {"ok": COUNT}
    assert (summary["duplicated"], summary["faults"]) == (0, [])
    assert summary["latency_p50_ms"] > 0


@pytest.mark.parametrize(
    ("word", "outcome", "detail"),
    [
        ("wrong", "mismatched", "mismatched 200"),
        ("drop", "lost", "lost connection ended"),
        ("refuse", "refused", "refused 503 queue_full"),
        ("fail", "error", "error 500"),
    ],
)
async def test_each_fault_is_entered_for_the_request_that_met_it(
    word: str, outcome: str, detail: str
) -> None:
    ledger = await run(every_sixth(word))
    summary = ledger.summary(COUNT / 400)
    assert summary["outcomes"] == {"ok": COUNT - COUNT // 6, outcome: COUNT // 6}
    assert summary["details"] == {detail: COUNT // 6}
    assert bool(summary["faults"]) == (word == "wrong")


async def test_an_answer_that_comes_twice_is_a_fault() -> None:
    summary = (await run(every_sixth("twice"))).summary(COUNT / 400)
    assert summary["duplicated"] >= 1
    assert any("nothing that was asked" in fault for fault in summary["faults"])


async def test_a_request_without_an_answer_is_given_up_and_its_connection_ends() -> None:
    summary = (await run(every_sixth("hang"), timeout=2.0)).summary(COUNT / 400)
    assert summary["outcomes"] == {"ok": COUNT - COUNT // 6, "timeout": COUNT // 6}


async def test_a_late_answer_counts_from_the_intended_time_and_holds_up_no_other() -> None:
    ledger = await run(lambda number: "late" if number == 0 else "right")
    first = ledger.entries[0]
    assert first.outcome == "ok"
    assert first.ended - first.intended >= 0.49
    assert any(entry.ended < first.ended for entry in ledger.entries[1:])


async def test_a_server_that_is_not_there_loses_everything() -> None:
    ledger = Ledger(objective_ms=1000)
    load = OpenLoop(
        "127.0.0.1",
        1,
        "/",
        arrivals(400, 0.05, seed=None),
        ledger,
        form=bodies.FORMS["instances"],
        timeout=30,
        connections=0,
    )
    try:
        await load.run()
    finally:
        gc.unfreeze()
    assert {entry.detail for entry in ledger.entries} == {"connect: ConnectionRefusedError"}


def entry(number: int, *, late: float = 0.0, outcome: str = "ok", took: float = 0.001) -> Entry:
    """A finished request."""
    return Entry(number, float(number), float(number) + late, float(number) + took, outcome, "200")


def test_late_sends_and_a_busy_generator_void_the_run() -> None:
    punctual = [entry(number) for number in range(1, 1000)]
    assert Ledger(10, list(punctual)).void() == []
    late = [entry(number, late=0.003) for number in range(1000, 1020)]
    assert "late" in Ledger(10, punctual + late).void()[0]
    assert "busy" in Ledger(10, punctual, cpu_share=0.81).void()[0]
    assert Ledger(10).void() == ["nothing was sent"]


def test_goodput_counts_right_answers_within_the_objective_alone() -> None:
    entries = [
        entry(1),
        entry(2, took=0.02),
        entry(3, outcome="refused", took=0.002),
        entry(4, outcome="refused", took=0.02),
        entry(5, outcome="error"),
    ]
    summary = Ledger(10, entries).summary(1.0)
    assert summary["goodput_per_s"] == 1
    assert summary["refused_within_5ms"] == 0.5


def test_arrivals_are_the_same_for_the_same_seed_and_have_the_rate() -> None:
    first, again, other = (list(arrivals(1000, 10, seed=seed)) for seed in (7, 7, 8))
    assert first == again != other
    assert first == sorted(first)
    assert abs(len(first) - 10_000) < 400
    assert list(arrivals(4, 1, seed=None)) == [0, 0.25, 0.5, 0.75]
