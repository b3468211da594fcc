"""A model and its callers as Caikit's `Batcher` has them, ported in the fewest edits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import Batcher


class Greeter:
    """A module of Caikit without its base class: `run` for one, `run_batch` for many."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def run(self, name: str, greeting: str = "Hello") -> str:
        return f"{greeting} {name}!"

    def run_batch(self, name: list[str], greeting: list[str]) -> list[str]:
        self.batches.append(len(name))
        if "" in name:
            raise ValueError("a name is empty")
        return [self.run(*each) for each in zip(name, greeting, strict=True)]


def test_a_batcher_around_a_model_object() -> None:
    """2 of its lines changed: the import, and `Batcher("greeter", model, …)`, which has no name.

    Missing arguments have the default of `run`. Who sends the bad name gets its own exception, and not a
    RuntimeError as all callers of the batch; who leaves out what has no default gets it at once.
    """
    model = Greeter()
    batcher = Batcher(model, batch_size=4, batch_collect_delay_s=60.0)
    calls: list[dict[str, Any]] = [
        {"name": "Ann"}, {"name": "Bob", "greeting": "Hi"}, {"name": ""}, {"name": "Cy"},
    ]  # fmt: skip
    with ThreadPoolExecutor(4) as threads:
        ann, bob, nobody, cy = [threads.submit(batcher.run, **call) for call in calls]
        assert [each.result(30) for each in (ann, bob, cy)] == ["Hello Ann!", "Hi Bob!", "Hello Cy!"]
        with pytest.raises(ValueError, match="a name is empty"):
            nobody.result(30)
    assert model.batches[0] == 4
    with pytest.raises(TypeError, match="missing a required argument: 'name'"):
        batcher.run(greeting="Hi")
    batcher.stop()
    with pytest.raises(InterruptedError):
        batcher.run(name="Ann")
