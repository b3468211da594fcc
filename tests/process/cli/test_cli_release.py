"""`kubectl penstock rollout`, `promote`, `pause`, `abort`: what they print and write, their exit codes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock_cli.commands import rollout
from penstock_cli.release import Release
from penstock_cli.ui import views
from penstock_cli.ui.store import Store
from penstock_operator.api import TrafficSplit
from penstock_operator.kinds import BACKEND, EVENT, SPLIT
from tests.support.clocks.waiting import until
from tests.support.processes.terminal import printed
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.memory_cluster import MemoryCluster
from tests.support.worlds.operator_harness import backend, endpoint, split
from tests.support.worlds.release_world import World
from tests.support.worlds.release_world import split as releasing

ANNOTATION = "penstock.dev/release"
STEPS = [
    {"mirror": 10},
    {"pause": "1m"},
    {"setWeight": 10},
    {"pause": "5m"},
    {"setWeight": 50},
    {"pause": "Manual"},
]
ANEW = "it is judged by the requests from then on, whatever was counted before"
Obj = dict[str, Any]


class Clock:
    """In place of `time`: each sleep takes as long as it is set to."""

    now = 0.0
    sleeps = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        time.sleep(0.01)
        self.now += self.sleeps


def ago(**span: int) -> str:
    """A time before now as the API spells it."""
    return (datetime.now(UTC) - timedelta(**span)).isoformat(timespec="seconds").replace("+00:00", "Z")


def released(**strategy: Any) -> Obj:
    """A split whose strategy leads from `old` to `new`."""
    made = split(old=100, new=0)
    made["spec"]["strategy"] = {"stable": "old", "candidate": "new", "steps": STEPS, **strategy}
    return made


def write(cluster: MemoryCluster, *, step: int = 3, stored: Obj | None = None, **status: Any) -> None:
    """Give the split `s` a status, as the operator writes it: by default in the fourth step."""
    state = {"stable": "old", "candidate": "new", "phase": "Progressing", "weight": 10, "replicas": 14,
             "reason": "Analyzing", "message": "all is well so far", "started": ago(minutes=3)}  # fmt: skip
    weights = [
        {"name": "old", "desired": 90, "applied": 90, "observed": "90.4%"},
        {"name": "new", "desired": 10, "applied": 10, "observed": "9.6%"},
    ]
    verdicts = [
        {"metric": "errorRatio", "verdict": "Pass", "message": "0.2 % against 0.1 %"},
        {"metric": "latency p99", "verdict": "Waiting", "message": "120 of 400 requests"},
    ]
    whole = {
        "observedGeneration": 1,
        "step": step,
        "stepStarted": ago(seconds=95),
        "release": state | (stored or {}),
        "weights": weights,
        "verdicts": verdicts,
        "conditions": [
            {"type": "Progressing", "status": "True", "reason": "Analyzing", "message": "",
             "lastTransitionTime": ago(seconds=60)}
        ],
    } | status  # fmt: skip
    live = cluster.edit(SPLIT, "n", "s", lambda obj: obj.update(status=whole))
    TrafficSplit.parse(live)  # what the tests make up is what an operator may write


@pytest.fixture
async def server() -> AsyncIterator[TinyApiserver]:
    """A release in its fourth step, with both backends, and two Events."""
    cluster = MemoryCluster()
    for name, replicas, ready in (("old", 14, 14), ("new", 3, 1)):
        cluster.user_applies(backend(name, replicas=replicas))
        cluster.edit(BACKEND, "n", name, lambda obj, ready=ready: obj.update(status={"readyReplicas": ready}))  # type: ignore[misc]
    cluster.user_applies(endpoint())
    cluster.user_applies(released())
    write(cluster)
    for number, (name, reason) in enumerate((("s", "First"), ("s", "Second"), ("other", "Foreign"))):
        event = {
            "metadata": {"namespace": "n", "name": f"e{number}"},
            "regarding": {"kind": "TrafficSplit", "name": name},
            "eventTime": ago(minutes=9 - number),
            "reason": reason,
            "note": f"{reason}'s note",
            "type": "Normal",
        }
        await cluster.create(EVENT, event)
    async with TinyApiserver(cluster) as server:
        yield server


async def test_rollout_says_first_what_keeps_the_split_from_its_endpoint(
    server: TinyApiserver, tmp_path: Path
) -> None:
    missing = {"type": "Accepted", "status": "False", "reason": "EndpointMissing", "message": "no e"}
    write(server.cluster, conditions=[missing | {"lastTransitionTime": ago(seconds=60)}])
    assert (await printed(server, tmp_path, "rollout", "s"))[1][1] == "  EndpointMissing: no e"


async def test_rollout_shows_the_release(server: TinyApiserver, tmp_path: Path) -> None:
    code, lines = await printed(server, tmp_path, "rollout", "s")
    text = "\n".join(lines)
    assert code == 0
    assert lines[0] == "n/s: old → new: Progressing, step 4 of 6, weight 10 %"
    assert lines[1] == "  Analyzing: all is well so far"
    assert re.fullmatch(r"  started \d+m\S* ago", lines[2])
    steps = lines[lines.index("") + 1 :][:8]
    assert [line[0] for line in steps] == [" ", "✓", "✓", "✓", "▶", " ", " ", " "]
    assert re.search(r"▶ +4 +pause 5m +\d+m\S* of 5m$", text, re.MULTILINE)
    assert steps[-1].split() == ["weight", "100", "%"]
    assert re.search(r"^desired +████░{36} +10 %$", text, re.MULTILINE)
    assert re.search(r"^applied +████░{36} +10 %$", text, re.MULTILINE)
    assert re.search(r"^observed +████░{36} +9.6 %$", text, re.MULTILINE)
    assert re.search(r"^old +stable +14 +14 +14 for all requests$", text, re.MULTILINE)
    assert re.search(r"^new +candidate +1 +3 +2 for 10 %$", text, re.MULTILINE)
    assert re.search(r"^latency p99 +Waiting +120 of 400 requests$", text, re.MULTILINE)
    newest = lines[-2:]
    assert [line.split()[2] for line in newest] == ["Second", "First"]
    assert "Foreign" not in text


@pytest.mark.parametrize(
    ("step", "stored", "shown"),
    [
        (0, {"weight": 0, "mirror": 10}, ["▶ +1 +mirror 10 %", "copies of 10 %", "1 for 0 %"]),
        (5, {"phase": "Paused", "weight": 50}, [r"▶ +6 +pause until it is promoted +\S+, paused", "7 for "]),
        (6, {"weight": 90}, [r"▶ +weight 100 % +\d+m\S*$", "14 for 100 %", "weight 90 %"]),
        (6, {"phase": "Promoted", "weight": 100, "started": ago(minutes=3), "ended": ago(minutes=1)},
         ["✓ +weight 100 %$", r"ended \d+m\S* ago, took 2m$"]),
        (6, {"phase": "Promoted", "weight": 100}, ["✓ +weight 100 %$"]),
        (4, {"phase": "RolledBack", "weight": 0}, ["✗ +5 +weight 50 % +rolled back here", "0 for 0 %"]),
    ],
)  # fmt: skip
async def test_rollout_in_each_place(
    server: TinyApiserver, tmp_path: Path, step: int, stored: Obj, shown: list[str]
) -> None:
    write(server.cluster, step=step, stored=stored)
    _, lines = await printed(server, tmp_path, "rollout", "s")
    for pattern in shown:
        assert re.search(pattern, "\n".join(lines), re.MULTILINE), (pattern, lines)


@pytest.mark.parametrize("observed", ["nan%", "inf%", "much"])
async def test_rollout_shows_the_rest_of_a_status_that_somebody_wrote(
    server: TinyApiserver, tmp_path: Path, observed: str
) -> None:
    """Whatever the apiserver takes in a status: there is a page, and the verbs go on working."""
    nobodys, weights = "0000-01-01T00:00:00Z", [{"name": "new", "desired": 10, "observed": observed}]
    write(server.cluster, step=-9, stepStarted=nobodys, weights=weights, stored={"started": nobodys})
    code, lines = await printed(server, tmp_path, "rollout", "s")
    assert (code, lines[0]) == (0, "n/s: old → new: Progressing, step 1 of 6, weight 10 %")
    assert ["observed", "-"] in [line.split() for line in lines]
    code, lines = await printed(server, tmp_path, "promote", "s")
    assert (code, lines) == (0, ["n/s: leaves step 1 of 6, mirror 10 %, then pause 1m"])


async def test_rollout_of_what_is_not_all_there(server: TinyApiserver, tmp_path: Path) -> None:
    """A release that has not begun, no candidate, no right to read Events: the rest is shown."""
    server.cluster.remove(BACKEND, "n", "new")
    server.cluster.edit(SPLIT, "n", "s", lambda obj: obj.pop("status"))
    server.fail[("GET", "events")] = [403]
    code, lines = await printed(server, tmp_path, "rollout", "s")
    assert code == 0
    assert lines[0] == "n/s: old → new: not begun"
    assert "Nothing has been judged yet." in lines
    assert any(re.search(r"new +candidate +- +there is none", line) for line in lines)
    assert lines[-1] == "(cannot read the Events of TrafficSplit n/s: induced)"
    write(server.cluster, stored={"candidate": "another"})  # the status is of the pair before
    assert (await printed(server, tmp_path, "rollout", "s"))[1][0] == "n/s: old → new: not begun"


@pytest.mark.parametrize(("phase", "code"), [("Promoted", 0), ("RolledBack", 1)])
@pytest.mark.parametrize("live", [True, False])
async def test_rollout_watches_until_the_end(
    server: TinyApiserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, code: int, live: bool
) -> None:
    """On a terminal in place, elsewhere by a line for each change; a refused look in between ends nothing."""
    monkeypatch.setattr(rollout, "EVERY", 0.01)
    watching = asyncio.create_task(printed(server, tmp_path, "rollout", "s", "--watch", live=live))

    async def looked_again() -> None:
        seen = len(server.requests)
        await until(lambda: len(server.requests) >= seen + 8)

    await looked_again()
    server.fail[("GET", "trafficsplits")] = [503]
    write(server.cluster, step=4, stored={"weight": 50})
    await looked_again()
    assert not watching.done()
    write(server.cluster, step=4, stored={"phase": phase}, observedGeneration=0)  # of a spec before this one
    await looked_again()
    assert not watching.done()
    write(server.cluster, step=4, stored={"phase": phase})
    exit_code, lines = await watching
    assert exit_code == code
    begins = [number for number, line in enumerate(lines) if "n/s: old → new:" in line]
    if live:
        assert len(begins) > 2
        assert all(lines[number].startswith("\x1b[H\x1b[2J") for number in begins)
    else:
        assert len(begins) == 1
        assert [line[10:].split(", ")[1] for line in lines[: begins[0]]][:2] == ["step 4 of 6", "step 5 of 6"]


async def test_messages_go_on_in_the_next_line_of_a_narrow_terminal(
    server: TinyApiserver, tmp_path: Path
) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    write(server.cluster, stored={"message": words}, verdicts=[
        {"metric": "errorRatio", "verdict": "Pass", "message": words}
    ])  # fmt: skip
    _, lines = await printed(server, tmp_path, "rollout", "s", width=60)
    assert max(map(len, lines)) <= 60
    text = " ".join(" ".join(lines).split())
    assert text.count(words) == 2


async def test_rollout_tells_a_cause_once(server: TinyApiserver, tmp_path: Path) -> None:
    """What a metric says stands with its verdict; an Event that says what the release says refers to that."""
    message = "step 4 of 6 (pause 5m): latency p99: 120 of 400 requests"
    write(server.cluster, stored={"reason": "InsufficientEvidence", "message": message})
    event = {
        "metadata": {"namespace": "n", "name": "last"},
        "regarding": {"kind": "TrafficSplit", "name": "s"},
        "eventTime": ago(seconds=5),
        "reason": "InsufficientEvidence",
        "note": message,
        "type": "Normal",
    }
    await server.cluster.create(EVENT, event)
    _, lines = await printed(server, tmp_path, "rollout", "s", width=80)
    assert lines[1] == "  InsufficientEvidence: step 4 of 6 (pause 5m): latency p99 (below)"
    assert "\n".join(lines).count("120 of 400 requests") == 1
    assert any(re.search(r"ago +InsufficientEvidence +as above$", line) for line in lines)


async def test_rollout_says_what_becomes_of_copies(server: TinyApiserver, tmp_path: Path) -> None:
    mirrors = [{"name": "new", "sent": 0, "dropped": 3, "summary": "0 sent; 3 not copied: 3 no_pod (why)"}]
    write(server.cluster, step=0, stored={"weight": 0, "mirror": 10}, mirrors=mirrors)
    _, lines = await printed(server, tmp_path, "rollout", "s", width=80)
    assert "and copies of 10 % of the requests: 0 sent; 3 not copied: 3 no_pod (why)" in lines


@pytest.mark.parametrize("width", [80, 200])
async def test_what_a_verb_says_is_not_cut_off(server: TinyApiserver, tmp_path: Path, width: int) -> None:
    """It goes on in the next line."""
    write(server.cluster, stored={"phase": "Paused", "reason": "AnalysisFailed", "target": 10})
    _, lines = await printed(server, tmp_path, "promote", "s", width=width)
    assert max(map(len, lines)) <= width
    assert " ".join(lines) == f"n/s: leaves step 4 of 6, pause 5m, then weight 50 %; {ANEW}"


async def test_a_release_that_ended_without_a_verdict_waits_for_none(
    server: TinyApiserver, tmp_path: Path
) -> None:
    write(server.cluster, step=6, stored={"phase": "Promoted"}, verdicts=[])
    assert "Nothing was judged." in (await printed(server, tmp_path, "rollout", "s"))[1]


async def test_watching_ends_where_the_split_does(server: TinyApiserver, tmp_path: Path) -> None:
    server.cluster.remove(SPLIT, "n", "s")
    assert (await printed(server, tmp_path, "rollout", "s", "--watch"))[0] == 1


@pytest.mark.parametrize(
    ("arguments", "step", "stored", "verb", "says"),
    [
        (["promote"], 3, {}, "promote", "leaves step 4 of 6, pause 5m, then weight 50 %"),
        (["promote"], 5, {"phase": "Paused"}, "promote",
         "leaves step 6 of 6, pause until it is promoted, then weight 100 %"),
        (["promote"], 3, {"phase": "Paused", "reason": "AnalysisFailed", "target": 10}, "promote",
         f"leaves step 4 of 6, pause 5m, then weight 50 %; {ANEW}"),
        (["promote"], 4, {"phase": "Paused", "reason": "AnalysisFailed", "target": 10}, "promote",
         f"goes on with step 5 of 6, weight 50 %; {ANEW}"),
        (["promote"], 6, {"phase": "Paused", "reason": "AnalysisFailed"}, "promote", "new gets all requests"),
        (["promote"], 4, {"phase": "Paused"}, "promote", "goes on with step 5 of 6, weight 50 %"),
        (["promote"], 6, {"phase": "Paused"}, "promote", "new gets all requests"),
        (["promote"], 4, {"phase": "RolledBack"}, "promote", "begins again with step 1 of 6, mirror 10 %"),
        (["promote", "--full"], 3, {}, "promote-full",
         "new gets all requests, once its ready pods can take them"),
        (["pause"], 3, {}, "pause", "new stays at 10 % until it is promoted or aborted"),
        (["abort"], 3, {}, "abort", "old gets all requests, new none (it had 10 %)"),
        (["abort"], 5, {"phase": "Paused"}, "abort", "old gets all requests, new none (it had 10 %)"),
        (["promote"], 2, {"reason": "CapacityShort", "target": 10, "weight": 5}, "promote",
         "leaves step 3 of 6, weight 10 %, then pause 5m"),
        (["promote"], 4, {"phase": "RolledBack", "reason": "StableNotReady"}, "promote",
         "begins again with step 1 of 6, mirror 10 %, once old has a ready pod"),
        (["abort"], 3, {"reason": "StableMissing"}, "abort",
         "old gets all requests, new none (it had 10 %), once there is a ModelBackend old again"),
        (["promote", "--full"], 3, {"reason": "StableMissing"}, "promote-full",
         "new gets all requests, once its ready pods can take them"),
        (["pause"], 3, {"reason": "InvalidStrategy"}, "pause",
         "new stays at 10 % until it is promoted or aborted, once the strategy can be followed"),
        (["abort"], 3, {"reason": "InvalidStrategy"}, "abort",
         "old gets all requests, new none (it had 10 %)"),
    ],
)  # fmt: skip
async def test_a_verb_says_what_it_will_do_and_writes_one_annotation(
    server: TinyApiserver, tmp_path: Path, arguments: list[str], step: int, stored: Obj, verb: str, says: str
) -> None:
    write(server.cluster, step=step, stored=stored)
    before = server.cluster.find(SPLIT, "n", "s")
    assert await printed(server, tmp_path, arguments[0], "s", *arguments[1:]) == (0, [f"n/s: {says}"])
    after = server.cluster.find(SPLIT, "n", "s")
    asked = after["metadata"]["annotations"].pop(ANNOTATION)
    assert re.fullmatch(rf"{verb}@\d{{4}}-\d\d-\d\dT[\d:.]+Z", asked)
    assert (after["spec"], after["status"]) == (before["spec"], before["status"])
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert {(method, kind) for method, _, _, kind in server.requests if method != "GET"} == {
        ("PATCH", "application/merge-patch+json")
    }


@pytest.mark.parametrize(
    ("arguments", "says", "came"),
    [
        (["abort"], "old gets all requests, new none (it had 10 %)", "RolledBack, weight 0 %"),
        (["pause"], "new stays at 10 % until it is promoted or aborted", "Paused, step 2 of 3, weight 10 %"),
        (["promote"], "leaves step 2 of 3, pause 1h, then weight 50 %",
         "Progressing, step 3 of 3, weight 50 %"),
        (["promote", "--full"], "new gets all requests, once its ready pods can take them",
         "Progressing, weight 100 %"),
    ],
)  # fmt: skip
async def test_an_operator_does_what_a_verb_has_said(
    tmp_path: Path, arguments: list[str], says: str, came: str
) -> None:
    """With --wait it is printed; asked again, what can be done once alone is an error."""
    steps = [{"setWeight": 10}, {"pause": "1h"}, {"setWeight": 50}]
    world = await World.of(releasing(steps=steps, analysis={"interval": "10s"}))
    await world.until(lambda world: world.split["status"]["step"] == 1)
    verb = [arguments[0], "s", *arguments[1:], "--wait"]
    async with TinyApiserver(world.harness.cluster) as server:
        asking = asyncio.create_task(printed(server, tmp_path, *verb))
        await until(lambda: ANNOTATION in world.split["metadata"].get("annotations", {}))
        await world.second()
        code, lines = await asking
        assert (code, lines[:2]) == (0, [f"n/s: {says}", f"old → new: {came}"])
        assert lines[2].startswith(f"  {world.release['reason']}: ")
        shown = (await printed(server, tmp_path, "rollout", "s"))[1]
        assert shown[0] == f"n/s: old → new: {came}"
        events = shown[[line.split("  ")[0] for line in shown].index("EVENT") + 1 :]
        assert len(events) > 2
    world.harness.stop()


async def test_wait_does_not_wait_for_ever(
    server: TinyApiserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock_cli.asking.SECONDS", 0.0)
    assert (await printed(server, tmp_path, "pause", "s", "--wait"))[0] == 1
    assert re.search(
        r"expected pause@\S+ in status.release.handled, found none; is it running\?", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "stored", "error"),
    [
        ("promote nobody", {}, "cannot read TrafficSplit n/nobody: trafficsplits 'nobody' not found"),
        ("rollout nobody", {}, "cannot read TrafficSplit n/nobody: trafficsplits 'nobody' not found"),
        ("promote fixed", {},
         "TrafficSplit n/fixed has fixed weights, and no release: expected spec.strategy, found none"),
        ("promote s", {"phase": "Promoted"}, "nothing to promote: new has all requests already"),
        ("promote s --full", {"phase": "Promoted"}, "nothing to promote: new has all requests already"),
        ("abort s", {"phase": "RolledBack"}, "nothing to abort: old has all requests already"),
        ("abort s", {"phase": "Promoted"},
         "nothing to abort: new is promoted; to go back, exchange stable and candidate in the strategy"),
        ("promote s", {"phase": "RolledBack", "reason": "CandidateMissing"},
         "nothing to promote: there is no ModelBackend new"),
        ("promote s --full", {"phase": "RolledBack", "reason": "CandidateMissing"},
         "nothing to promote: there is no ModelBackend new"),
        ("promote s", {"reason": "CapacityShort", "target": 0, "message": "few pods"},
         "nothing to promote: new gets the weight once it has pods for it (CapacityShort: few pods)"),
        ("abort s", {"phase": "RolledBack", "reason": "StableNotReady", "message": "no pods"},
         "nothing to abort: it goes back already (StableNotReady: no pods)"),
        ("rollout trafficsplit/s", {},
         "expected the name of a TrafficSplit alone, such as digits, found 'trafficsplit/s'"),
        ("pause s", {"phase": "Paused"}, "nothing to pause: the release of new is paused"),
        ("pause s", {"phase": "RolledBack"}, "nothing to pause: the release of new is rolled back"),
        ("pause s", {"candidate": "other"}, "nothing to pause: the release of new has not begun (Analyzing)"),
    ],
)  # fmt: skip
async def test_an_error_says_what_is_not_there(
    server: TinyApiserver, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, stored: Obj,
    error: str,
) -> None:  # fmt: skip
    server.cluster.user_applies(split("fixed", old=1))
    write(server.cluster, stored=stored)
    assert await printed(server, tmp_path, *arguments.split()) == (1, [])
    assert capsys.readouterr().err.splitlines() == [f"kubectl-penstock: {error}"]
    assert {method for method, *_ in server.requests} <= {"GET"}


async def test_a_split_that_is_not_accepted_says_why_nothing_begins(
    server: TinyApiserver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two splits the younger: its strategy does nothing, and has no condition of its own."""
    conditions = [
        {"type": kind, "status": "False", "reason": "Conflict", "message": "e has the older split a",
         "lastTransitionTime": ago(seconds=60)}
        for kind in ("Ready", "Accepted")
    ]  # fmt: skip
    server.cluster.edit(SPLIT, "n", "s", lambda obj: obj.update(status={"conditions": conditions}))
    lines = (await printed(server, tmp_path, "rollout", "s"))[1]
    assert lines[:2] == ["n/s: old → new: not begun", "  Conflict: e has the older split a"]
    assert (await printed(server, tmp_path, "promote", "s"))[0] == 1
    assert capsys.readouterr().err.endswith("has not begun (Conflict: e has the older split a)\n")
    write(server.cluster, conditions=conditions)
    code, lines = await printed(server, tmp_path, "abort", "s")
    assert code == 0
    assert lines[0].endswith(", once the split is accepted (Conflict: e has the older split a)")


@pytest.mark.parametrize("full", [[], ["--full"]])
@pytest.mark.parametrize("promotion", ["Auto", "Manual"])
async def test_a_promotion_under_way_is_not_asked_for_again(
    server: TinyApiserver, tmp_path: Path, capsys: pytest.CaptureFixture[str], full: list[str], promotion: str
) -> None:
    """The operator would refuse it. Its candidate needs the pods for all requests, whoever promoted it."""
    server.cluster.user_applies(released(promotion=promotion))
    write(server.cluster, step=6, observedGeneration=2, stored={"weight": 90, "reason": "CapacityShort"})
    assert (await printed(server, tmp_path, "promote", "s", *full))[0] == 1
    assert "nothing to promote: promotion is under way (CapacityShort: " in capsys.readouterr().err
    assert {method for method, *_ in server.requests} == {"GET"}
    lines = (await printed(server, tmp_path, "rollout", "s"))[1]
    assert any(re.search(r"^new +candidate .* 14 for 100 %$", line) for line in lines)


async def test_an_abort_says_what_it_waits_for(
    server: TinyApiserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stable without a ready pod; with --wait an action that is pending is no operator that is away."""
    server.cluster.edit(BACKEND, "n", "old", lambda obj: obj.update(status={"readyReplicas": 0}))
    said = (await printed(server, tmp_path, "abort", "s"))[1]
    assert said == ["n/s: old gets all requests, new none (it had 10 %), once old has a ready pod"]
    server.cluster.remove(BACKEND, "n", "old")
    write(server.cluster, stored={"reason": "StableMissing", "message": "no such ModelBackend: old"})
    clock = Clock()
    monkeypatch.setattr("penstock_cli.asking.time", clock)
    before = server.cluster.find(SPLIT, "n", "s")["metadata"]["annotations"][ANNOTATION]
    asking = asyncio.create_task(printed(server, tmp_path, "abort", "s", "--wait"))

    def asked() -> str:
        return str(server.cluster.find(SPLIT, "n", "s")["metadata"]["annotations"][ANNOTATION])

    await until(lambda: asked() != before)
    server.cluster.edit(SPLIT, "n", "s", lambda obj: obj["status"]["release"].update(pending=asked()))
    clock.sleeps = 100.0
    assert (await asking)[0] == 1
    error = capsys.readouterr().err
    assert "and will do so later (StableMissing: no such ModelBackend: old)" in error


async def test_a_refused_patch_is_one_line(
    server: TinyApiserver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail[("PATCH", "trafficsplits")] = [403]
    assert (await printed(server, tmp_path, "promote", "s"))[0] == 1
    assert capsys.readouterr().err == "kubectl-penstock: cannot annotate TrafficSplit n/s: induced\n"


async def test_status_shows_the_releases_weights(server: TinyApiserver, tmp_path: Path) -> None:
    _, lines = await printed(server, tmp_path, "status")
    (line,) = (line for line in lines if line.startswith("TrafficSplit/s"))
    assert "e to old:90 new:10, release old → new: Progressing, step 4 of 6, weight 10 %" in line


def test_without_a_promotion_of_its_own_the_last_step_keeps_its_weight() -> None:
    made = released(promotion="Manual")
    made["status"] = {"step": 6, "release": {"stable": "old", "candidate": "new", "phase": "Paused"}}
    assert Release.of(made).target == 50


PAUSED = "nothing to pause: the release of new is paused"


@pytest.mark.parametrize(
    ("step", "stored", "pill", "buttons"),
    [
        (2, {}, None, {"Next: pause 5m": "", "Promote to 100 %": "", "Pause": "", "Abort: back to old": ""}),
        (3, {}, None, {"Promote to 50 %": "", "Promote to 100 %": "", "Pause": "", "Abort: back to old": ""}),
        (3, {"phase": "Paused"}, ("wait", "Waits for a user"),
         {"Resume": "", "Promote to 100 %": "", "Pause": PAUSED, "Abort: back to old": ""}),
        (5, {"phase": "Paused"}, ("wait", "Waits for a user"),
         {"Promote to 100 %": "", "Pause": PAUSED, "Abort: back to old": ""}),
        (6, {"phase": "Promoted"}, None,
         {"Promote to 100 %": "nothing to promote: new has all requests already",
          "Pause": "nothing to pause: the release of new is promoted",
          "Abort: back to old": "nothing to abort: new is promoted; to go back, exchange stable and "
          "candidate in the strategy"}),
        (4, {"phase": "RolledBack"}, ("bad", "Rolled back"),
         {"Begin again": "", "Promote to 100 %": "",
          "Pause": "nothing to pause: the release of new is rolled back",
          "Abort: back to old": "nothing to abort: old has all requests already"}),
    ],
)  # fmt: skip
async def test_the_pages_buttons_say_what_they_do_or_why_they_do_nothing(
    server: TinyApiserver, step: int, stored: Obj, pill: Any, buttons: dict[str, str]
) -> None:
    write(server.cluster, step=step, stored={"reason": "Analyzing", **stored})
    store = Store()
    for kind in (SPLIT, BACKEND):
        store.replace(
            kind.kind, [each for each in server.cluster.objects.values() if each["kind"] == kind.kind]
        )
    view = views.split(store, ("TrafficSplit", "n", "s"), [], "", datetime.now(UTC))
    release = view["release"]
    assert view["pill"] == pill
    assert {name: problem for _, name, will, problem in release["buttons"] if will or problem} == buttons
    assert view["notes"] == view["details"] == view["weights"] == [], "the release says it, once"
    assert [(each["name"], each["ready"], each["observed"]) for each in release["backends"]] == [
        ("old", 14, "90.4%"),
        ("new", 1, "9.6%"),
    ]


async def test_the_page_says_why_a_release_keeps_pods(server: TinyApiserver) -> None:
    store = Store()
    store.replace("TrafficSplit", [server.cluster.find(SPLIT, "n", "s")])
    for name, reason in (
        ("old", "all requests take 14, and can come back to it at any time"),
        ("new", "all requests take 14, and it is to have a part of them"),
    ):
        backend = server.cluster.find(BACKEND, "n", name)
        backend["spec"]["autoscaling"] = {"minReplicas": 2, "maxReplicas": 20}
        recommended = {"verdict": "Release", "message": "load 2 / targetLoad 2 = 1", "inputs": {"wanted": 1}}
        backend["status"] |= {"desiredReplicas": 14, "recommendation": recommended}
        store.replace("ModelBackend", [backend])
        view = views.backend(store, ("ModelBackend", "n", name), lambda _: {}, datetime.now(UTC))
        assert view["meaning"] == (
            f"kept at 14 by the release of TrafficSplit s: {reason}; the load alone asks for 2"
        )
        assert view["remedy"] == "do nothing: it ends with the release"
