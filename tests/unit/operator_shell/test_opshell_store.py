"""The store keeps the newest version, whatever the order of arrival, and forgets what is gone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator import nesting
from penstock_operator.desired import labels, names
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, POD
from penstock_operator.store import UNREADABLE, Change, ObjectKey, Store, child_changed, parent_changed


def obj(
    kind: str = "Deployment", version: int = 1, uid: str = "u", name: str = "d", **more: Any
) -> dict[str, Any]:
    metadata = {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)} | more
    if kind == "Deployment":
        metadata.setdefault("ownerReferences", [{"kind": "ModelBackend", "name": "b", "uid": "b"}])
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {"v": version}}


_TREE = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, "", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(_TREE, _TREE, _TREE, _TREE)
def test_an_update_is_stored_as_it_came(spec: Any, changed: Any, status: Any, later: Any) -> None:
    """What is taken over from the version before is never something else, though Python says 1 == True."""
    store = Store()
    store.put({**obj("ModelBackend", generation=1), "spec": spec, "status": {"part": status}, "gone": 1})
    store.put(
        {**obj("ModelBackend", 2, generation=2), "spec": changed, "status": {"part": later}, "more": []}
    )
    stored = store.get(BACKEND, "n", "d")
    assert stored is not None
    assert json.dumps(stored["spec"]) == json.dumps(changed)
    assert stored["status"] == {"part": later}
    assert stored["metadata"]["resourceVersion"] == "2"
    assert stored["more"] == []
    assert "gone" not in stored


def test_a_change_of_a_status_keeps_the_rest() -> None:
    """A thousand pods that come up cost no new copy of what did not change."""
    store = Store()
    first = store.put({**obj(generation=1), "spec": {"v": [{"a": "b"}]}, "status": {"replicas": 1}}).new
    second = store.put({**obj(version=2, generation=1), "spec": {"v": [{"a": "b"}]}, "status": {}}).new
    assert first is not None
    assert second is not None
    assert second["spec"] is first["spec"]
    assert second["status"] == {}


@given(st.permutations([1, 2, 3, 4, 5]))
def test_the_newest_version_wins_in_any_order(order: list[int]) -> None:
    """A late event does not undo the answer to one of our writes."""
    store = Store()
    for version in order:
        store.put(obj(version=version))
    stored = store.get(DEPLOYMENT, "n", "d")
    assert stored is not None
    assert stored["spec"] == {"v": 5}


def test_versions_compare_as_numbers() -> None:
    """Ten is newer than nine, though not as text."""
    store = Store()
    store.put(obj(version=10))
    assert not store.put(obj(version=9)).happened


def test_the_dead_do_not_come_back() -> None:
    """An answer to a write that arrives after the deletion does not restore the object."""
    store = Store()
    store.put(obj(version=1))
    store.remove(obj(version=5))
    assert not store.put(obj(version=4)).happened
    assert store.get(DEPLOYMENT, "n", "d") is None
    assert len(store) == 0


def test_an_object_whose_label_came_back_is_alive() -> None:
    """A watch with a selector reports a lost label as a deletion."""
    store = Store()
    store.put(obj(version=1))
    store.remove(obj(version=5))
    assert store.put(obj(version=6)).happened


@pytest.mark.parametrize("word", [Store.remove, Store.put], ids=["deleted", "late-answer"])
def test_what_is_told_of_an_elder_namesake_leaves_the_new_one(word: Callable[..., Change]) -> None:
    """A watch that was cut lists only the new one: the deletion of the old one may never be reported."""
    store = Store()
    store.put(obj(version=1, uid="old"))
    store.put(obj(version=5, uid="new"))
    assert not word(store, obj(version=4, uid="old")).happened
    stored = store.get(DEPLOYMENT, "n", "d")
    assert stored is not None
    assert stored["metadata"]["uid"] == "new"


def test_owners_and_labels_are_indexed_and_unindexed() -> None:
    """The indexes follow changes and deletions."""
    store = Store()
    labels = {"penstock.dev/backend": "m"}
    store.put(obj("Pod", 1, name="p", labels=labels, ownerReferences=[{"uid": "a"}]))
    assert [each["metadata"]["name"] for each in store.selected(POD, "n", "penstock.dev/backend", "m")] == [
        "p"
    ]
    store.put(obj("Pod", 2, name="p", labels={}, ownerReferences=[{"uid": "b"}]))
    assert store.selected(POD, "n", "penstock.dev/backend", "m") == []
    assert store.owned("a") == []
    assert len(store.owned("b")) == 1
    store.forget(ObjectKey("Pod", "n", "p"), "u")
    assert store.owned("b") == []


def test_an_address_leads_to_the_one_namespace_whose_pod_has_it() -> None:
    """As long as the pod runs; not the node's, and not one that pods of two namespaces claim."""
    store = Store()

    def put(namespace: str, version: int, *own: str, **status: Any) -> dict[str, Any]:
        pod = obj("Pod", version, uid=namespace, name="p", namespace=namespace)
        ips = {"podIP": own[0], "podIPs": [{"ip": ip} for ip in own]} if own else {}
        pod["status"] = {
            "hostIP": "10.0.0.1",
            "hostIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            **ips,
            **status,
        }
        store.put(pod)
        return pod

    put("a", 1)
    assert not store._by_address
    put("a", 2, "10.1.0.1", "fd01::1")
    put("b", 1, "10.0.0.1", "fd00::1")
    assert [store.namespace_of(ip) for ip in ("10.1.0.1", "fd01::1", "10.0.0.1", "fd00::1")] == [
        "a",
        "a",
        "",
        "",
    ]
    put("b", 2, "10.1.0.1")
    assert store.namespace_of("10.1.0.1") == ""
    put("a", 3, "10.1.0.1", phase="Succeeded")
    assert store.namespace_of("10.1.0.1") == "b"
    store.remove(put("b", 3, "10.1.0.1"))
    assert not store._by_address


def test_a_pod_is_kept_without_its_spec_and_a_parent_with_who_owns_its_replicas() -> None:
    """Memory goes to what is read."""
    store = Store()
    pod = obj("Pod", 1, name="p", managedFields=[{"manager": "x"}])
    read = {"name": "model", "ready": True, "restartCount": 0, "state": {}}
    pod["status"] = {"phase": "Running", "containerStatuses": [read | {"containerID": "x", "resources": {}}]}
    store.put(pod)
    kept = store.get(POD, "n", "p")
    assert kept is not None
    assert kept["spec"] == {"nodeName": ""}
    assert kept["status"] == {"phase": "Running", "containerStatuses": [read]}
    assert "managedFields" not in kept["metadata"]
    assert "managedFields" in pod["metadata"]
    replicas = {"f:spec": {"f:replicas": {}}}
    scaler = {"manager": "hpa", "operation": "Update", "subresource": "scale", "fieldsV1": replicas}
    more = {**scaler, "time": "now", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:model": {}}}}
    store.put(obj("ModelBackend", 1, name="b", managedFields=[{"manager": "x"}, more]))
    parent = store.get(BACKEND, "n", "b")
    assert parent is not None
    assert parent["metadata"]["managedFields"] == [scaler]


def test_of_children_what_is_read_is_kept() -> None:
    """A pod's annotations, a stranger's megabyte under our label, and what we never render cost no memory."""
    store = Store()
    owners = {"ownerReferences": [{"kind": "ModelBackend", "name": "b", "uid": "b"}]}
    for number, more in enumerate(({}, {labels.DELETION_COST: "-1"}), start=1):
        annotations = {"a": "x" * 100_000, **more}
        store.put(obj("Pod", number, name="p", annotations=annotations, labels={"l": "1"}))
        pod = store.get(POD, "n", "p")
        assert pod is not None
        assert pod["metadata"].get("annotations", {}) == more
    assert pod["metadata"]["labels"] == {"l": "1"}
    data = {"settings.json": "{}", "ca.crt": "PEM", "more": "x" * 1_000_000}
    for name, more in (
        ("ours", owners),
        ("stranger", {}),
        ("other", {"ownerReferences": [{"kind": "Job", "uid": "j"}]}),
    ):
        stored = obj("ConfigMap", 1, name=name, annotations={"penstock.dev/desired-hash": "h"}, **more)
        store.put(stored | {"data": data, "binaryData": {"b": "eA=="}})
    ours, stranger, other = (store.get(CONFIG_MAP, "n", name) for name in ("ours", "stranger", "other"))
    assert ours is not None
    assert stranger is not None
    assert other is not None
    assert ours["data"] == {names.SETTINGS_KEY: "{}", names.AUTHORITIES_KEY: "PEM"}
    assert "binaryData" not in ours
    for stored in (stranger, other):
        assert stored["data"] == {}
        assert "binaryData" not in stored
        assert stored["metadata"]["annotations"] == {"penstock.dev/desired-hash": "h"}
    store.put(obj("Deployment", 1, name="d", **owners))
    child = store.get(DEPLOYMENT, "n", "d")
    assert child is not None
    assert child["spec"] == {"v": 1}


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({}, False), ({"generation": 2}, True), ({"labels": {"a": "b"}}, True),
        ({"annotations": {"a": "b"}}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, True), ({"managedFields": [{}]}, False),
    ],
)  # fmt: skip
def test_a_parents_event_matters_only_for_these(change: dict[str, Any], wakes: bool) -> None:
    """Our own status writes start no work."""
    old = obj("ModelBackend", 1, generation=1)
    new = obj("ModelBackend", 2, **({"generation": 1} | change)) | {"status": {"new": True}}
    assert parent_changed(Change(old, new)) is wakes


def test_a_childs_event_matters_when_anything_but_bookkeeping_changed() -> None:
    """A new resourceVersion alone is not a change."""
    old, same = obj(version=1), obj(version=2)
    same["spec"] = old["spec"]
    assert not child_changed(Change(old, same))
    assert child_changed(Change(old, {**same, "status": {"readyReplicas": 1}}))
    assert child_changed(Change(old, None))


def test_equal_small_parts_of_two_objects_are_one_in_memory() -> None:
    """A thousand backends say the same words; what is large goes with its object."""
    store, large = Store(), "x" * 5000
    probe = {"port": 8012, "paths": ["/a", "/b"], "on": True, "text": "y" * 100}
    before = sys.getrefcount(large)
    for name in ("d", "e"):
        made = obj(name=name, uid=name, labels={"a-label": "its value"}, note={"text": "", "none": None})
        made = json.loads(json.dumps({**made, "spec": {"probe": probe, "one": 1 if name == "d" else True}}))
        made["metadata"]["note"]["text"] = large
        store.put(made)
    first, second = (store.get(DEPLOYMENT, "n", name) for name in ("d", "e"))
    assert first is not None
    assert second is not None
    assert first["spec"]["probe"] is second["spec"]["probe"]
    assert first["spec"]["probe"] == probe
    assert first["metadata"]["labels"] is second["metadata"]["labels"]
    assert (type(first["spec"]["one"]), type(second["spec"]["one"])) == (int, bool)
    assert first["metadata"]["note"] == second["metadata"]["note"] == {"text": large, "none": None}
    for name in ("d", "e"):
        store.forget(ObjectKey("Deployment", "n", name))
    del made, first, second
    assert sys.getrefcount(large) == before


_REPEATED = ({}, [], 0, 1, 257, 1.5, None, "", "a", "é", "€", "🦀", {"": 0}, {"": {}}, [[]], {"a": "🦀" * 40})


@given(_TREE)
def test_a_value_with_little_text_takes_few_bytes(value: Any) -> None:
    """So that the exact checks can be left out for nearly every object."""
    text = msgspec.json.encode(value)
    for most in (len(text), 8 * len(text), 64 * len(text)):
        assert not nesting.is_small(value, most) or nesting.weigh(value, most) <= most


@pytest.mark.parametrize("value", _REPEATED, ids=str)
def test_many_of_the_costliest_values_are_not_small(value: Any) -> None:
    """No value takes more bytes, by its text, than the quick check reckons with: in lists, maps and depth."""
    deep = value
    for _ in range(100):
        deep = {"": deep}
    for each in ([value] * 1000, {f"{number:x}": value for number in range(1000)}, deep):
        decoded = msgspec.json.decode(msgspec.json.encode(each))
        weight = nesting.weigh(decoded, 10**9)
        assert not nesting.is_small(decoded, weight - 1)


def test_the_sharing_of_a_part_does_not_hide_its_depth() -> None:
    """Known from a place where it was not too deep, it is still too deep elsewhere."""
    part: Any = {"shared": "so"}
    for _ in range(nesting.LEVELS // 2):
        part = [part]
    store, second = Store(), part
    store.put({**obj(), "spec": {"v": part}})
    for _ in range(nesting.LEVELS // 2):
        second = [second]
    change = store.put(
        {**obj(version=2), "metadata": {**obj()["metadata"], "name": "e"}, "spec": {"v": second}}
    )
    assert change.new is not None
    assert "levels of nesting" in change.new[UNREADABLE]


def test_equal_parts_of_objects_are_one() -> None:
    """Labels, owners and the like are kept once, though each document has its own."""
    store = Store()
    spec = {"a": [{"name": "x" * 100, "on": True}], "b": [{"name": "x" * 100, "on": 1}]}
    texts = [
        json.dumps({**obj(), "metadata": {**obj()["metadata"], "name": name}, "spec": spec}) for name in "de"
    ]
    first, second = (store.put(json.loads(text)).new for text in texts)
    assert first is not None
    assert second is not None
    assert first["spec"] is second["spec"]
    assert first["spec"]["a"][0]["on"] is True
    assert type(second["spec"]["b"][0]["on"]) is int
