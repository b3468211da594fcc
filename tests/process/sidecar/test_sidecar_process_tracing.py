"""A real sidecar process that exports its spans to a collector over OTLP/HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.processes.collector import Collector
from tests.support.processes.sidecar_process import HELD, Pair, Program, got, until

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    made = Collector()
    yield made, await made.start()
    await made.runner.cleanup()


async def test_spans_of_requests_and_their_batch_reach_the_collector(
    collector: tuple[Collector, str], tmp_path: Path
):
    """The last ones too, as the process ends."""
    seen, url = collector
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "60000", "PENSTOCK_POD": "digits-0"}
    pair = Pair(tmp_path, env=env)
    await pair.start(maxBatchSize=8)
    try:
        slow = asyncio.create_task(pair.predict(0, path=HELD, headers={"traceparent": SAMPLED}))
        await pair.until_state(ongoing=1)
        rest = [asyncio.create_task(pair.predict(n)) for n in range(1, 5)]
        await pair.until_state(queued=4)
        await pair.release()
        assert [got(await task) for task in (slow, *rest)] == [[n] for n in range(5)]
        pair.signal()
        assert await pair.sidecar.ended() == 0
        assert len(seen.spans) == 7, [span.name for span in seen.spans]
        assert {resource["service.name"] for resource in seen.resources} == {"penstock-sidecar"}
        assert {resource["service.instance.id"] for resource in seen.resources} == {"digits-0"}
        lone, batch = sorted(
            (span for span in seen.spans if span.name == "batch"), key=lambda s: len(s.links)
        )
        assert lone.trace_id.hex() == SAMPLED[3:35]
        requests = [span for span in seen.spans if span.name == "POST" and span.trace_id != lone.trace_id]
        assert {link.span_id for link in batch.links} == {span.span_id for span in requests}
        runs = await pair.runs()
        for run, span in zip(runs, (lone, batch), strict=True):
            sent = dict(run["fields"])["traceparent"]
            assert sent == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
    finally:
        await pair.stop()


async def test_a_collector_that_is_gone_costs_no_request(tmp_path: Path):
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    pair = Pair(tmp_path, "--tracing", env=env)
    await pair.start()
    try:
        for number in range(20):
            assert got(await pair.predict(number)) == [number]
        pair.signal()
        assert await pair.sidecar.ended() == 0
    finally:
        await pair.stop()


async def test_without_tracing_nothing_of_opentelemetry_is_loaded(tmp_path: Path):
    pair = Pair(tmp_path, env={"PYTHONPROFILEIMPORTTIME": "1"})
    await pair.start()
    try:
        assert got(await pair.predict(1)) == [1]
        pair.signal()
        assert await pair.sidecar.ended() == 0
        await pair.sidecar.stop()  # by now all that it said has been read
        imported = [line for line in pair.sidecar.log if line.startswith("import time:")]
        assert any("penstock_sidecar.tracing" in line for line in imported)
        assert [line for line in imported if "opentelemetry" in line] == []
    finally:
        await pair.stop()


async def test_asked_for_by_name_without_the_packages_it_ends_and_says_so(tmp_path: Path):
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('no opentelemetry here')")
    for flags, env in ((["--tracing"], {}), ([], {"PENSTOCK_TRACING": "true"})):
        program = Program(
            "penstock_sidecar", "--listen=127.0.0.1:0", *flags, env={**env, "PYTHONPATH": str(tmp_path)}
        )
        with pytest.raises(AssertionError):
            await program.start()
        assert await program.ended() == 2
        await program.stop()

        async def ended(program: Program = program) -> bool:
            return any("expected the packages of penstock-serving[tracing]" in line for line in program.log)

        await until(ended)
