"""EndpointSlices read into ready addresses."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_router.slices import Address, backend_of, merge, parse_target


def endpoint(address: str, *, pod: str = "", uid: str = "", **conditions: bool | None) -> dict[str, Any]:
    found: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if pod:
        found["targetRef"] = {"kind": "Pod", "name": pod, "uid": uid or f"uid-{pod}"}
    return found


def slice_of(backend: str, *endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": f"{backend}-backend"}},
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
    found = merge([slice_of("a", endpoint("10.0.0.1", pod="p", **conditions))])
    assert found == {"a": (Address(host="10.0.0.1", port=8012, pod="p"),) if ready else ()}


def test_missing_members_and_nulls_are_borne() -> None:
    assert merge([slice_of("a", endpoints=None, ports=None)]) == {"a": ()}
    assert merge([slice_of("a", {"addresses": None}, {"addresses": []})]) == {"a": ()}
    assert merge([slice_of("a", {"addresses": ["10.0.0.1"], "conditions": None, "targetRef": None})]) == {
        "a": (Address(host="10.0.0.1", port=8012),)
    }


def test_services_of_others_are_not_looked_at() -> None:
    others = slice_of("x")
    others["metadata"]["labels"]["kubernetes.io/service-name"] = "database"
    assert backend_of(others) is None
    assert backend_of({"metadata": {}}) is None
    assert merge([others]) == {}


def test_a_backend_without_ready_pods_is_there_and_empty() -> None:
    """An empty slice says that the Service exists: its requests are held, not shared out."""
    assert merge([slice_of("a"), slice_of("b", endpoint("10.0.0.2"))]) == {
        "a": (),
        "b": (Address(host="10.0.0.2", port=8012),),
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
    several = slice_of("a", {"addresses": ["10.0.0.1", "10.0.0.9"]})
    assert merge([several]) == {"a": (Address(host="10.0.0.1", port=8012),)}


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([], 8012),
        ([{"name": "admin", "port": 8013}, {"name": "x", "port": 8012}], 8012),
        ([{"name": "x", "port": 1}, {"name": "http", "port": 9000, "protocol": "TCP"}], 9000),
        ([{"name": "x", "port": 7}], 7),
        ([{"name": "x", "port": 7, "protocol": "UDP"}], 8012),
        ([{"name": "x", "port": None}], 8012),
    ],
)
def test_the_data_port_is_found(ports: list[dict[str, Any]], expected: int) -> None:
    assert merge([slice_of("a", endpoint("10.0.0.1"), ports=ports)])["a"][0].port == expected


def test_targets_of_settings() -> None:
    assert parse_target("127.0.0.1:80") == Address(host="127.0.0.1", port=80)
    assert parse_target("[::1]:80") == Address(host="::1", port=80)
    assert parse_target("model:65535") == Address(host="model", port=65535)


@pytest.mark.parametrize("target", ["", "x", "x:", ":80", "x:0", "x:65536", "x:y", "http://x:80", "1:2:3"])
def test_a_target_of_another_form_is_refused(target: str) -> None:
    with pytest.raises(ValueError):
        parse_target(target)
