"""The examples of composition answer alike in one process and under `penstock run`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

import penstock
from penstock.testing import serving
from tests.support.pages.example_cases import CASES, COMPOSITION
from tests.support.processes.penstock_run import Run


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports an example."""
    monkeypatch.syspath_prepend(COMPOSITION)
    yield import_module
    for name in {name for name, _, _ in CASES}:
        sys.modules.pop(name, None)


async def asked(handle: Any, item: Any, *, stream: bool) -> Any:
    """What a client gets, from a stream its pieces."""
    given = ((item,), {}) if not isinstance(item, dict) else ((), item)
    if not stream:
        return await handle(*given[0], **given[1])
    return [piece async for piece in handle.options(stream=True)(*given[0], **given[1])]


@pytest.mark.parametrize(("name", "item", "answer"), CASES)
async def test_an_example_answers_in_one_process(module: Any, name: str, item: Any, answer: Any) -> None:
    app = module(name).app
    async with serving(app):
        answered = await asked(penstock.Handle(app.root.name), item, stream=name == "stream")
    assert answered == answer


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CASES}))
async def test_an_example_answers_under_penstock_run(name: str) -> None:
    """Each node in processes of its own: a client gets what it gets in one process."""
    run = Run(COMPOSITION)
    try:
        await (await run.start(f"{name}:app")).ready()
        handle = penstock.Handle(name, url=run.url)
        for case, item, answer in CASES:
            if case == name:
                assert await asked(handle, item, stream=name == "stream") == answer
        if name == "branch":
            with pytest.raises(
                penstock.UpstreamError, match="expected one of french, spanish, found x"
            ) as raised:
                await handle(language="x", name="Dora")
            assert raised.value.status == 422
    finally:
        await run.stop()
