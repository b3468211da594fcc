"""The shared router's settings: a change has what it changes, and a ConfigMap has room for all."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.desired import settings, tenant_settings
from penstock_operator.desired.settings import CHANGES
from penstock_operator.desired.tenant_settings import TenantSettings
from penstock_wire.control import router_settings
from penstock_wire.control.documents import digest
from penstock_wire.control.router_settings import Endpoint, RouterSettings, Tenant
from penstock_wire.errors import DocumentError

METADATA = {"namespace": "penstock-system", "name": "penstock-shared-router-settings"}


def part(port: int, *endpoints: str) -> bytes:
    """What the settings have of a namespace."""
    served = tuple(Endpoint(name=name, port=port + 1 + at) for at, name in enumerate(endpoints))
    return router_settings.encode_tenant(Tenant(port=port, endpoints=served))


def take(data: bytes, now: RouterSettings | None, name: str) -> RouterSettings:
    """A router takes what it was sent."""
    return router_settings.changed(router_settings.decode(data), now, name)


@given(
    steps=st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(1, 3), min_size=1), max_size=8
    ),
    reads=st.sets(st.integers(0, 8)),
)
def test_a_router_that_follows_changes_has_what_one_has_that_gets_all(
    steps: list[dict[str, int | None]], reads: set[int]
) -> None:
    made, now, name = TenantSettings(), None, ""
    made.update({"z": part(9000, "e")}, reported=0)
    for at, step in enumerate(steps):
        news = made.update(
            {of: None if n is None else part(100 * n, "e") for of, n in step.items()}, reported=0
        )
        assert news <= step.keys()
        if at in reads and name != made.digest:
            now = take(made.since(name), now, name)
            name = str(now.digest)
        if at in reads:
            assert name == made.digest
            assert now == router_settings.decode(made.document)
    again = tenant_settings.recorded(settings.configmap(METADATA, made.document))
    assert again.update(made.parts, reported=made.version) == frozenset()
    assert (again.version, again.digest, again.document) == (made.version, made.digest, made.document)


def own(step: dict[str, int | None]) -> settings.Maker:
    """The settings of a namespace's own router."""
    served = (Endpoint(name=name, port=port) for name, port in sorted(step.items()) if port)
    return settings.for_router(tuple(served))


@given(
    steps=st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(1, 3)), min_size=1, max_size=8
    ),
    reads=st.sets(st.integers(0, 8)),
)
def test_a_namespaces_own_router_that_follows_changes_has_what_one_has_that_gets_all(
    steps: list[dict[str, int | None]], reads: set[int]
) -> None:
    made: settings.Versioned | None = None
    now, name, served = None, "", {}
    for at, step in enumerate(steps):
        last, served = made, served | step
        made = settings.next_version(own(served), made=last, recorded=None, status_version=0, reported=0)
        made = made.following(last)
        if at in reads and name != made.digest:
            data = made.since(name)
            now = take(data, now, name)
            assert ("base" in json.loads(data)) == bool(name)
            name = now.digest or digest(data)
        if at in reads:
            assert name == made.digest
            assert now is not None
            assert msgspec.structs.replace(now, digest=msgspec.UNSET) == router_settings.decode(made.document)


def test_a_change_of_an_endpoint_is_as_long_among_thousands_as_alone_and_who_is_far_behind_gets_all() -> None:
    lengths = []
    for count in (1, 2000):
        served = {f"e{at}": 9 for at in range(count)}
        first = settings.next_version(own(served), recorded=None, status_version=0, reported=0)
        made = first
        for port in range(CHANGES + 1 if count == 1 else 1):
            maker = own(served | {"e0": port + 10})
            made = settings.next_version(
                maker, made=made, recorded=None, status_version=0, reported=0
            ).following(made)
            if not port:
                lengths.append(len(made.since(first.digest)))
        for name in ("of-another", *([first.digest] if count == 1 else [])):
            assert made.since(name) == made.document
    assert lengths[0] == lengths[1]


def test_a_change_is_as_long_among_thousands_of_namespaces_as_alone() -> None:
    lengths = []
    for count in (1, 2000):
        made = TenantSettings()
        made.update({f"t{at}": part(10_000 + 6 * at, *"abcde") for at in range(count)}, reported=0)
        before = made.digest
        made.update({"t0": part(10_000, *"abcd")}, reported=0)
        lengths.append(len(made.since(before)))
    assert lengths[0] == lengths[1]


def test_who_is_too_far_behind_or_has_other_settings_gets_all() -> None:
    made = TenantSettings()
    made.update({"a": part(1, "e"), "b": part(3, "e")}, reported=0)
    first = made.digest
    for at in range(CHANGES + 1):
        made.update({"a": part(100 + at, "e")}, reported=0)
    for name in ("", "of-another", first):
        assert json.loads(made.since(name))["tenants"].keys() == {"a", "b"}
        assert "base" not in json.loads(made.since(name))
    change = made.since(first := made.digest)
    made.update({"a": None}, reported=0)
    change = made.since(first)
    with pytest.raises(
        DocumentError, match=f"expected a change of the settings in effect, x, found one of {first}"
    ):
        take(change, take(made.document, None, ""), "x")


def test_a_version_that_a_router_has_from_an_earlier_operator_is_passed() -> None:
    made = TenantSettings()
    made.update({"a": part(1, "e")}, reported=41)
    assert made.version == 42
    assert made.update({}, reported=50) == frozenset()
    assert made.version == 51


def test_ten_thousand_endpoints_fit_into_the_configmap() -> None:
    chance = random.Random(7)
    made = TenantSettings()
    parts = {}
    for at in range(2000):
        served = tuple(
            Endpoint(
                name=f"endpoint-{number}",
                port=10_000 + 6 * at + number,
                backends=(router_settings.WeightedBackend(name=f"model-{chance.getrandbits(40):x}"),),
            )
            for number in range(5)
        )
        parts[f"tenant-{at}"] = router_settings.encode_tenant(Tenant(port=10_005 + 6 * at, endpoints=served))
    made.update(parts, reported=0)
    assert len(made.document) > 4 * settings.PLAIN_BYTES
    configmap = settings.configmap(METADATA, made.document, "PEM")
    assert size(configmap) < settings.PACKED_BYTES / 2
    assert configmap["data"] == {"ca.crt": "PEM"}
    again = tenant_settings.recorded(configmap)
    assert (again.parts, again.digest) == (parts, made.digest)
    assert again.ports()["tenant-1"] == {"": 10_011} | {f"endpoint-{at}": 10_006 + at for at in range(5)}


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_too_large_is_left_out_and_the_others_stay(shared: bool) -> None:
    chance = random.Random(7)
    large = Endpoint(name="large", route="/" + chance.randbytes(1200 * 1024).hex())
    small = tuple(Endpoint(name=f"e{at}") for at in range(50))
    if shared:
        of = {f"t{at}": Tenant(port=at, endpoints=(each,)) for at, each in enumerate((large, *small))}
        document = router_settings.encode(RouterSettings(version=3, endpoints=(), tenants=of))
    else:
        document = router_settings.encode(RouterSettings(version=3, endpoints=(large, *small)))
    configmap = settings.configmap(METADATA, document)
    assert size(configmap) <= settings.PACKED_BYTES
    left = settings.recorded_document(configmap)
    assert left is not None
    kept = router_settings.decode(left)
    assert kept.version == 3
    names = [each.name for _, endpoints in kept.scopes for each in endpoints]
    assert names == [each.name for each in small]


def test_settings_from_a_configmap_that_had_no_room_for_all_are_others_than_those_that_routers_have() -> None:
    """What was left out may be gone by now, and the routers still serve it."""
    large = Endpoint(name="large", route="/" + random.Random(7).randbytes(1200 * 1024).hex())
    parts = {"x": router_settings.encode_tenant(Tenant(port=1, endpoints=(large,))), "a": part(3, "e")}
    made = TenantSettings()
    made.update(parts, reported=0)
    again = tenant_settings.recorded(settings.configmap(METADATA, made.document))
    again.update({"a": parts["a"]}, reported=made.version)
    assert again.parts.keys() == {"a"}
    assert again.digest != made.digest
    assert router_settings.decode(again.since(made.digest)).base is msgspec.UNSET


def test_a_configmap_that_somebody_has_filled_counts_as_none() -> None:
    for data in (b"", b"no gzip", b"\x1f\x8b" + bytes(40)):
        configmap: dict[str, Any] = {"binaryData": {"settings.json.gz": base64.b64encode(data).decode()}}
        assert settings.recorded_document(configmap) is None
        assert tenant_settings.recorded(configmap).parts == {}
    for text in (
        "",
        "[]",
        '{"v":1,"version":-1,"tenants":{}}',
        '{"v":1,"version":1,"tenants":{"a":{"port":-1}}}',
    ):
        assert tenant_settings.recorded({"data": {"settings.json": text}}).version == 0


def size(configmap: dict[str, Any]) -> int:
    """The bytes that the apiserver counts."""
    text = sum(len(value) for value in configmap["data"].values())
    return text + sum(len(base64.b64decode(value)) for value in configmap["binaryData"].values())
