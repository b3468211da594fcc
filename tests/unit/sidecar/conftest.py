"""Fixtures of the tests of the dispatcher."""

from __future__ import annotations

import pytest

from tests.support.models.scripted_model import Scripted


@pytest.fixture(params=["called back", "in tasks"])
def sending(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of sending a batch: each test is true of both."""
    monkeypatch.setattr(Scripted, "tasks", request.param == "in tasks")
