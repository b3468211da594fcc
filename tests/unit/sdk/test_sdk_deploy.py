"""`penstock deploy` where others deploy the same name at the same moment; the cluster is in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock.deploy import ClusterError, Kubectl, ReplacedError, deploy, stay


class Cluster(Kubectl):
    """Answers kubectl's commands that `deploy` gives, as an API server does.

    Args:
        between: called before each command, with it.
    """

    def __init__(self, between: Callable[[tuple[str, ...]], None] = lambda _: None) -> None:
        super().__init__(context=None, namespace=None)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.failures: list[str] = []
        self._between = between
        self._version = 0

    def _write(self, kind: str, name: str, found: dict[str, Any]) -> None:
        self._version += 1
        found["metadata"] |= {
            "name": name,
            "namespace": "n",
            "resourceVersion": str(self._version),
            "uid": "u",
        }
        self.objects[kind, name] = found

    def _found(self, kind: str, name: str) -> dict[str, Any]:
        if (kind, name) not in self.objects:
            raise ClusterError(f'Error from server (NotFound): {kind}s "{name}" not found')
        return self.objects[kind, name]

    def __call__(self, *arguments: str, document: object = None) -> str:
        self._between(arguments)
        verb, *rest = arguments
        if verb == "apply":
            assert isinstance(document, Mapping)
            for each in document["items"]:
                known = (each["kind"].lower(), each["metadata"]["name"]) in self.objects
                if not (known and each["kind"] == "ConfigMap"):  # which it would not change
                    self._write(each["kind"].lower(), each["metadata"]["name"], json.loads(json.dumps(each)))
        elif verb == "patch":
            self._write(rest[0], rest[1], self._found(rest[0], rest[1]))
        elif verb == "delete":
            assert isinstance(document, Mapping)
            name = rest[0].rpartition("/")[2]
            found = self._found("configmap", name)["metadata"]["resourceVersion"]
            if found != document["preconditions"]["resourceVersion"]:
                raise ClusterError("Error from server (Conflict)")
            del self.objects["configmap", name]
        elif rest[0] == "modelbackend":
            ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
            if self.failures:
                ready |= {"status": "False", "reason": "ContainerCrashed", "message": self.failures.pop(0)}
            stored = self._found("modelbackend", rest[1])
            stored["metadata"]["generation"] = 1
            return json.dumps(stored | {"status": {"observedGeneration": 1, "conditions": [ready]}})
        else:
            kind = rest[0].removesuffix("s")
            return json.dumps({"items": [each for (of, _), each in self.objects.items() if of == kind]})
        return ""

    def codes(self) -> set[str]:
        """The ConfigMaps that are there."""
        return {name for kind, name in self.objects if kind == "configmap"}


def documents(code: str) -> list[dict[str, Any]]:
    """What is deployed."""
    reference = {"configMapRef": {"name": code}}
    return [
        {"kind": "ConfigMap", "metadata": {"name": code, "labels": {"penstock.dev/code": "m"}}},
        {
            "kind": "ModelBackend",
            "metadata": {"name": "m"},
            "spec": {"model": {"python": {"code": reference}}},
        },
    ]


def test_who_was_overtaken_is_told_which_code_serves() -> None:
    """What the other one sees as served is its own."""

    def other(arguments: tuple[str, ...]) -> None:
        if arguments[0] == "patch" and "a" in arguments:
            deploy(documents("b"), cluster, seconds=1)

    cluster = Cluster(other)
    with pytest.raises(ClusterError, match="m: expected code a, found b: another deploy came after this"):
        deploy(documents("a"), cluster, seconds=1)


@pytest.mark.parametrize("at", ["replicasets", "modelbackends", "delete"])
def test_code_that_another_deploys_again_meanwhile_stays(at: str) -> None:
    """It is of long ago and nothing named it; wherever the other one comes between, what serves has code."""
    began = False

    def other(arguments: tuple[str, ...]) -> None:
        nonlocal began
        if at in arguments and not began:
            began = True
            deploy(documents("old"), cluster, seconds=1)

    cluster = Cluster(other)
    cluster("apply", document={"items": documents("old")})
    deploy(documents("new"), cluster, seconds=1)
    assert "old" in cluster.codes()


def test_code_that_went_before_a_backend_named_it_is_applied_again() -> None:
    """Another deploy had seen it unused."""
    gone = False

    def other(arguments: tuple[str, ...]) -> None:
        nonlocal gone
        if arguments[0] == "patch" and not gone:
            gone = True
            del cluster.objects["configmap", "a"]

    cluster = Cluster(other)
    deploy(documents("a"), cluster, seconds=1)
    assert cluster.codes() == {"a"}


def test_another_thing_that_is_not_there_is_the_error_that_is_shown() -> None:
    """Such as the namespace: there is no backend to look at, either."""
    missing = 'Error from server (NotFound): namespaces "n" not found'

    def none(arguments: tuple[str, ...]) -> None:
        if arguments[0] == "apply":
            raise ClusterError(missing)

    with pytest.raises(ClusterError, match=re.escape(missing)):
        deploy(documents("a"), Cluster(none), seconds=1)


@pytest.mark.parametrize("other", ["deletes", "deploys"])
def test_code_that_another_changes_meanwhile_ends_no_clean_up(other: str) -> None:
    """What comes after it goes all the same."""
    began = False

    def meanwhile(arguments: tuple[str, ...]) -> None:
        nonlocal began
        if arguments[0] == "delete" and not began:
            began = True
            if other == "deletes":
                del cluster.objects["configmap", "a"]
            else:
                cluster("patch", "configmap", "a")

    cluster = Cluster(meanwhile)
    for name in ("a", "b"):
        cluster("apply", document={"items": documents(name)})
    deploy(documents("c"), cluster, seconds=1)
    assert cluster.codes() - {"a"} == {"c"}


def test_what_a_backend_waits_for_is_shown_once_however_often_a_container_restarts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.deploy.LOOK_SECONDS", 0)
    cluster = Cluster()
    # The first answers the look for the backend's uid.
    cluster.failures = ["", *(f"exited, restarts: {count}; its last words: no" for count in (1, 2, 3))]
    deploy(documents("a"), cluster, seconds=1)
    assert capsys.readouterr().err == "m: ContainerCrashed: exited, restarts: 1; its last words: no\n"


def test_where_namespaces_share_a_router_the_way_from_here_is_a_port_of_its(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their Services select no pod, so `port-forward` to one fails. Who may not look gets the usual line."""
    usual = "  from here       kubectl port-forward service/m 8080:80\n"
    shared = (
        "  from here       kubectl --namespace=home port-forward deploy/penstock-shared-router "
        "8080:12345\n"
        "                  (namespaces share that router; without rights there, call from a pod)\n"
    )
    cluster = Cluster()
    for there, way in (([], usual), ([{"targetRef": {"namespace": "home"}}], shared), ([{}], usual)):
        slice_ = {"kind": "EndpointSlice", "metadata": {"name": "s"}, "ports": [{"port": 12345}]}
        cluster("apply", document={"items": [{**slice_, "endpoints": there}]})
        deploy(documents("a"), cluster, seconds=1)
        assert capsys.readouterr().out.partition("\n")[2] == f"  in the cluster  http://m\n{way}"

    def forbidden(command: tuple[str, ...]) -> None:
        if "endpointslices" in command:
            raise ClusterError("Error from server (Forbidden)")

    deploy(documents("a"), Cluster(forbidden), seconds=1)
    assert capsys.readouterr().out.endswith(usual)


def test_unused_code_goes() -> None:
    """But for what a ReplicaSet names, to which a rollback leads."""
    cluster = Cluster()
    for name in ("a", "b", "c"):
        deploy(documents(name), cluster, seconds=1)
        cluster(
            "apply", document={"items": [{"kind": "ReplicaSet", "metadata": {"name": "r"}, "spec": name}]}
        )
    assert cluster.codes() == {"b", "c"}


@pytest.mark.parametrize(
    ("deleted", "words"),
    [
        (False, "m: expected code a, found b: another deploy came after this"),
        (True, "m: it was deleted"),
    ],
)
def test_a_process_of_watch_ends_when_its_code_is_replaced(
    monkeypatch: pytest.MonkeyPatch, *, deleted: bool, words: str
) -> None:
    """Or deleted; not while the cluster cannot be reached."""
    looks = 0

    def between(_: tuple[str, ...]) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ClusterError("Unable to connect to the server: net/http: TLS handshake timeout")
        if looks == 3 and deleted:
            del cluster.objects["modelbackend", "m"]
        elif looks == 3:
            deploy(documents("b"), cluster, seconds=1)

    monkeypatch.setattr("penstock.deploy.STAY_SECONDS", 0)
    cluster = Cluster()
    deploy(documents("a"), cluster, seconds=1)
    cluster._between = between
    with pytest.raises(ReplacedError, match=words):
        stay(documents("a"), cluster)
