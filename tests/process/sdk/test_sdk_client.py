"""`penstock.Client` without a cluster: what it says of wrong input, and of what it cannot reach or import.

What it does with a cluster is in tests/cluster/test_crds.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import ControlError
from tests.support.processes.ports import free_port


@pytest.fixture
def client(tmp_path: Path) -> penstock.Client:
    """A client of a cluster that is not there."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "d", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    (tmp_path / "config").write_text(json.dumps(document))
    return penstock.Client(kubeconfig=tmp_path / "config")


def test_the_namespace_is_the_contexts_unless_it_is_given(client: penstock.Client, tmp_path: Path) -> None:
    assert client.namespace == "team"
    assert penstock.Client("other", kubeconfig=tmp_path / "config").namespace == "other"
    assert penstock.Client(kubeconfig=str(tmp_path / "config"), context="d").namespace == "default"


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ({"kind": "Deployment"}, "expected a resource of kind ModelBackend, .* found 'Deployment'"),
        ("just text", "expected a resource of kind ModelBackend, .* found 'str'"),
        ("kind: BatchPolicy\nkind: ModelBackend", "apply: expected YAML: line 2: .* found 'kind' again"),
        ({"kind": "BatchPolicy", "metadata": {}}, "expected a BatchPolicy with a name"),
        (
            {"kind": "BatchPolicy", "metadata": {"name": "a", "namespace": "b"}},
            "in this client's namespace team",
        ),
        ({"kind": "BatchPolicy", "metadata": {"name": 3}}, "expected a BatchPolicy with a name"),
    ],
)
def test_what_cannot_be_applied(client: penstock.Client, resource: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client.apply(resource)


@pytest.mark.parametrize("weight", [0.5, -1, "90", True])
def test_weights_are_whole_numbers(client: penstock.Client, weight: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 0 such as 90 as the weight of a"):
        client.set_traffic("digits", {"a": weight})


@pytest.mark.parametrize("percent", [0.5, -1, 101, "20", True])
def test_percents_are_whole_numbers(client: penstock.Client, percent: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 0 to 100 as the percent of a"):
        client.shadow_traffic("digits", {"a": percent})


def test_a_kind_that_is_none_of_ours_is_named(client: penstock.Client) -> None:
    with pytest.raises(ValueError, match=r"expected a kind among ModelBackend, .* found 'Pod'"):
        client.get("Pod", "a")


def test_a_cluster_that_does_not_answer(client: penstock.Client) -> None:
    with pytest.raises(ControlError, match=r"ModelBackend a: .*127\.0\.0\.1") as raised:
        client.get("ModelBackend", "a")
    assert raised.value.status == 0


def test_no_kubeconfig_and_no_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for arguments in ({"kubeconfig": tmp_path / "none"}, {"kubeconfig": tmp_path / "none", "context": "c"}):
        with pytest.raises(ControlError, match="No configuration found"):
            penstock.Client(**arguments)


def test_without_its_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match=r"penstock\.Client: expected .* penstock-serving\[client\]"):
        penstock.Client()
