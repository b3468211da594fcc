"""`kubectl penstock status` prints a cause once: where it arises, on terminals of 80 and 200 columns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock_cli import causes
from penstock_cli.commands.status import overview
from penstock_cli.text import fitted
from penstock_operator.kinds import DEPLOYMENT, POD
from tests.support.processes.terminal import printed
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import Harness, backend, endpoint, split

CAUSE = "failed to resolve reference: manifest not found"

NARROW = """\
RESOURCE          READY   REASON              AGE
ModelBackend/m    False   ImagePullFailed     -
    0 of 1 ready, 0 queued, 0 ongoing
    ImagePullFailed (Ready=False, ModelLoaded=False, Stalled=True): pod
    m-backend-0: container model: image registry.example/digits:9: failed to
    resolve reference: manifest not found
ModelBackend/n2   True    Serving             -
    1 of 1 ready, 0 queued, 0 ongoing
    NoReports (SettingsApplied=Unknown): 0 of 1 ready pods have settings version
    1; silent: n2-backend-0
ModelEndpoint/e   False   BackendNotReady     -
    to n2
    BackendNotReady (Ready=False, BackendsReady=False, Reconciling=True): the
    others have its part until a pod is ready of: m; see ModelBackend/m
    (ImagePullFailed)
    NoReports (RouterReady=Unknown): 0 of 1 ready routers have settings version
    2; silent: penstock-router-0
TrafficSplit/s    False   WaitingForBackend   -
    e to m:90 n2:10
    WaitingForBackend (Ready=False, Reconciling=True): no pod was ready yet of:
    m; until then the others have its part; see ModelBackend/m (ImagePullFailed)
"""

WIDE = """\
RESOURCE          READY   REASON                                                  AGE
ModelBackend/m    False   ImagePullFailed     0 of 1 ready, 0 queued, 0 ongoing   -
    ImagePullFailed (Ready=False, ModelLoaded=False, Stalled=True): pod m-backend-0: container model: \
image registry.example/digits:9: failed to resolve reference: manifest not found
ModelBackend/n2   True    Serving             1 of 1 ready, 0 queued, 0 ongoing   -
    NoReports (SettingsApplied=Unknown): 0 of 1 ready pods have settings version 1; silent: n2-backend-0
ModelEndpoint/e   False   BackendNotReady     to n2                               -
    BackendNotReady (Ready=False, BackendsReady=False, Reconciling=True): the others have its part \
until a pod is ready of: m; see ModelBackend/m (ImagePullFailed)
    NoReports (RouterReady=Unknown): 0 of 1 ready routers have settings version 2; silent: penstock-router-0
TrafficSplit/s    False   WaitingForBackend   e to m:90 n2:10                     -
    WaitingForBackend (Ready=False, Reconciling=True): no pod was ready yet of: m; until then the \
others have its part; see ModelBackend/m (ImagePullFailed)
"""


@pytest.fixture
async def server() -> AsyncIterator[TinyApiserver]:
    """An endpoint shared by a backend that is ready and one whose image is not there."""
    harness = Harness()
    for obj in (backend("m"), backend("n2"), endpoint(), split(m=90, n2=10)):
        harness.apply(obj)
    await harness.run()
    harness.pods_ready("n2-backend", 1)
    harness.pods_ready("penstock-router", 1)
    (name,) = harness.pods_ready("m-backend", 1)
    waiting = {"reason": "ErrImagePull", "message": CAUSE}
    model = {"name": "model", "image": "registry.example/digits:9", "state": {"waiting": waiting}}
    status: dict[str, Any] = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}
    status |= {"containerStatuses": [model]}
    harness.cluster.edit(POD, "n", name, lambda pod: pod.update(status=status))
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(readyReplicas=0))
    await harness.run()
    for live in harness.cluster.objects.values():
        live["metadata"].pop("creationTimestamp", None)  # an age is another one in each run
    async with TinyApiserver(harness.cluster) as server:
        yield server
    harness.stop()


@pytest.mark.parametrize(("width", "wanted"), [(80, NARROW), (200, WIDE)])
async def test_a_cause_stands_where_it_arises_and_whole(
    server: TinyApiserver, tmp_path: Path, width: int, wanted: str
) -> None:
    """A missing image is told once, and nothing of it is cut off; what comes of it refers to it."""
    code, lines = await printed(server, tmp_path, "status", width=width)
    assert (code, "\n".join(lines) + "\n") == (0, wanted)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()).count(CAUSE) == 1


async def test_with_all_conditions_each_is_there(server: TinyApiserver, tmp_path: Path) -> None:
    """Also those that are well, and what follows from pods that are not ready."""
    text = " ".join((await printed(server, tmp_path, "status", "-c"))[1])
    for kind in ("Available=False", "Available=True", "SettingsApplied=Unknown", "Accepted=True"):
        assert kind in text


def resource(kind: str, name: str, *conditions: tuple[str, str, str, str], namespace: str = "n") -> Any:
    made = [dict(zip(("type", "status", "reason", "message"), each, strict=True)) for each in conditions]
    return {
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "status": {"conditions": made},
    }


def test_one_cause_of_several_resources_is_told_by_the_first() -> None:
    """A router that does not start keeps two endpoints; that of another namespace is another one."""
    image = ("RouterReady", "False", "ImagePullFailed", "no such image")
    shown = causes.Shown()

    def lines(name: str, namespace: str) -> list[str]:
        made = resource("ModelEndpoint", name, image, namespace=namespace)
        return causes.lines(made, f"ModelEndpoint/{name}", shown, everything=False)

    assert lines("a", "n") == ["ImagePullFailed (RouterReady=False): no such image"]
    assert lines("b", "n") == ["ImagePullFailed (RouterReady=False): see ModelEndpoint/a"]
    assert lines("b", "other") == ["ImagePullFailed (RouterReady=False): no such image"]


def test_backends_that_say_the_same_do_not_refer_to_each_other() -> None:
    """Each is at 0, or crashes, for itself."""
    shown, zero = causes.Shown(), ("Ready", "True", "ScaledToZero", "spec.replicas is 0: nothing serves")
    for name in ("a", "b"):
        made = causes.lines(
            resource("ModelBackend", name, zero), f"ModelBackend/{name}", shown, everything=False
        )
        assert made == ["ScaledToZero (Ready=True): spec.replicas is 0: nothing serves"]


def test_a_narrow_terminal_has_no_empty_lines() -> None:
    """Of a BatchPolicy that no backend names there are no details, which stand below a resource there."""
    unused = resource("BatchPolicy", "p", ("Ready", "True", "Unused", "no ModelBackend and no pod names it"))
    lines = overview(
        {"BatchPolicy": [unused]}, now=datetime.now(UTC), everywhere=False, all_conditions=False, width=20
    )
    assert lines[0].split() == ["RESOURCE", "READY", "REASON", "AGE"]
    assert all(line.strip() for line in lines)


def test_a_load_that_pods_cannot_report_is_no_cause_of_its_own() -> None:
    """Of a backend whose pods do not start; one whose pods are ready and silent says so."""
    silent = ("MetricsAvailable", "False", "NoReports", "kept at 1: it has no ready pod")
    ready = ("Ready", "True", "Serving", "")
    crashed = ("Ready", "False", "ContainerCrashed", "exit code 1")
    for first, shown in ((crashed, ["ContainerCrashed"]), (ready, ["NoReports"])):
        made = resource("ModelBackend", "m", first, silent)
        lines = causes.lines(made, "ModelBackend/m", causes.Shown(), everything=False)
        assert [line.split()[0] for line in lines] == shown


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        (("Ready", "True", "Serving", ""), False),
        (("SettingsApplied", "True", "Applied", "1 of 1 ready pods have settings version 1"), False),
        (("Progressing", "True", "Promoted", "new has all requests"), False),
        (("ScalingActive", "True", "Limited", "the load asks for more"), True),
        (("Stalled", "False", "Serving", ""), False),
        (("Reconciling", "True", "RollingOut", ""), True),
        (("SettingsApplied", "Unknown", "NoReadyPod", "version 1: no pod is ready"), True),
    ],
)
def test_what_is_well_is_not_shown(condition: tuple[str, str, str, str], shown: bool) -> None:
    """A condition that is True is shown where it says something that is not seen elsewhere."""
    made = resource("ModelBackend", "m", condition)
    assert bool(causes.lines(made, "ModelBackend/m", causes.Shown(), everything=False)) == shown
    assert causes.lines(made, "ModelBackend/m", causes.Shown(), everything=True)


def test_an_endpoint_refers_to_its_backend_that_somebody_scaled_to_zero() -> None:
    """That backend is Ready: all is as it was asked for."""
    shown, zero = causes.Shown(), ("Ready", "True", "ScaledToZero", "spec.replicas is 0: nothing serves")
    causes.lines(resource("ModelBackend", "m", zero), "ModelBackend/m", shown, everything=False)
    waits = ("Ready", "False", "BackendNotReady", "no pod is ready of: m")
    (line,) = causes.lines(resource("ModelEndpoint", "e", waits), "ModelEndpoint/e", shown, everything=False)
    assert line.endswith("no pod is ready of: m; see ModelBackend/m (ScaledToZero)")


def test_a_release_refers_to_the_backend_whose_pods_it_waits_for() -> None:
    shown = causes.Shown()
    crashed = ("Ready", "False", "ContainerCrashed", "exit code 1")
    causes.lines(
        resource("ModelBackend", "new-1.2", crashed), "ModelBackend/new-1.2", shown, everything=False
    )
    short = ("Progressing", "True", "CapacityShort", "expected 2 ready pods of new-1.2 for 50%, found 0.")
    (line,) = causes.lines(resource("TrafficSplit", "s", short), "TrafficSplit/s", shown, everything=False)
    assert line.endswith("found 0.; see ModelBackend/new-1.2 (ContainerCrashed)")


def test_a_traceback_keeps_its_lines() -> None:
    """Each is folded by itself, below its cause."""
    message = "its last words: ValueError: no\nTraceback (most recent call last):\n    raise ValueError(1)"
    assert fitted([f"    ContainerCrashed: {message}"], 48) == [
        "    ContainerCrashed: its last words:",
        "    ValueError: no",
        "      Traceback (most recent call last):",
        "          raise ValueError(1)",
    ]
