"""The views of `kubectl penstock ui` in a browser, light and dark: no fault, no serious finding of axe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.browser import devtools, findings, until_run
from tests.support.worlds.page_world import VIEWS, shown

PAUSE = "while (!document.querySelector('%s')) await new Promise(done => setTimeout(done, 50));"
GROUPS = [list(VIEWS)[at::3] for at in range(3)]


@pytest.mark.parametrize("names", GROUPS, ids=",".join)
async def test_each_view_can_be_read_by_all(names: list[str], tmp_path: Path) -> None:
    async with shown(tmp_path) as (url, _), devtools(url, tmp_path / "browser") as call:
        await until_run(
            call,
            "window.faults = []; addEventListener('error', event => faults.push(event.message));"
            + PAUSE % "li",
        )
        for name in names:
            place, wanted = VIEWS[name]
            await until_run(call, f"location.hash = {place!r};")
            await until_run(call, PAUSE % wanted)
            for scheme in ("light", "dark"):
                assert await findings(call, scheme) == [], (name, scheme)
            assert "[object" not in await until_run(call, "return document.body.innerText"), name
            if name == "backend":  # one of its pods cannot be read: the others are shown, and why
                words = await until_run(call, "return document.querySelector('[data-panel=pods]').innerText")
                assert "stable-3" in words
                assert "Metrics of pods cannot be read: " in words
        assert await until_run(call, "return faults") == []
