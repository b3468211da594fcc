"""The dispatcher on a clock of its own: requests whose time, client or process ends while they wait."""

from __future__ import annotations

import asyncio

import pytest

from penstock_wire.errors import PenstockError, Reason
from tests.support import fake_loop
from tests.support.scripted_model import Scripted, got


@pytest.fixture(autouse=True, params=["called back", "in tasks"])
def sending(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of sending a batch: each test is true of both."""
    monkeypatch.setattr(Scripted, "tasks", request.param == "in tasks")


def test_a_request_whose_time_is_over_as_a_slot_falls_free_is_not_sent():
    """Its timer may not have rung yet; and the last one that waits is not dropped for being late."""

    async def main():
        s = Scripted(base=2.0, max_batch_size=1)
        first = s.ask(0)
        await asyncio.sleep(0.0003)
        late = s.ask(1, timeout=2.0)
        outcome = await late
        assert isinstance(outcome, PenstockError)
        assert outcome.reason is Reason.DEADLINE
        assert got(await first) == [0]
        assert got(await s.ask(2)) == [2]
        assert s.batches() == [[0], [2]]
        await s.close()

    fake_loop.run(main())


def test_a_process_that_stops_at_once_answers_all_that_is_with_the_model():
    async def main():
        s = Scripted(base=2.0, max_batch_size=2, max_concurrent_batches=2)
        asked = [s.ask(number) for number in range(4)]
        await asyncio.sleep(1.0)
        await s.dispatcher.abort()
        outcomes = await asyncio.gather(*asked)
        assert [outcome.reason for outcome in outcomes] == [Reason.MODEL_UNREACHABLE] * 4
        assert not any(outcome.not_admitted for outcome in outcomes)
        assert (s.dispatcher.queued, s.dispatcher.ongoing) == (0, 0)
        await s.close()

    fake_loop.run(main())
