"""`cost` of `@penstock.batch` and `@penstock.batched`: what an item costs, and batches by that."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

import penstock
from penstock.composition import bound
from penstock.errors import CompositionError
from penstock.testing import serving

BASE, PADDED = 0.02, 20e-6


class Clock:
    """The monotonic time, which a model's batches take forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def encode(self, lengths: list[int]) -> list[int]:
        """Take the time of a batch that is padded to its longest."""
        self.now += BASE + PADDED * len(lengths) * max(lengths)
        return lengths


async def ask(call: Any, clock: Clock, *, answers: int) -> float:
    """The model's seconds for so many answers to 64 callers, after as many to learn from."""
    draw = random.Random(1)
    left, began = 2 * answers, 0.0

    async def caller() -> None:
        nonlocal left, began
        while left > 0:
            left -= 1
            if left == answers:
                began = clock.now
            length = 2000 if draw.random() < 0.1 else 40
            assert await call(length) == length

    await asyncio.gather(*(caller() for _ in range(64)))
    return clock.now - began


async def test_items_of_like_cost_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in ten is fifty times as long: by number nearly each batch is padded to that."""
    seconds = {}
    for cost in (None, lambda length: length, "$"):
        clock = Clock(monkeypatch)

        async def encode(lengths: list[int]) -> list[int]:
            return clock.encode(lengths)  # noqa: B023 - used within this turn

        seconds[cost] = await ask(penstock.batch(max_batch_size=16, cost=cost)(encode), clock, answers=3000)
    by_number, by_function, by_path = seconds.values()
    assert by_function == by_path < 0.5 * by_number


async def test_a_served_class_is_batched_by_what_its_items_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, by a function of the item as it came in JSON."""
    seconds = []
    for each in (None, lambda item: item["length"]):
        clock = Clock(monkeypatch)

        class Encoder:
            @penstock.batched(columns=True, cost=each)
            async def encode(self, length: list[int]) -> list[int]:
                return clock.encode(length)  # noqa: B023 - used within this turn

        async with serving(Encoder, max_batch_size=16) as served:
            seconds.append(await ask(lambda length: served({"length": length}), clock, answers=600))
    assert seconds[1] < 0.6 * seconds[0]


@pytest.mark.parametrize(
    ("cost", "found"),
    [
        (lambda _: -1, "ValueError: cost: expected a number from 0 to 1000000000, found -1"),
        (lambda _: float("nan"), "ValueError: cost: expected a number from 0 to 1000000000, found nan"),
        (lambda _: "3", "TypeError: cost: expected a number from 0 to 1000000000, found '3'"),
        (lambda item: item["tokens"], "KeyError: 'tokens'"),
        ("$.tokens", "ValueError: $.tokens: expected a text, an array, or a number, found nothing"),
    ],
)
async def test_a_call_without_a_cost_fails_alone(cost: Any, found: str) -> None:
    """The caller gets what is wrong, and others their answers."""

    async def same(items: list[Any]) -> list[Any]:
        return items

    with pytest.raises(Exception) as caught:
        await penstock.batch(cost=cost)(same)({"text": "a"})
    assert f"{type(caught.value).__name__}: {caught.value}" == found


@pytest.mark.parametrize(("cost", "kind"), [("text", ValueError), ("$..a", ValueError), (3, TypeError)])
def test_what_is_neither_function_nor_path_is_refused(cost: Any, kind: type[Exception]) -> None:
    """Where it stands in the code."""
    with pytest.raises(kind, match="cost to be a"):
        penstock.batched(cost=cost)
    with pytest.raises(kind, match="cost to be a"):
        penstock.batch(cost=cost)


def test_a_path_reaches_the_sidecar_and_a_function_does_not() -> None:
    """What the user's own spec says stays."""

    class Text:
        @penstock.batched(cost="$.text")
        def embed(self, items: list[dict[str, str]]) -> list[int]: ...

    class Length:
        @penstock.batched(cost=len)
        def embed(self, items: list[str]) -> list[int]: ...

    class Both(Text):
        @penstock.batched
        def score(self, items: list[str]) -> list[int]: ...

    class Beside(Text):
        def predict(self, image: str) -> int: ...

    class Helped(Text):
        def _scaled(self, image: str) -> int: ...

    specs = [bound(kind, {}).nodes[-1].spec.get("batching", {}) for kind in (Text, Length, Helped)]
    assert specs == [{"cost": {"path": "$.text"}}, {}, {"cost": {"path": "$.text"}}]
    for kind, found in (
        (Both, r"\$.text of embed, none of score"),
        (Beside, r"none of predict, \$.text of embed"),
    ):
        with pytest.raises(CompositionError, match=rf"{kind.__name__}: .* one cost path .*, found {found}:"):
            _ = bound(kind, {}).nodes[-1].spec
        assert bound(penstock.backend(batching={"cost": {"path": "$.text"}})(kind), {}).nodes
    own = penstock.backend(batching={"cost": {"path": "$.query"}})(Text)
    assert bound(own, {}).nodes[-1].spec["batching"]["cost"] == {"path": "$.query"}
