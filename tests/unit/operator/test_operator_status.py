"""What is observed becomes conditions: a table a kind, and that nothing changes where nothing happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock_operator import status
from penstock_operator.api import ModelBackend
from penstock_operator.api.backendstatus import LoadStatus
from penstock_operator.status import BackendObserved, refusal
from tests.support.worlds.observed import (
    BETWEEN,
    CONFIG,
    CRASH,
    ENDED,
    HOMELESS,
    LATER,
    NOW,
    PULL,
    WELL,
    backend,
    by_type,
    container,
    deployment,
    message,
    pod,
    report,
)

MISSING_POLICY = (
    "BatchPolicy p does not exist in namespace n; the last settings stay in force, "
    "or the defaults if there were none"
)


REFUSED = "cannot connect to 127.0.0.1:8080: [Errno 111] Connection refused"
SET_PATH = "set model.readyPath to a path that answers GET so once the model is loaded"
NONE = "0 of 1 pods are ready"
NOT_FOUND = "GET /: expected status 200 to 399, found 404"


def test_what_does_not_parse_says_so() -> None:
    """Unreadable, for people and for kstatus, with the time of the first such look."""
    stored: dict[str, Any] = {"metadata": {"generation": 7}, "spec": {}}
    result = status.parse_failed(stored, "spec.model: Field required, found nothing", now=NOW)
    assert by_type(result) == {"Ready": ("False", "Unreadable"), "Stalled": ("True", "Unreadable")}
    assert message(result, "Ready") == "spec.model: Field required, found nothing"
    assert result["observedGeneration"] == 7
    assert status.parse_failed(stored | {"status": result}, message(result, "Ready"), now=LATER) == result
    extended = result | {"address": "http://e", "load": {"queued": 3}}
    assert status.parse_failed(stored | {"status": extended}, message(result, "Ready"), now=LATER) == (
        result | {"address": "http://e"}
    )


def with_sidecar(image: str) -> dict[str, Any]:
    """A Deployment whose pods have a sidecar."""
    containers = [{"name": "mine", "image": "x"}, {"name": "penstock-sidecar", "image": image}]
    return deployment() | {"spec": {"template": {"spec": {"initContainers": containers}}}}


@pytest.mark.parametrize(("waits", "more"), [(True, {"upgradePending": True}), (False, {})])
def test_the_sidecar_is_told_and_what_waits(waits: bool, more: dict[str, Any]) -> None:
    """Which one runs, and only where there is one: that another is to come."""
    seen = replace(WELL, deployment=with_sidecar("s:1"), upgrade_pending=waits)
    assert status.backend_status(backend(), seen, now=NOW)["sidecar"] == {"image": "s:1"} | more
    assert "sidecar" not in status.backend_status(backend(), WELL, now=NOW)


def test_a_backend_that_is_well() -> None:
    """Everything that a user wants to see, and no flag of trouble."""
    result = status.backend_status(backend(), WELL, now=NOW)
    assert by_type(result) == {
        "Ready": ("True", "Serving"),
        "Available": ("True", "PodsReady"),
        "ModelLoaded": ("True", "Loaded"),
        "SettingsApplied": ("True", "Applied"),
    }
    assert message(result, "SettingsApplied") == "1 of 1 ready pods have settings version 3"
    del result["conditions"]
    assert result == {
        "observedGeneration": 4,
        "replicas": 1,
        "readyReplicas": 1,
        "updatedReplicas": 1,
        "firstReadyTime": NOW,
        "selector": "app.kubernetes.io/name=penstock-backend,penstock.dev/backend=b",
        "desiredReplicas": 1,
        "model": {"state": "Loaded"},
        "scaling": [],
        "usedBy": ["ModelEndpoint/e"],
        "settingsVersion": 3,
    }


def test_an_object_that_became_empty_is_left_out() -> None:
    """The API server would make null of it, and refuse that."""
    result = status.backend_status(backend(), replace(WELL, load=LoadStatus(errors={})), now=NOW)
    assert "errors" not in result["load"]
    assert result["load"]["failedPerMinute"] == 0


def test_a_second_look_writes_nothing() -> None:
    """The status of an unchanged backend is the same an hour later."""
    first = status.backend_status(backend(), WELL, now=NOW)
    again = backend().model_copy(update={"status": type(backend().status).model_validate(first)})
    assert status.backend_status(again, WELL, now=LATER) == first


@pytest.mark.parametrize(
    ("seen", "ready", "flag", "text"),
    [
        (BackendObserved(), "RollingOut", "Reconciling", "its Deployment is not there yet"),
        (
            replace(WELL, deployment=deployment(seen=0)),
            "RollingOut",
            "Reconciling",
            "its Deployment has a change that is not taken up yet",
        ),
        (
            replace(WELL, deployment=deployment(replicas=3, updated=1, ready=3)),
            "RollingOut",
            "Reconciling",
            "2 of 3 pods are of an old template",
        ),
        (
            replace(WELL, deployment=deployment(ready=0), pods=[pod(ready=False)]),
            "RollingOut",
            "Reconciling",
            "0 of 1 pods are ready",
        ),
        (
            replace(WELL, deployment=deployment(ready=0), pods=[pod(ready=False, containerStatuses=[PULL])]),
            "ImagePullFailed",
            "Stalled",
            "pod p1: container model: image example/model:1: Back-off pulling image",
        ),
        (
            replace(WELL, deployment=deployment(ready=0), pods=[pod(ready=False, containerStatuses=[CRASH])]),
            "ContainerCrashed",
            "Stalled",
            "pod p1: container model exited with code 1 (Error), restarts: 3; its last words: no such file",
        ),
        (
            replace(
                WELL, deployment=deployment(ready=0), pods=[pod(ready=False, containerStatuses=[BETWEEN])]
            ),
            "ContainerCrashed",
            "Stalled",
            "pod p1: container model exited with code 137 (OOMKilled), restarts: 1",
        ),
        (
            replace(WELL, deployment=deployment(ready=0), pods=[pod(ready=False, containerStatuses=[ENDED])]),
            "ContainerCrashed",
            "Stalled",
            "pod p1: container model exited with code 0 (Completed), restarts: 0",
        ),
        (
            replace(
                WELL, deployment=deployment(ready=0), pods=[pod(ready=False, initContainerStatuses=[CONFIG])]
            ),
            "ContainerNotCreated",
            "Stalled",
            "pod p1: container penstock-sidecar: CreateContainerConfigError: no secret",
        ),
        (
            replace(
                WELL,
                deployment=deployment(ready=0),
                pods=[pod(ready=False, phase="Pending", conditions=HOMELESS)],
            ),
            "Unschedulable",
            "Reconciling",
            "pod p1: 0/1 nodes are available",
        ),
        (
            replace(
                WELL,
                deployment=deployment(
                    replicas=0,
                    ready=0,
                    conditions=[{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}],
                ),
                pods=[],
            ),
            "PodsRefused",
            "Stalled",
            "exceeded quota",
        ),
        (
            replace(
                WELL,
                deployment=deployment(
                    ready=0,
                    conditions=[
                        {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
                    ],
                ),
                pods=[pod(ready=False)],
            ),
            "ProgressDeadlineExceeded",
            "Stalled",
            "timed out",
        ),
        (
            replace(
                WELL,
                deployment=deployment(
                    ready=0, conditions=[{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]
                ),
                pods=[pod(ready=False, containerStatuses=[container(running={})])],
                reports={"p1": report(state="loading", message=REFUSED)},
            ),
            "ModelNotAnswering",
            "Stalled",
            f"{NONE}; {REFUSED}: it has not started yet, or listens on another port than model.port 8080",
        ),
        (
            replace(
                WELL,
                deployment=deployment(ready=0),
                pods=[pod(ready=False, containerStatuses=[container(running={})])],
                reports={"p1": report(state="loading", message=NOT_FOUND)},
            ),
            "RollingOut",
            "Reconciling",
            f"{NONE}; {NOT_FOUND}: {SET_PATH} (FastAPI has no / of its own, but /docs)",
        ),
        (
            replace(WELL, taken=["Service/b-backend"]),
            "NameTaken",
            "Stalled",
            "not ours, so not touched: Service/b-backend; choose another name or delete it",
        ),
        (
            replace(WELL, refused=refusal("Deployment b-backend", 422, "image is bad")),
            "WriteRejected",
            "Stalled",
            "Deployment b-backend: image is bad",
        ),
        (
            replace(WELL, refused=refusal("Deployment b-backend", 500, "etcd is full")),
            "WriteFailed",
            "Reconciling",
            "Deployment b-backend: etcd is full",
        ),
        (
            replace(WELL, policy_missing=True),
            "BatchPolicyMissing",
            "Stalled",
            MISSING_POLICY,
        ),
    ],
)
def test_a_backend_that_is_not(seen: BackendObserved, ready: str, flag: str, text: str) -> None:
    """Each cause has its word and its sentence; what goes on by itself is Reconciling, the rest Stalled."""
    result = status.backend_status(backend(batchPolicyRef="p"), seen, now=NOW)
    summary = by_type(result)
    assert summary["Ready"] == ("False", ready)
    assert message(result, "Ready") == text
    assert {kind: summary[kind] for kind in ("Reconciling", "Stalled") if kind in summary} == {
        flag: ("True", ready)
    }


def test_a_broken_update_leaves_the_old_pods_available() -> None:
    """A new image that does not start is reported, while the old pod serves."""
    seen = replace(
        WELL,
        deployment=deployment(replicas=2, ready=1, updated=1),
        pods=[pod("old"), pod("new", ready=False, containerStatuses=[PULL])],
        reports={"old": report("old")},
    )
    conditions = by_type(status.backend_status(backend(), seen, now=NOW))
    assert (conditions["Ready"], conditions["Available"]) == (
        ("False", "ImagePullFailed"),
        ("True", "PodsReady"),
    )


def _of(template: str, created: str, name: str, **more: Any) -> Any:
    made = pod(name, ready=False, **more)
    made["metadata"] |= {"creationTimestamp": created, "labels": {"pod-template-hash": template}}
    return made


OLD = _of("old", NOW, "old", containerStatuses=[CRASH])
OLD_AGAIN = _of("old", LATER, "again", containerStatuses=[CRASH])
MOVED = _of("old", LATER, "moved")
NEW = _of("new", LATER, "new")
NEW_FIRST = _of("new", NOW, "new", containerStatuses=[CRASH])
NAMED = {"conditions": [{"type": "Progressing", "message": 'ReplicaSet "b-backend-new" is progressing.'}]}
LATE = {"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]}
REFUSAL = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}]}


@pytest.mark.parametrize(
    ("seen", "here", "reason"),
    [
        (deployment(ready=0, seen=0, **LATE), [OLD], "RollingOut"),
        (deployment(ready=0, seen=0, **REFUSAL), [OLD], "RollingOut"),
        (deployment(ready=0, updated=0), [OLD], "RollingOut"),
        (deployment(2, ready=0, updated=1), [OLD, OLD_AGAIN, NEW], "RollingOut"),
        (deployment(2, ready=0, updated=1), [OLD, NEW | {"status": OLD["status"]}], "ContainerCrashed"),
        (deployment(2, ready=0, updated=1, **NAMED), [MOVED, NEW_FIRST], "ContainerCrashed"),
        (deployment(2, ready=0, updated=1, **NAMED), [OLD_AGAIN, NEW], "RollingOut"),
        (deployment(ready=0, **NAMED), [OLD], "ContainerCrashed"),
        (deployment(ready=0), [OLD, OLD_AGAIN], "ContainerCrashed"),
    ],
)
def test_the_trouble_of_the_version_before_is_not_of_this_one(
    seen: Any, here: list[Any], reason: str
) -> None:
    """Otherwise a redeploy that mends a crash is stalled by it, and the first thing that a user reads."""
    result = status.backend_status(backend(), replace(WELL, deployment=seen, pods=here, reports={}), now=NOW)
    assert by_type(result)["Ready"] == ("False", reason)
    assert ("Stalled" in by_type(result)) == (reason == "ContainerCrashed")


def test_pods_that_go_away_trouble_nobody() -> None:
    """A crash of a pod that is being deleted, or an eviction, is not reported."""
    gone = [
        pod("a", ready=False, deleting=True, containerStatuses=[CRASH]),
        pod("b", ready=False, phase="Failed", containerStatuses=[CRASH]),
    ]
    assert status.backend_status(backend(), replace(WELL, pods=[pod(), *gone]), now=NOW) == (
        status.backend_status(backend(), WELL, now=NOW)
    )


def test_a_pod_that_takes_the_place_of_an_evicted_one_says_why() -> None:
    """Evictions one after another show as such, not longer: a later pod has another cause."""

    def look(created: str) -> dict[str, Any]:
        words = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
        gone = pod("old", ready=False, phase="Failed", reason="Evicted", message=words)
        gone["status"]["conditions"].append(
            {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}
        )
        new = pod("new", ready=False)
        new["metadata"]["creationTimestamp"] = created
        seen = replace(WELL, deployment=deployment(ready=0, updated=1), pods=[gone, new], reports={})
        return status.backend_status(backend(), seen, now=NOW)

    result = look("2026-01-01T00:00:11Z")
    assert by_type(result)["Ready"] == ("False", "PodEvicted")
    assert message(result, "Ready").startswith(
        "pod old was evicted: Pod ephemeral local storage usage exceeds"
    )
    for another in ("2026-01-01T00:00:09Z", "2026-01-01T09:00:00Z"):
        assert by_type(look(another))["Ready"] == ("False", "RollingOut")


@pytest.mark.parametrize(
    ("seen", "state", "reason", "text"),
    [
        (BackendObserved(), "Pending", "NoPod", "no pod runs"),
        # The last word of a pod that went without another one: it was killed, or its node is gone.
        (BackendObserved(reports={"p1": report()}), "Pending", "NoPod", "no pod runs"),
        (
            BackendObserved(
                pods=[pod("p2", ready=False)],
                reports={"p1": report("p1", state="loading", message="/ready answered 503")},
            ),
            "Loading",
            "Loading",
            "the model does not answer readyPath yet",
        ),
        (
            BackendObserved(pods=[pod(ready=False)]),
            "Loading",
            "Loading",
            "the model does not answer readyPath yet",
        ),
        (
            BackendObserved(
                pods=[pod(ready=False, containerStatuses=[container(running={})])],
                reports={"p1": report(state="loading", message="/ready answered 503")},
            ),
            "Loading",
            "Loading",
            "/ready answered 503",
        ),
        (
            # The sidecar runs first, and finds nobody.
            BackendObserved(
                pods=[pod(ready=False, containerStatuses=[container(waiting={"reason": "PodInitializing"})])],
                reports={"p1": report(state="loading", message=REFUSED)},
            ),
            "Loading",
            "Loading",
            "the model does not answer readyPath yet",
        ),
        (
            BackendObserved(pods=[pod(ready=False, containerStatuses=[PULL])]),
            "FailedToLoad",
            "ImagePullFailed",
            "pod p1: container model: image example/model:1: Back-off pulling image",
        ),
        (
            BackendObserved(pods=[pod(ready=False, phase="Pending", conditions=HOMELESS)]),
            "Pending",
            "Unschedulable",
            "pod p1: 0/1 nodes are available",
        ),
    ],
)
def test_loading(seen: BackendObserved, state: str, reason: str, text: str) -> None:
    """`status.model.state` and ModelLoaded agree."""
    result = status.backend_status(backend(), seen, now=NOW)
    assert result["model"]["state"] == state
    assert by_type(result)["ModelLoaded"] == ("False", reason)
    assert message(result, "ModelLoaded") == text


def test_at_zero_no_model_is_missed() -> None:
    """The reason is that of Available: a backend at rest is no warning."""
    result = status.backend_status(backend(replicas=0), BackendObserved(), now=NOW)
    assert by_type(result)["ModelLoaded"] == by_type(result)["Available"] == ("False", "ScaledToZero")
    assert message(result, "ModelLoaded") == message(result, "Available") == "spec.replicas is 0"


def test_batches_without_a_credential_are_said_beside_a_loaded_model() -> None:
    seen = replace(
        WELL, reports={"p1": msgspec.structs.replace(report(), warning="name it in " + "x" * 5000)}
    )
    result = status.backend_status(backend(), seen, now=NOW)
    assert by_type(result)["ModelLoaded"] == ("True", "RefusesBatches")
    assert by_type(result)["Ready"] == ("True", "Serving")
    assert message(result, "ModelLoaded").startswith("name it in x")
    assert len(message(result, "ModelLoaded")) <= 1024


def test_the_last_failure_stays_until_all_is_well() -> None:
    """Between two crashes the reason is still there; when the backend is Ready it has gone."""
    crashed = [pod(ready=False, containerStatuses=[CRASH])]
    broken = replace(WELL, deployment=deployment(ready=0), pods=crashed, reports={})
    first = status.backend_status(backend(), broken, now=NOW)
    assert "no such file" in first["model"]["lastFailure"]
    then = backend().model_copy(update={"status": type(backend().status).model_validate(first)})
    waiting = replace(broken, pods=[pod(ready=False)])
    assert status.backend_status(then, waiting, now=NOW)["model"] == {
        "state": "Loading",
        "lastFailure": first["model"]["lastFailure"],
    }
    assert status.backend_status(then, WELL, now=NOW)["model"] == {"state": "Loaded"}


def test_the_last_crash_stays_when_all_is_well_again() -> None:
    """How often, when, and with which last words: a model that ends now and then is Ready in between."""
    ended = {"exitCode": 9, "reason": "Error", "finishedAt": NOW, "message": "a line\nIndexError: 7"}
    crashed = container(running={"startedAt": NOW}, last=ended, restarts=3) | {"ready": True}
    again = replace(WELL, pods=[pod(containerStatuses=[crashed, container("other", restarts=5)])])
    first = status.backend_status(backend(), again, now=NOW)
    words = "exited with code 9 (Error); its last words: IndexError: 7\na line"
    crash = {"pod": "p1", "time": NOW, "message": words}
    assert first["model"] == {"state": "Loaded", "restarts": 3, "lastCrash": crash}
    then = backend().model_copy(update={"status": type(backend().status).model_validate(first)})
    assert status.backend_status(then, WELL, now=NOW)["model"] == {"state": "Loaded", "lastCrash": crash}


@pytest.mark.parametrize(
    ("versions", "truth", "reason", "text"),
    [
        ({"a": 3, "b": 3}, "True", "Applied", "2 of 2 ready pods have settings version 3"),
        ({"a": 3, "b": 4}, "True", "Applied", "2 of 2 ready pods have settings version 3"),
        ({"a": 3, "b": 2}, "False", "Waiting", "1 of 2 ready pods have settings version 3; behind: b"),
        ({"a": 3, "b": None}, "Unknown", "NoReports", "1 of 2 ready pods have settings version 3; silent: b"),
        (
            dict.fromkeys("abcde", 1),
            "False",
            "Waiting",
            "0 of 5 ready pods have settings version 3; behind: a, b, c and 2 more",
        ),
        ({}, "Unknown", "NoReadyPod", "version 3: no pod is ready"),
    ],
)
def test_settings_applied(versions: dict[str, int | None], truth: str, reason: str, text: str) -> None:
    """True only when every ready pod reported the version; the message counts and names."""
    seen = replace(
        WELL,
        pods=[*(pod(name) for name in versions), pod("starting", ready=False)],
        reports={name: report(name, version) for name, version in versions.items() if version is not None},
    )
    result = status.backend_status(backend(), seen, now=NOW)
    assert by_type(result)["SettingsApplied"] == (truth, reason)
    assert message(result, "SettingsApplied") == text
    assert by_type(result)["Ready"] == (("False", "Waiting") if reason == "Waiting" else ("True", "Serving"))


def test_ready_is_not_claimed_for_a_generation_whose_settings_pods_are_behind() -> None:
    """Once claimed for this very generation it stays: SettingsApplied reports a change of the policy."""
    behind = replace(WELL, reports={"p1": report("p1", 2)})
    known, newer = (
        ModelBackend.parse(
            {
                "metadata": {"name": "b", "namespace": "n", "generation": generation},
                "spec": {"model": {"container": {"image": "i"}}},
                "status": status.backend_status(backend(), WELL, now=NOW),
            }
        )
        for generation in (4, 5)
    )
    assert by_type(status.backend_status(known, behind, now=NOW))["Ready"] == ("True", "Serving")
    result = status.backend_status(newer, behind, now=NOW)
    assert by_type(result)["Ready"] == ("False", "Waiting")
    assert by_type(result)["Reconciling"] == ("True", "Waiting")
    assert "Stalled" not in by_type(result)
    silent = replace(WELL, reports={})
    assert by_type(status.backend_status(newer, silent, now=NOW))["Ready"] == ("True", "Serving")


@pytest.mark.parametrize("held", [("pods",), ("settings",), ("pods", "settings")])
def test_ready_is_not_claimed_for_what_suspension_holds_back(held: tuple[str, ...]) -> None:
    """The message says which part of the change waits."""
    result = status.backend_status(backend(suspend=True), replace(WELL, held=held), now=NOW)
    assert by_type(result)["Ready"] == ("False", "Suspended")
    assert f"a change of the {' and the '.join(held)} waits" in message(result, "Ready")
    assert not {"Reconciling", "Stalled"} & by_type(result).keys()
    applied = ("False", "Suspended") if "settings" in held else ("True", "Applied")
    assert by_type(result)["SettingsApplied"] == applied


def test_suspended_in_the_middle() -> None:
    """Nothing is under way while nothing is reconciled."""
    seen = replace(WELL, deployment=deployment(replicas=1, ready=1))
    conditions = by_type(status.backend_status(backend(replicas=2, suspend=True), seen, now=NOW))
    assert conditions["Ready"] == ("False", "Suspended")
    assert not {"Reconciling", "Stalled"} & conditions.keys()


def test_a_batch_that_can_never_be_full_is_told() -> None:
    """The backend is well; its reason says that it could be better."""
    result = status.backend_status(backend(), replace(WELL, batching_note="8 of 32"), now=NOW)
    assert by_type(result)["Ready"] == ("True", "BatchUnreachable")
    assert message(result, "Ready") == "8 of 32"
