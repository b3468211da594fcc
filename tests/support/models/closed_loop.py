"""Callers that ask again as soon as they are answered, before a model that refuses bad items."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import random

from penstock_wire.errors import PenstockError
from penstock_wire.http import Response
from tests.support.models.scripted_model import Run, Scripted

A, B = 0.010, 0.0002
"""Seconds of a run, and of each item in it."""


@dataclasses.dataclass
class Sender:
    """Callers with one name, a share of whose requests is bad.

    Args:
        bad: the share of bad requests.
        name: the value of their fairness header; none where empty.
    """

    callers: int
    bad: float
    name: str = ""


@dataclasses.dataclass
class Seen:
    """The answers to one sender's callers: valid answers to valid requests, own 422s, and anything else."""

    answers: int = 0
    own: int = 0
    wrong: list[object] = dataclasses.field(default_factory=list)


def refuse_bad(run: Run) -> Response | None:
    """422 for a run with a bad item."""
    return Response(status=422, body=b"bad") if any(item < 0 for item in run.items) else None


async def closed_loop(
    senders: list[Sender], requests: int, *, seed: int = 1, **batching: object
) -> tuple[dict[str, Seen], float, Scripted]:
    """Let them ask until so many requests are answered.

    Returns:
        What each sender got, the seconds that it took, and the dispatcher with its model, which the caller
        closes.
    """
    drawn = random.Random(seed)
    scripted = Scripted(base=A, item=B, behaviour=refuse_bad, **batching)
    seen: dict[str, Seen] = collections.defaultdict(Seen)
    left = requests
    number = 0

    async def caller(sender: Sender) -> None:
        nonlocal left, number
        results = seen[sender.name]
        fields = {"x_tenant": sender.name} if sender.name else {}
        while left > 0:
            left -= 1
            number += 1
            item = -number if drawn.random() < sender.bad else number
            outcome = await scripted.answer(scripted.work(item, timeout=60.0, **fields))
            if isinstance(outcome, PenstockError) or (outcome.status == 422) != (item < 0):
                results.wrong.append(outcome)
            elif item < 0:
                results.own += 1
            else:
                results.answers += 1

    began = scripted.loop.time()
    await asyncio.gather(*(caller(sender) for sender in senders for _ in range(sender.callers)))
    return dict(seen), scripted.loop.time() - began, scripted
