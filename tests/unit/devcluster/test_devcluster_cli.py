"""The command line: what is passed on untouched, what is refused, where a forward leads."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from devcluster import cli, images
from devcluster.cluster import Cluster, target_of
from devcluster.errors import DevclusterError


@pytest.fixture(autouse=True)
def nothing_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "line",
    [["--name", "x", "status"], ["status", "--name", "x"]],
)
def test_the_name_may_stand_before_or_after_the_command(line: list[str]) -> None:
    """Both are what people type."""
    assert cli.parser().parse_args(line).name == "x"


def test_without_a_name_the_default_cluster_is_meant() -> None:
    """Also after a command that takes a name itself."""
    assert cli.parser().parse_args(["up"]).name == "penstock"


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        (["kubectl", "get", "pods", "-n", "x", "-o", "json"], ["get", "pods", "-n", "x", "-o", "json"]),
        (["kubectl", "exec", "p", "--", "ls", "-l"], ["exec", "p", "--", "ls", "-l"]),
        (["run", "--", "curl", "-s", "http://x"], ["curl", "-s", "http://x"]),
        (["helm", "--help"], ["--help"]),
        (["--name", "x", "kubectl", "-n", "y", "get", "pods"], ["-n", "y", "get", "pods"]),
        (["--name=x", "helm", "--name", "z"], ["--name", "z"]),
    ],
)
def test_another_program_s_arguments_are_its_own(
    line: list[str], rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags after kubectl, helm and run reach them as they were typed, from the caller's folder."""
    ran: list[list[str]] = []
    monkeypatch.setattr(cli, "_become", lambda command: ran.append(list(command)) or 0)
    monkeypatch.setattr(Cluster, "kubectl_command", lambda _, *arguments: list(arguments))
    monkeypatch.setattr(Cluster, "helm_command", lambda _, *arguments: list(arguments))
    monkeypatch.setattr(Cluster, "exec_prefix", [])
    assert cli.main(line) == 0
    assert ran == [rest]


def test_kubectl_finds_its_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no flag before the name of one; the virtual environment need not be activated."""
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr(sys, "executable", "/checkout/.venv/bin/python")
    monkeypatch.setattr(Cluster, "_network_prefix", lambda _: ["prefix"])
    monkeypatch.setattr("devcluster.cluster.programs.program", lambda *_: "/bin/kubectl")
    command = Cluster("x").kubectl_command("penstock", "status")
    config = f"KUBECONFIG={Cluster('x').kubeconfig}"
    assert command == ["prefix", "env", config, "PATH=/bin:/checkout/.venv/bin", *command[-3:]]
    assert command[-3:] == ["/bin/kubectl", "penstock", "status"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["kubectl", "get", "pods"], "cluster penstock is not up; start it with `python -m devcluster"),
        (["run"], "run what?"),
        (["up", "--nodes", "11"], "--nodes: expected 1 to 10, found 11"),
        (["node", "add", "node0"], "a further node is called node1 to node9, not 'node0'"),
        (["node", "lose", "node1"], "cluster penstock is not up"),
        (["logs", "kubelet"], "'kubelet' has no log; these have: none"),
        (["images", "--file", "Dockerfile"], "--file needs --tag"),
        (["images", "--build-arg", "A"], "--build-arg: expected KEY=VALUE, found 'A'"),
        (["images", "--tag", "x"], "--tag names one image, so give a --target"),
        (["--name", "No", "status"], "a cluster's name is a DNS label"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    line: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the reason on stderr, no traceback."""
    assert cli.main(line) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"devcluster: {message}")
    assert "Traceback" not in said


def test_status_of_an_absent_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and its exit code says so to a script."""
    assert cli.main(["status"]) == 1
    assert capsys.readouterr().out.startswith("cluster penstock: absent\n")
    assert images.built() == {}
    assert not Path(os.environ["PENSTOCK_STATE"]).exists()


_SERVICE: dict[str, Any] = {
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"clusterIP": "10.96.1.2", "ports": [{"name": "http", "port": 80}, {"name": "m", "port": 9090}]},
}
_POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{}, {"ports": [{"name": "http", "containerPort": 8080}]}]},
    "status": {"podIP": "10.244.0.9"},
}


@pytest.mark.parametrize(
    ("obj", "port", "target"),
    [
        (_SERVICE, None, ("10.96.1.2", 80)),
        (_SERVICE, "m", ("10.96.1.2", 9090)),
        (_SERVICE, "9090", ("10.96.1.2", 9090)),
        (_POD, None, ("10.244.0.9", 8080)),
        (_POD, "8013", ("10.244.0.9", 8013)),
    ],
)
def test_a_forward_leads_to(obj: dict[str, Any], port: str | None, target: tuple[str, int]) -> None:
    """The first port or the one that is named; a pod may listen where it does not say so."""
    assert target_of(obj, port) == target


@pytest.mark.parametrize(
    ("obj", "port", "message"),
    [
        (_SERVICE, "8080", "Service web does not have port 8080; it has http 80, m 9090"),
        (
            {**_SERVICE, "spec": {"clusterIP": "None"}},
            None,
            "Service web does not have an address of its own",
        ),
        ({**_POD, "status": {}}, None, "Pod p does not have an address of its own"),
        ({**_POD, "spec": {"containers": [{}]}}, None, "Pod p lists no port; name one with --port"),
    ],
)
def test_a_forward_that_leads_nowhere(obj: dict[str, Any], port: str | None, message: str) -> None:
    """The message names what there is."""
    with pytest.raises(DevclusterError, match=f"^{message}$"):
        target_of(obj, port)
