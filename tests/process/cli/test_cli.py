"""`kubectl penstock` on a kubeconfig and an apiserver on loopback: what it prints, and its errors."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock_cli.__main__ import COMMANDS, run
from penstock_cli.commands.top import page
from penstock_cli.commands.why import REASONS, TERMS, VERDICTS, explain
from penstock_cli.text import Screen, bars, cut, span, table
from penstock_operator.api.backendstatus import ScalingInputs
from penstock_operator.autoscaling import recommend
from penstock_operator.kinds import BACKEND
from penstock_wire.control.report import BackendTotals
from penstock_wire.errors import MODEL_ANSWER, Reason
from penstock_wire.version import DISTRIBUTION
from tests.support.processes.terminal import printed
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, settings, split

SCALING = {"targetLoad": 10, "maxReplicas": 4, "minReplicas": 1}
ROOT = Path(__file__).parents[3]


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """A busy backend that an operator has scaled to its maximum, and an endpoint without a backend."""
    harness = Harness()
    harness.apply(policy())
    harness.apply(backend("busy", autoscaling=SCALING))
    harness.apply(backend("idle", batchPolicyRef="p"))
    harness.apply(endpoint(backend="nobody"))
    harness.apply(split(busy=90, idle=10))
    await harness.run()
    for _ in range(20):
        for name, load in (("busy", 75), ("idle", 0)):
            for pod in harness.pods_ready(f"{name}-backend", 1):
                version = settings(harness, f"{name}-backend-settings")["version"]
                harness.report(name, pod, version=version, load=load)
        await harness.turn(1)
    yield harness
    harness.stop()


@pytest.fixture
async def server(harness: Harness) -> AsyncIterator[TinyApiserver]:
    async with TinyApiserver(harness.cluster) as server:
        yield server


async def test_why_says_the_computation_its_terms_and_what_holds_it_back(
    server: TinyApiserver, tmp_path: Path
) -> None:
    code, lines = await printed(server, tmp_path, "why", "busy")
    text = "\n".join(lines)
    assert code == 0
    assert lines[0] == "n/busy: 4 replicas asked for, 1 ready"
    assert re.search(r"^The autoscaler recommends 4, for \d+[smhd].*:$", text, re.MULTILINE)
    assert "\n  load 75 / targetLoad 10 = 7.5, rounded up to 8, limited to maxReplicas 4\n" in text
    assert "\n  Limited: HELD BACK by maxReplicas: the load asks for more\n" in text
    assert re.search(r"^  wanted +8 +replicas that these ask for, before any limit$", text, re.MULTILINE)
    assert "Settings: " in text
    assert "maxReplicas 4" in text
    assert "ScalingActive is True (Limited): the load asks for more than maxReplicas 4" in lines
    assert re.search(r"ago +1 → 4 +load 75 / targetLoad 10 = 7.5, rounded up to 8", text)
    assert "Replicas, by these changes:" in lines
    assert lines[-1].endswith("now")


async def test_a_terminal_of_80_columns_cuts_nothing_off(server: TinyApiserver, tmp_path: Path) -> None:
    """What is longer goes on in the next line, or moves together."""
    for arguments in (("why", "busy"), ("status",), ("status", "-c")):
        wide = (await printed(server, tmp_path, *arguments, width=400))[1]
        lines = (await printed(server, tmp_path, *arguments, width=80))[1]
        assert max(map(len, lines)) <= 80
        words = {word for line in wide for word in line.split() if word.isalpha()}
        assert words <= {word for line in lines for word in line.split()}, arguments


async def test_why_of_a_backend_that_does_not_scale(server: TinyApiserver, tmp_path: Path) -> None:
    code, lines = await printed(server, tmp_path, "why", "idle")
    assert code == 0
    assert lines[-1].startswith("It has no autoscaling")


async def test_what_clients_got_instead_of_answers_is_shown(
    harness: Harness, server: TinyApiserver, tmp_path: Path
) -> None:
    """In numbers and by reason; `why` explains each reason that Penstock answers with."""
    (router,) = harness.pods_ready("penstock-router", 1)
    harness.apply(endpoint("direct", backend="idle"))
    for number in (0, 1):
        reasons = {"deadline": 17 * number, "model_failed": 2 * number, "queue_full": number}
        answered = {"idle": BackendTotals(requests=35 * number, reasons=reasons)}
        harness.router_report(router, ["direct"], version=0, answered=answered)
        await harness.turn(11)
    text = (await printed(server, tmp_path, "status"))[1]
    assert any(
        "18 refused, 2 failed of 35 a minute (deadline 17, model_failed 2, queue_full 1)" in line
        for line in text
    )
    head, *rows = (re.split(r" {2,}", line) for line in (await printed(server, tmp_path, "top"))[1])
    row = next(dict(zip(head, row, strict=True)) for row in rows if row[0] == "idle")
    assert (row["REFUSED"], row["FAILED"]) == ("18", "2")
    assert row["ERRORS"] == "deadline 17, model_failed 2, queue_full 1"
    why = (await printed(server, tmp_path, "why", "idle"))[1]
    assert "Of 35 requests in the last minute, 18 were refused and 2 failed:" in why
    assert re.match(r"  deadline +17 +they would have been late", why[-3])
    assert set(REASONS) == {reason.value for reason in Reason if reason.status >= 500} | {MODEL_ANSWER}


def test_a_model_that_crashed_shows_when_and_how_also_after_it() -> None:
    ended = {"pod": "p1", "time": "2026-01-01T00:00:00Z", "message": "exited with code 9 (Error)"}
    crashed: dict[str, Any] = {
        "metadata": {"name": "b", "namespace": "n", "generation": 1},
        "spec": {"replicas": 1},
        "status": {"readyReplicas": 1, "model": {"state": "Loaded", "restarts": 3, "lastCrash": ended}},
    }
    lines = explain(crashed, now=datetime(2026, 1, 1, 0, 2, tzinfo=UTC))
    assert "  The model's container was restarted 3 times in these pods" in lines
    assert "  Its last end, 2m ago: pod p1 exited with code 9 (Error)" in lines
    head, row = page([crashed], everywhere=False, width=200)
    assert dict(zip(head.split(), row.split(), strict=True))["RESTARTS"] == "3"


def test_why_says_why_pods_are_not_ready() -> None:
    condition = {"type": "Ready", "status": "False", "reason": "ModelCrashed", "message": "exit code 1"}
    crashing: dict[str, Any] = {
        "metadata": {"name": "b", "namespace": "n", "generation": 1},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": 1, "conditions": [condition]},
    }
    crashing["status"]["artifact"] = {"progress": "3.1 of 14.2 GB, 180 MB/s, 62 s left"}
    lines = explain(crashing, now=datetime.now(UTC))
    assert lines[:2] == ["n/b: 1 replica asked for, 0 ready", "  ModelCrashed: exit code 1"]
    assert lines[2] == "  Coming: a pod that downloads its files, 3.1 of 14.2 GB, 180 MB/s, 62 s left"
    crashing["status"]["readyReplicas"] = 1
    assert "ModelCrashed" not in "".join(explain(crashing, now=datetime.now(UTC)))


async def test_status_shows_all_kinds_and_what_is_wrong(server: TinyApiserver, tmp_path: Path) -> None:
    code, lines = await printed(server, tmp_path, "status")
    assert code == 0
    named = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert named == [
        "ModelBackend/busy", "ModelBackend/idle", "ModelEndpoint/e", "TrafficSplit/s", "BatchPolicy/p",
    ]  # fmt: skip
    at = named.index("ModelEndpoint/e")
    place = [line.split()[0] for line in lines].index(named[at])
    assert " to busy 90%, idle 10% " in lines[place], "as the split says, not the endpoint's own backend"
    assert lines[-1].startswith("BatchPolicy/p ")
    assert " of idle " in lines[-1]
    below = lines[place + 1]
    assert below.startswith("    ")
    assert not any("ReportsReceived" in line for line in lines)
    more = (await printed(server, tmp_path, "status", "--conditions"))[1]
    assert any("ReportsReceived (MetricsAvailable=True)" in line for line in more)
    everywhere = (await printed(server, tmp_path, "status", "-A"))[1]
    assert any(line.startswith("ModelBackend/n/busy ") for line in everywhere)
    narrow = (await printed(server, tmp_path, "status", width=40))[1]
    assert max(map(len, narrow)) <= 40


async def test_top_shows_the_busiest_first(server: TinyApiserver, tmp_path: Path) -> None:
    code, lines = await printed(server, tmp_path, "top")
    assert code == 0
    assert [line.split()[0] for line in lines] == ["BACKEND", "busy", "idle"]
    row = dict(zip(lines[0].split(), lines[1].split(), strict=True))
    assert row["QUEUED"] == "75"
    assert (row["PODS"], row["RECOMMENDED"], row["VERDICT"]) == ("1/4", "4", "Limited")


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (
            120,
            (
                "BACKEND PODS HELD QUEUED ONGOING OLDEST PER-MIN REFUSED FAILED RESTARTS FILL RECOMMENDED "
                "VERDICT ERRORS"
            ),
        ),
        (85, "BACKEND PODS HELD QUEUED ONGOING OLDEST PER-MIN REFUSED FAILED RECOMMENDED VERDICT"),
        (80, "BACKEND PODS HELD QUEUED ONGOING OLDEST PER-MIN REFUSED FAILED VERDICT"),
        (50, "BACKEND PODS HELD QUEUED REFUSED FAILED VERDICT"),
        (30, "BACKEND PODS QUEUED VERDICT"),
        (25, "BACKEND PODS QUEUED VERD…"),  # and a line is never longer than the terminal
    ],
)
async def test_a_narrow_top_leaves_out_columns_instead_of_the_verdict(
    server: TinyApiserver, tmp_path: Path, width: int, shown: str
) -> None:
    lines = (await printed(server, tmp_path, "top", width=width))[1]
    assert lines[0].split() == shown.split()
    assert max(map(len, lines)) <= width
    assert lines[1].split()[0] == "busy"


async def test_top_shows_requests_that_routers_hold_as_load(
    harness: Harness, server: TinyApiserver, tmp_path: Path
) -> None:
    """A backend whose requests wait for its first pod is not idle. Without autoscaling nobody says it."""
    await harness.applied(backend("starts", autoscaling=SCALING), endpoint("waits", backend="starts"))
    (router,) = harness.pods_ready("penstock-router", 1)
    for _ in range(4):
        harness.router_report(router, ["waits"], version=0, held={"starts": 190})
        await harness.turn(1)
    lines = (await printed(server, tmp_path, "top"))[1]
    head, *rows = (line.split() for line in lines)
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [(row["BACKEND"], row["HELD"], row["QUEUED"]) for row in found] == [
        ("starts", "190", "0"), ("busy", "0", "75"), ("idle", "-", "0"),
    ]  # fmt: skip


@pytest.mark.parametrize("before", [True, False])
async def test_options_stand_before_the_command_or_after_it(
    server: TinyApiserver, tmp_path: Path, before: bool
) -> None:
    """As kubectl takes them."""
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    options = ["-n", "empty", "--kubeconfig", str(tmp_path / "kubeconfig")]
    out = io.StringIO()
    screen = Screen(out=out, width=80, live=False)
    given = [*options, "top"] if before else ["top", *options]
    assert await asyncio.to_thread(run, given, screen) == 0
    assert out.getvalue() == "There are no ModelBackends and no injected workloads.\n"


async def test_it_reads_what_a_viewer_may_and_writes_nothing(server: TinyApiserver, tmp_path: Path) -> None:
    """The four kinds, and for the overview the pods with the label of injection."""
    for arguments in (("why", "busy"), ("status",), ("status", "-A"), ("top",), ("top", "-A")):
        await printed(server, tmp_path, *arguments)
    assert {method for method, *_ in server.requests} == {"GET"}
    others = {
        (path, query["labelSelector"])
        for _, path, query, _ in server.requests
        if not path.startswith("/apis/penstock.dev/v1alpha1/")
    }
    pods = {("/api/v1/namespaces/n/pods", "penstock.dev/inject"), ("/api/v1/pods", "penstock.dev/inject")}
    assert others == pods


@pytest.mark.parametrize("arguments", [("status",), ("top",)])
async def test_an_empty_namespace_is_no_error(
    server: TinyApiserver, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    code, (line,) = await printed(server, tmp_path, *arguments, "-n", "empty")
    assert code == 0
    assert line.startswith("There are no")


@pytest.mark.parametrize("arguments", [("-n", "empty"), ()])
async def test_a_user_without_a_right_to_pods_sees_the_resources_and_a_note(
    server: TinyApiserver, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Where there is nothing else, too."""
    whole = await printed(server, tmp_path, "status", *arguments)
    server.fail[("GET", "pods")] = [403]
    code, lines = await printed(server, tmp_path, "status", *arguments)
    assert (code, lines[:-1]) == whole
    assert lines[-1].startswith(
        "Workloads with the label penstock.dev/inject are not shown: cannot read the pods"
    )


async def test_an_error_is_one_line_that_says_what_could_not_be_done(
    server: TinyApiserver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await printed(server, tmp_path, "why", "nobody") == (1, [])
    server.fail[("GET", "modelbackends")] = [403]
    assert await printed(server, tmp_path, "status") == (1, [])
    assert await printed(server, tmp_path, "top", "--context", "elsewhere") == (1, [])
    missing = run(
        ["top", "--kubeconfig", str(tmp_path / "none")], Screen(out=io.StringIO(), width=80, live=False)
    )
    server.cluster.objects.clear()
    (tmp_path / "gone").write_text(server.kubeconfig().replace(server.url, "http://127.0.0.1:1"))
    gone = run(
        ["top", "--kubeconfig", str(tmp_path / "gone")], Screen(out=io.StringIO(), width=80, live=False)
    )
    assert (missing, gone) == (1, 1)
    for number, text in enumerate(("not: [yaml", "just words", "clusters: 3", "")):
        (tmp_path / f"odd{number}").write_text(text)
        odd = ["top", "--kubeconfig", str(tmp_path / f"odd{number}")]
        assert run(odd, Screen(out=io.StringIO(), width=80, live=False)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9
    assert all(line.startswith("kubectl-penstock: cannot log in by ") for line in lines[5:])
    assert lines[0] == (
        "kubectl-penstock: cannot read ModelBackend n/nobody: modelbackends 'nobody' not found"
    )
    assert lines[1] == "kubectl-penstock: cannot read the modelbackends of namespace n: induced"
    for line, words in zip(lines[2:5], ("elsewhere", "none", "refused"), strict=True):
        assert line.startswith("kubectl-penstock: cannot ")
        assert words in line


@pytest.mark.parametrize(
    "module",
    [
        *("penstock", "penstock.serve", "penstock_cli"),
        *("penstock_operator", "penstock_router", "penstock_sidecar"),
    ],
)
def test_every_program_says_its_version(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == penstock.__version__ == metadata.version(DISTRIBUTION)


def test_a_number_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["top", "--every", "soon"], Screen(out=io.StringIO(), width=80, live=False))
    assert "--every: expected seconds from 0.5 to 3600, found 'soon'" in capsys.readouterr().err


def test_every_command_says_what_it_is_for_and_is_in_the_docs() -> None:
    page = (ROOT / "docs/how-to/why.md").read_text()
    for name, command in COMMANDS.items():
        assert command.__doc__
        assert f"kubectl penstock {name}" in page, name


def test_every_verdict_and_every_term_is_explained() -> None:
    """Here, in words that stand alone; the operator's own are the measure."""
    assert set(VERDICTS) == set(recommend.__globals__["Verdict"].__args__)
    assert set(TERMS) >= {field.alias or name for name, field in ScalingInputs.model_fields.items()}


def stored(changes: list[tuple[str, int, int]], replicas: int, **recommended: Any) -> dict[str, Any]:
    resource = backend("m", replicas=replicas, autoscaling={**SCALING, "mode": "External"})
    resource["metadata"]["generation"] = 2
    resource["status"] = {
        "observedGeneration": 1,
        "desiredReplicas": 3,
        "scaling": [{"time": time, "from": before, "to": to, "reason": "r"} for time, before, to in changes],
    }
    if recommended:
        resource["status"]["recommendation"] = recommended
    return resource


NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def test_batches_by_cost_are_described() -> None:
    """What a usual one is, what its time goes by, and what the number of items alone would explain."""
    resource = stored([], 1)
    resource["status"]["load"] = {
        "byCost": {
            "items": 12, "cost": 3100, "milliseconds": 41, "terms": ["padded", "newer"],
            "errorPercent": 1, "errorByItemsPercent": 31,
        }
    }  # fmt: skip
    lines = explain(resource, now=NOW)
    assert "  Batches by cost: a usual one has 12 items, 3100 bytes, 41 ms predicted" in lines
    assert (
        "    by padded (their number times the largest cost), newer: 1% off at the median, "
        "by the number of items alone 31%"
    ) in lines
    resource["spec"]["batching"] = {"cost": {"path": "$.text"}}
    assert any("3100 by $.text, 41 ms" in line for line in explain(resource, now=NOW))


def test_a_newer_operators_words_are_shown_as_they_are() -> None:
    recommended = {"verdict": "Panic", "message": "m", "inputs": {"arrivalRate": 4.5, "load": 3}}
    lines = explain(stored([], 1, **recommended), now=NOW)
    assert "NB: the status below is older than the last change of the spec" in lines
    assert "The autoscaler recommends 3; another scaler is to write it (mode External):" in lines
    assert any(line.startswith("  Panic: ") for line in lines)
    terms = [line.split()[:-1] for line in lines if "arrival rate" in line]
    assert terms == [["arrival", "rate"]]
    assert lines[-1].startswith("The autoscaler has changed nothing yet")
    assert "The autoscaler has not said anything yet." in explain(stored([], 1), now=NOW)


@pytest.mark.parametrize(
    ("scaling", "desired", "since", "said"),
    [
        ({}, 3, "11:59:00", "; in 4m at the latest, if no more are wanted until then"),
        (
            {"downscaleDelay": "90s"},
            3,
            "11:59:00",
            "; in 30s at the latest, if no more are wanted until then",
        ),
        ({}, 3, "11:50:00", ""),
        ({}, 1, "11:59:00", ""),  # the last one waits for a router
        ({"targetLoad": None}, 3, "11:59:00", ""),  # it can fall sooner, and wait longer
    ],
)
def test_why_says_how_long_a_decrease_waits_still(
    scaling: dict[str, Any], desired: int, since: str, said: str
) -> None:
    resource = stored([], 3, verdict="Delayed", message="m", since=f"2026-01-02T{since}Z")
    merged = {"downscaleDelay": "300s"} | resource["spec"]["autoscaling"] | scaling
    resource["spec"]["autoscaling"] = {name: value for name, value in merged.items() if value is not None}
    resource["status"]["desiredReplicas"] = desired
    assert f"  Delayed: {VERDICTS['Delayed']}{said}" in explain(resource, now=NOW)


async def test_a_delayed_decrease_falls_by_the_time_that_why_says(harness: Harness) -> None:
    """The load goes, and the operator's own status is all that is read."""
    times = {"stableWindow": "30s", "downscaleDelay": "120s"}
    harness.apply(backend("busy", autoscaling=SCALING | times))
    said: list[tuple[int, str]] = []
    for second in range(600):
        for pod in harness.pods_ready("busy-backend", 4):
            version = settings(harness, "busy-backend-settings")["version"]
            harness.report("busy", pod, version=version, load=0)
        await harness.turn(1)
        resource = harness.ctx.store.get(BACKEND, "n", "busy")
        assert resource is not None
        if resource["spec"].get("replicas") != 4:
            break
        lines = explain(resource, now=harness.clock.now())
        said += [(second, line) for line in lines if "at the latest" in line]
    assert resource["spec"]["replicas"] < 4
    assert said
    for at, line in said:
        (words,) = re.findall("; in (?:([0-9]+)m)?(?:([0-9]+)s)? at the latest", line)
        left = 60 * int(words[0] or 0) + int(words[1] or 0)
        assert at + left - 60 < second <= at + left + 2, "the autoscaler looks every two seconds"


def test_why_has_no_target_load_where_it_is_not_reckoned() -> None:
    """At zero replicas without targetLoad; no pod is to have 0 items."""
    inputs = {"targetLoad": 0, "load": 0, "wanted": 0}
    lines = explain(stored([], 0, verdict="Steady", message="m", inputs=inputs), now=NOW)
    terms = [line.rsplit(maxsplit=1)[0].strip() for line in lines if line.startswith("  ")]
    assert not any(term.startswith("target load") for term in terms)
    assert any(term.startswith("wanted ") for term in terms)
    inputs["targetLoad"] = 32
    lines = explain(stored([], 0, verdict="Steady", message="m", inputs=inputs), now=NOW)
    assert any(line.split()[:3] == ["target", "load", "32"] for line in lines)


def test_why_says_what_was_set_and_which_schedule_does_not_hold() -> None:
    """A mistake in one schedule takes all of them away; the objective is a setting of the computation."""
    office = {"name": "office", "start": "0 8 * * *", "end": "0 18 * * *", "minReplicas": 2}
    night = office | {"name": "night", "timeZone": "Asia/Tokyo", "maxReplicas": 3}
    resource = backend("m", autoscaling={"maxReplicas": 4, "schedules": [office, night]})
    resource["spec"]["batching"] = {"latencyObjective": "500ms"}
    resource["metadata"]["generation"] = 1
    refused = {"type": "Accepted", "status": "False", "reason": "ScheduleInvalid", "message": "both hold"}
    resource["status"] = {"observedGeneration": 1, "conditions": [refused]}
    lines = explain(resource, now=NOW)
    assert "Settings: maxReplicas 4, latencyObjective 500ms" in lines
    assert "Schedule office: minReplicas 2, from 0 8 * * * to 0 18 * * * (UTC)" in lines
    assert "Schedule night: minReplicas 2, maxReplicas 3, from 0 8 * * * to 0 18 * * * (Asia/Tokyo)" in lines
    assert "Accepted is False (ScheduleInvalid): both hold" in lines
    refused |= {"status": "True", "reason": "Accepted", "message": ""}
    assert not any(line.startswith("Accepted") for line in explain(resource, now=NOW))


def test_why_says_that_a_recommendation_is_not_written() -> None:
    """As while a 0 stands that somebody else wrote."""
    resource = stored([], 0, verdict="NoReports", message="m")
    disabled = {"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled", "message": "n"}
    resource["status"]["conditions"] = [disabled]
    lines = explain(resource, now=NOW)
    assert "The autoscaler recommends 3; it does not write that (ScalingDisabled):" in lines
    assert "ScalingActive is False (ScalingDisabled): n" in lines


def test_the_plot_goes_back_to_the_first_change_and_ends_at_what_there_is() -> None:
    lines = explain(stored([("2026-01-02T11:30:00Z", 4, 2), ("2026-01-02T11:00:00Z", 1, 4)], 3), now=NOW)
    plot = lines[lines.index("Replicas, by these changes:") + 1 :]
    assert [line[:3] for line in plot[:-1]] == ["4 ┤", "3 ┤", "2 ┤", "1 ┤", "0 ┼"]
    drawn = [line[3:].ljust(64) for line in plot[:4]]
    heights = [sum(row[column] == "█" for row in drawn) for column in range(64)]
    assert heights[0] == 1
    assert heights[-1] == 3
    assert abs(heights.count(4) - heights.count(2)) <= 2
    assert plot[-1].split() == ["1h", "ago", "now"]


def test_changes_within_a_second_are_drawn_in_their_order() -> None:
    """Such as from 2 to 1 and to 0 at once: it is at 0 from then on."""
    changes = [("2026-01-02T11:30:00Z", 1, 0), ("2026-01-02T11:30:00Z", 2, 1), ("2026-01-02T11:00:00Z", 0, 2)]
    lines = explain(stored(changes, 0), now=NOW)
    plot = lines[lines.index("Replicas, by these changes:") + 1 :]
    assert [line.rstrip()[-1] for line in plot[:2]] == ["█", "█"]
    assert {len(line.rstrip()) for line in plot[:2]} <= {34, 35, 36}


@pytest.mark.parametrize("nobodys", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
def test_a_change_at_a_time_that_nobody_can_read_is_left_out(nobodys: str) -> None:
    """The apiserver takes such times for date-times, and who may write a status can write them."""
    changes = [(nobodys, 2, 3), ("2026-01-02t11:00:00z", 1, 2)]
    since = {"verdict": "Steady", "message": "m", "since": nobodys}
    lines = explain(stored(changes, 3, **since), now=NOW)
    assert "The autoscaler recommends 3; another scaler is to write it (mode External):" in lines
    assert [line.split() for line in lines if "→" in line] == [["1h", "ago", "1", "→", "2", "r"]]
    assert explain(stored(changes[:1], 3), now=NOW)[-1].startswith("The autoscaler has changed nothing yet")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (59, "59s"), (60, "1m"), (95, "1m35s"), (660, "11m"), (3700, "1h1m"), (90_000, "1d1h")],
)
def test_ages_have_one_unit_or_two(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_bars_are_as_high_as_their_values() -> None:
    assert bars([0, 1, 2], height=8) == ["2 ┤  █", "1 ┤ ██", "0 ┼───"]
    tall = bars([100, 50, 0], height=4)
    assert [line[:5] for line in tall] == ["100 ┤", "    ┤", "    ┤", " 25 ┤", "  0 ┼"]
    assert [line[5:] for line in tall[:-1]] == ["█", "█", "██", "██"]
    assert bars([0], height=8) == ["1 ┤", "0 ┼─"]


def test_a_page_that_is_shown_anew_keeps_its_head_on_a_low_terminal() -> None:
    """The state of a release and the busiest backend are above; the last page of all is whole."""
    out = io.StringIO()
    screen = Screen(out=out, width=60, live=True, height=6)
    lines = [f"line {number}" for number in range(8)]
    screen.show(lines, anew=True)
    shown = out.getvalue().removeprefix("\x1b[H\x1b[2J").splitlines()
    assert shown == [*lines[:4], "… 4 more lines; make the terminal higher to see them"]
    assert len(shown) < screen.height
    for length, options in ((5, {"anew": True}), (8, {"anew": True, "last": True}), (8, {})):
        out.truncate(out.seek(0))
        screen.show(lines[:length], **options)
        assert out.getvalue().removeprefix("\x1b[H\x1b[2J").splitlines() == lines[:length]


def test_text_of_others_cannot_move_the_cursor() -> None:
    """Messages of conditions come from models."""
    assert cut("a\x1b[2Jb\nc", 80) == "a [2Jb c"
    assert cut("abcdef", 4) == "abc…"
    assert table(("A", "B"), [("xx", "y")]) == ["A    B", "xx   y"]
