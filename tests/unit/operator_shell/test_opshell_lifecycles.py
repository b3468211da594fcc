"""The stages that other tools are asked about are what their names say."""

from __future__ import annotations

from tests.support.lifecycles import stages


async def test_every_stage_has_its_reason() -> None:
    """Ready tells of each; before the operator has looked there is no status at all."""
    found = [stage async for stage in stages()]
    assert len({stage.name for stage in found}) == len(found) > 30
    for stage in found:
        conditions = (stage.obj.get("status") or {}).get("conditions") or []
        ready = [one["reason"] for one in conditions if one["type"] == "Ready"]
        assert ready == ([stage.reason] if stage.reason else []), stage.name
        for one in conditions:
            assert one["observedGeneration"] == stage.obj["status"]["observedGeneration"], stage.name
