"""Match rules: who gets a request by what it says itself."""

from __future__ import annotations

import time
from typing import Any

from tests.support.processes.router_process import RouterProcess, backend, endpoint
from tests.unit.router.choice.test_router_match_rules import _ruled


async def _backend_of(process: RouterProcess, **headers: str) -> str | None:
    reply = await process.ask(headers={name.replace("_", "-"): value for name, value in headers.items()})
    return reply.headers.get("x-penstock-backend")


async def test_a_match_goes_before_weights_and_changes_at_run_time(upstream: Any, router: Any) -> None:
    """A backend of weight 0 gets what matches its rules and nothing else."""
    servers = [await upstream() for _ in range(2)]
    rule = {"header": "x-group", "value": "beta"}
    stable = backend("stable", servers[0].target)
    process = await router().start(endpoint("e", stable, _ruled("beta", servers[1].target, rule)))
    for _ in range(3):
        assert await _backend_of(process, x_group="beta") == "beta"
        assert await _backend_of(process, x_group="other") == "stable"
    assert (len(servers[0].seen), len(servers[1].seen)) == (3, 3)
    process.settle(endpoint("e", stable, _ruled("beta", servers[1].target, {"cookie": "g", "regex": "b.+"})))
    deadline = time.monotonic() + 30
    while await _backend_of(process, x_group="beta") != "stable":
        assert time.monotonic() < deadline
    assert await _backend_of(process, cookie="a=b; g=beta") == "beta"
