"""EndpointSlices read into ready addresses."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.api import ModelBackend
from penstock_operator.desired import service
from penstock_router.pods.endpoint_slices import SELECTOR, Address, backend_of, merge, parse_target
from penstock_wire.contract import SIDECAR_PORT


def endpoint(address: str, *, pod: str = "", uid: str = "", **conditions: bool | None) -> dict[str, Any]:
    name = pod or f"at-{address}"
    target = {"kind": "Pod", "name": name, "namespace": "n", "uid": uid or f"uid-{name}"}
    return {"addresses": [address], "conditions": conditions, "targetRef": target}


def ready(host: str, pod: str = "") -> Address:
    """The address of an `endpoint`'s sidecar."""
    return Address(host=host, port=SIDECAR_PORT, pod=pod or f"at-{host}")


def slice_of(backend: str, *endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/managed-by": "penstock",
        "app.kubernetes.io/name": "penstock-backend",
        "penstock.dev/backend": backend,
        "kubernetes.io/service-name": f"{backend}-backend",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    return {
        "metadata": {"name": "s", "namespace": "n", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8012, "protocol": "TCP"}],
        "endpoints": list(endpoints),
        **more,
    }


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ({}, True),
        ({"ready": True}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": False, "terminating": False}, False),  # publishNotReadyAddresses
        ({"ready": True, "serving": True, "terminating": True}, False),  # and of a pod that ends
        ({"serving": False}, False),
    ],
)
def test_only_pods_that_are_ready_and_not_terminating_get_requests(
    conditions: dict[str, bool | None], ready: bool
) -> None:
    merged = merge([slice_of("a", endpoint("10.0.0.1", pod="p", **conditions))])
    assert merged == {"a": (Address(host="10.0.0.1", port=8012, pod="p"),) if ready else ()}


def test_missing_members_and_nulls_are_borne() -> None:
    assert merge([slice_of("a", endpoints=None, ports=None)]) == {"a": ()}
    assert merge([slice_of("a", {"addresses": None}, {"addresses": []})]) == {"a": ()}
    borne = endpoint("10.0.0.1") | {"conditions": None}
    assert merge([slice_of("a", borne, endpoint("10.0.0.2") | {"targetRef": None})]) == {
        "a": (ready("10.0.0.1"),)
    }


@pytest.mark.parametrize(
    "target",
    [{}, {"kind": "Node"}, {"kind": None}, {"name": ""}, {"namespace": "other"}, {"namespace": None}],
    ids=str,
)
def test_an_address_that_is_not_of_a_pod_of_the_namespace_gets_no_requests(target: dict[str, Any]) -> None:
    there = endpoint("10.0.0.1")
    stranger = endpoint("10.1.0.1", pod="q")
    stranger["targetRef"] = stranger["targetRef"] | target if target else {}
    assert merge([slice_of("a", there, stranger)]) == {"a": (ready("10.0.0.1"),)}


@pytest.mark.parametrize(
    "labels",
    [
        {"kubernetes.io/service-name": "database"},
        {"app.kubernetes.io/managed-by": None},
        {"app.kubernetes.io/managed-by": "Helm"},
        {"app.kubernetes.io/name": "penstock-router"},
        {"penstock.dev/backend": None},
        {"penstock.dev/backend": ""},
        {"penstock.dev/backend": "y"},
        {"kubernetes.io/service-name": "y-backend"},
        {"endpointslice.kubernetes.io/managed-by": None},
        {"endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io"},
    ],
)
def test_services_of_others_are_not_looked_at(labels: dict[str, str | None]) -> None:
    """A Service is a backend's by its labels and its name, never by one of them alone."""
    others = slice_of("x", endpoint("10.0.0.1"))
    assert merge([others]) != {}
    mirrored = others["metadata"]["labels"] | labels
    others["metadata"]["labels"] = {key: value for key, value in mirrored.items() if value is not None}
    assert backend_of(others) is None
    assert merge([others]) == {}


def test_a_slice_without_labels_is_nobodys() -> None:
    assert backend_of({"metadata": {}}) is None
    assert backend_of({"metadata": {"labels": None}}) is None
    assert backend_of({}) is None


def test_what_the_operator_renders_is_what_the_router_selects() -> None:
    """The EndpointSlice controller mirrors a Service's labels, adds its name, and lists its target ports."""
    backend = ModelBackend.parse(
        {"metadata": {"name": "x", "namespace": "n"}, "spec": {"model": {"container": {"image": "i"}}}}
    )
    rendered = service.service(backend)
    name = rendered["metadata"]["name"]
    mirrored = slice_of("x", endpoint("10.0.0.1"))
    mirrored["metadata"]["labels"] |= rendered["metadata"]["labels"] | {"kubernetes.io/service-name": name}
    mirrored["ports"] = [
        {"name": port["name"], "port": port["targetPort"], "protocol": port["protocol"]}
        for port in rendered["spec"]["ports"]
    ]
    assert merge([mirrored]) == {"x": (ready("10.0.0.1"),)}
    asked = [term.partition("=") for term in SELECTOR.split(",")]
    assert all(
        mirrored["metadata"]["labels"].get(key) == value if equals else key in mirrored["metadata"]["labels"]
        for key, equals, value in asked
    )


def test_a_backend_without_ready_pods_is_there_and_empty() -> None:
    """An empty slice says that the Service exists: its requests are held, not shared out."""
    assert merge([slice_of("a"), slice_of("b", endpoint("10.0.0.2"))]) == {
        "a": (),
        "b": (ready("10.0.0.2"),),
    }


def test_slices_of_one_backend_are_joined_and_a_pod_in_two_counts_once() -> None:
    first = slice_of("a", endpoint("10.0.0.1", pod="p"), endpoint("10.0.0.2", pod="q"))
    second = slice_of("a", endpoint("10.0.0.2", pod="q"), endpoint("10.0.0.3", pod="r"))
    assert [address.pod for address in merge([first, second])["a"]] == ["p", "q", "r"]


def test_a_pod_with_two_address_families_counts_once_by_its_ipv4_address() -> None:
    six = slice_of("a", endpoint("fd00::1", pod="p"), addressType="IPv6")
    four = slice_of("a", endpoint("10.0.0.1", pod="p"))
    for order in ([six, four], [four, six]):
        assert merge(order) == {"a": (Address(host="10.0.0.1", port=8012, pod="p"),)}
    assert merge([six]) == {"a": (Address(host="fd00::1", port=8012, pod="p"),)}


def test_names_are_not_addresses() -> None:
    assert merge([slice_of("a", endpoint("model.example.com"), addressType="FQDN")]) == {"a": ()}


def test_the_first_of_several_addresses_stands_for_all() -> None:
    several = slice_of("a", endpoint("10.0.0.1") | {"addresses": ["10.0.0.1", "10.0.0.9"]})
    assert merge([several]) == {"a": (ready("10.0.0.1"),)}


@pytest.mark.parametrize(
    ("ports", "leads"),
    [
        ([{"name": "x", "port": 8012}], True),
        ([{"name": "admin", "port": 8013}, {"name": "x", "port": 8012, "protocol": "TCP"}], True),
        ([], False),
        ([{"name": "http", "port": 9000, "protocol": "TCP"}], False),
        ([{"name": "http", "port": 8012, "protocol": "UDP"}], False),
        ([{"name": "http", "port": None}], False),
    ],
)
def test_only_the_sidecars_port_is_called(ports: list[dict[str, Any]], leads: bool) -> None:
    merged = merge([slice_of("a", endpoint("10.0.0.1"), ports=ports)])
    assert merged == {"a": (ready("10.0.0.1"),) if leads else ()}


def test_targets_of_settings() -> None:
    assert parse_target("127.0.0.1:80") == Address(host="127.0.0.1", port=80)
    assert parse_target("[::1]:80") == Address(host="::1", port=80)
    assert parse_target("model:65535") == Address(host="model", port=65535)


@pytest.mark.parametrize("target", ["", "x", "x:", ":80", "x:0", "x:65536", "x:y", "http://x:80", "1:2:3"])
def test_a_target_of_another_form_is_refused(target: str) -> None:
    with pytest.raises(ValueError):
        parse_target(target)
