"""The apply rule: what we want is new, or is not in the live object; strangers are left alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock_operator.apply import Applier
from penstock_operator.desired.drift import contained, needs_write, quantity
from penstock_operator.desired.labels import DESIRED_HASH
from penstock_operator.desired.objects import stamped
from penstock_operator.errors import NameTaken
from penstock_operator.kinds import CONFIG_MAP, DEPLOYMENT, SERVICE
from penstock_operator.store import ObjectKey, Store
from tests.support.worlds.memory_cluster import MemoryCluster

OWNER = {"apiVersion": "penstock.dev/v1alpha1", "kind": "ModelBackend", "name": "m", "uid": "u-1"}
LABELS = {"app.kubernetes.io/managed-by": "penstock"}


def config_map(name: str = "c", data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": "n", "name": name, "labels": LABELS, "ownerReferences": [OWNER], **metadata,
        },
        "data": data or {"a": "1"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("0.5", "500m"), ("1024Mi", "1Gi"), ("1000m", 1), ("1e3", "1k"), ("1E3", "1000"), ("0", 0),
        ("1Ti", "1024Gi"), ("100n", "0.1u"), ("2", 2.0), ("12E", "12000P"), ("-1", "-1000m"),
    ],
)  # fmt: skip
def test_spellings_of_one_quantity_are_equal(first: object, other: object) -> None:
    """Kubernetes rewrites quantities; that is not drift."""
    assert quantity(first) == quantity(other)
    assert quantity(first) is not None


@pytest.mark.parametrize("text", ["", "x", "1i", "Mi", "1Qi", "1 Gi x"])
def test_what_is_no_quantity_is_none(text: str) -> None:
    """Nonsense is compared as it is spelled."""
    assert quantity(text) is None


CONTAINED = [
    ("owners in another order", {"ownerReferences": [{"uid": "a"}, {"uid": "b"}]},
     {"ownerReferences": [{"uid": "b"}, {"uid": "a"}]}),
    ("equal", {"a": 1}, {"a": 1}),
    ("more is there", {"a": 1}, {"a": 1, "b": 2}),
    ("quantity in limits", {"limits": {"cpu": "0.5"}}, {"limits": {"cpu": "500m"}}),
    ("quantity of storage", {"requests": {"memory": "1024Mi"}}, {"requests": {"memory": "1Gi", "cpu": "1"}}),
    ("size limit", {"emptyDir": {"sizeLimit": "1024Ki"}}, {"emptyDir": {"sizeLimit": "1Mi"}}),
    ("number as quantity", {"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "1"}}),
    ("empty list vanishes", {"args": []}, {}),
    ("empty map vanishes", {"labels": {}, "a": 1}, {"a": 1}),
    ("empty text vanishes", {"value": ""}, {}),
    ("false vanishes", {"hostNetwork": False}, {}),
    ("zero vanishes", {"readinessProbe": {"initialDelaySeconds": 0}}, {}),
    ("zero becomes the default", {"httpGet": {"path": "", "scheme": ""}, "timeoutSeconds": 0},
     {"httpGet": {"path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1}),
    ("null vanishes", {"x": None}, {"x": 3}),
    ("nest of nothing", {"securityContext": {"capabilities": {"drop": []}}}, {}),
    ("keyed list, others between", {"env": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]},
     {"env": [{"name": "a", "value": "1"}, {"name": "c", "value": "3"}, {"name": "b", "value": "2"}]}),
    ("empty label stays", {"labels": {"a": ""}}, {"labels": {"a": "", "b": ""}}),
    ("keyed by path", {"volumeMounts": [{"mountPath": "/t", "name": "t"}]},
     {"volumeMounts": [{"mountPath": "/x"}, {"mountPath": "/t", "name": "t", "readOnly": False}]}),
    ("injected container stays", {"containers": [{"name": "model"}]},
     {"containers": [{"name": "mesh"}, {"name": "model", "image": "x"}]}),
    ("ports with default protocol", {"ports": [{"port": 80, "targetPort": 20001}]},
     {"ports": [{"port": 80, "targetPort": 20001, "protocol": "TCP"}]}),
    ("container ports", {"ports": [{"containerPort": 80}]},
     {"ports": [{"containerPort": 80, "protocol": "TCP"}]}),
    ("atomic list with defaulted members", {"sources": [{"serviceAccountToken": {"path": "t"}}]},
     {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}),
    ("empty env value", {"env": [{"name": "a", "value": ""}]}, {"env": [{"name": "a"}]}),
]  # fmt: skip

NOT_CONTAINED = [
    ("other value", {"a": 1}, {"a": 2}),
    ("other quantity", {"limits": {"cpu": "1"}}, {"limits": {"cpu": "500m"}}),
    ("absent value", {"a": 1}, {}),
    ("true vanished", {"readOnly": True}, {}),
    ("false turned true", {"hostNetwork": False}, {"hostNetwork": True}),
    ("false that stays", {"automountServiceAccountToken": False}, {}),
    ("false that stays, with all around it", {"securityContext": {"allowPrivilegeEscalation": False}}, {}),
    ("zero that stays", {"rollingUpdate": {"maxUnavailable": 0}}, {"rollingUpdate": {"maxSurge": 1}}),
    ("no replicas", {"replicas": 0}, {}),
    ("user 0", {"runAsUser": 0}, {}),
    ("quantity of zero", {"limits": {"cpu": "0"}}, {"limits": {}}),
    ("replicas zero turned one", {"replicas": 0}, {"replicas": 1}),
    ("atomic list, other order", {"args": ["a", "b"]}, {"args": ["b", "a"]}),
    ("atomic list, longer", {"args": ["a"]}, {"args": ["a", "b"]}),
    ("keyed list, other order", {"env": [{"name": "a"}, {"name": "b"}]},
     {"env": [{"name": "b"}, {"name": "a"}]}),
    ("peers' port added", {"ports": [{"port": 80, "protocol": "TCP"}]},
     {"ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]}),
    ("false that says something, gone", {"automountServiceAccountToken": False}, {}),
    ("zero that says something, gone", {"securityContext": {"runAsUser": 0}}, {"securityContext": {}}),
    ("empty label gone", {"labels": {"a": ""}}, {"labels": {"b": ""}}),
    ("labels gone", {"nodeSelector": {"a": ""}}, {}),
    ("zero for the default, changed", {"httpGet": {"path": ""}}, {"httpGet": {"path": "/x"}}),
    ("keyed element gone", {"env": [{"name": "a", "value": "1"}]}, {"env": [{"name": "b", "value": "1"}]}),
    ("keyed element changed", {"env": [{"name": "a", "value": "1"}]}, {"env": [{"name": "a", "value": "2"}]}),
    ("port moved", {"ports": [{"port": 80, "targetPort": 1}]}, {"ports": [{"port": 80, "targetPort": 2}]}),
    ("map became text", {"a": {"b": 1}}, {"a": "b"}),
    ("one is not true", {"a": 1}, {"a": True}),
    ("selector narrowed", {"selector": {"a": "b"}}, {"selector": {"a": "b", "c": "d"}}),
    ("everybody narrowed", {"from": [{"podSelector": {}}]},
     {"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}),
    ("peer narrowed", {"podSelector": {"matchLabels": {"a": "b"}}},
     {"podSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "x"}]}}),
    ("empty where something is", {"args": []}, {"args": ["a"]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "desired", "live"), CONTAINED, ids=[row[0] for row in CONTAINED])
def test_what_is_there_is_found(name: str, desired: Any, live: Any) -> None:
    """The API server's normalisation and the additions of others are not drift."""
    assert contained(desired, live)


@pytest.mark.parametrize(("name", "desired", "live"), NOT_CONTAINED, ids=[row[0] for row in NOT_CONTAINED])
def test_drift_is_found(name: str, desired: Any, live: Any) -> None:
    """Every change of what we want is drift."""
    assert not contained(desired, live)


def test_a_field_that_left_the_desired_object_is_seen_by_the_hash() -> None:
    """The live object still contains what we want; only the hash shows that we want less."""
    live = stamped(config_map(data={"a": "1", "b": "2"}))
    assert contained(config_map(), live)
    assert needs_write(config_map(), live) == "changed"
    assert needs_write(config_map(data={"a": "1", "b": "2"}), live) is None


async def applier() -> tuple[MemoryCluster, Store, Applier]:
    cluster, store = MemoryCluster(), Store()
    return cluster, store, Applier(cluster, store)


async def test_apply_then_nothing_to_do() -> None:
    """A second run writes nothing, and reads nothing."""
    cluster, store, apply = await applier()
    await apply.ensure(config_map(), owners=("u-1",))
    writes, reads = len(cluster.writes), cluster.reads
    await apply.ensure(config_map(), owners=("u-1",))
    assert (writes, reads) == (1, 1)
    assert (len(cluster.writes), cluster.reads) == (1, 1)
    assert store.get(CONFIG_MAP, "n", "c") is not None


async def test_a_removed_field_leaves_the_child_and_anothers_stays() -> None:
    """Server-side apply takes away what only we set and no longer want."""
    cluster, store, apply = await applier()
    await apply.ensure(config_map(data={"a": "1", "b": "2"}), owners=("u-1",))
    edited = cluster.edit(CONFIG_MAP, "n", "c", lambda live: live["data"].update(z="user"))
    store.put(copy.deepcopy(edited))
    await apply.ensure(config_map(), owners=("u-1",))
    assert cluster.find(CONFIG_MAP, "n", "c")["data"] == {"a": "1", "z": "user"}


async def test_drift_is_mended() -> None:
    """A hand-edited value is put back, the hash being unchanged."""
    cluster, store, apply = await applier()
    await apply.ensure(config_map(), owners=("u-1",))
    store.put(copy.deepcopy(cluster.edit(CONFIG_MAP, "n", "c", lambda live: live["data"].update(a="9"))))
    await apply.ensure(config_map(), owners=("u-1",))
    assert cluster.find(CONFIG_MAP, "n", "c")["data"] == {"a": "1"}


async def test_what_is_remembered_of_children_is_bounded_by_what_is_there() -> None:
    """Resources of ever new names come and go for months."""
    cluster, store, applier_ = await applier()
    for number in range(500):
        live = await applier_.ensure(config_map(f"c{number}"), owners=["u-1"])
        cluster.remove(CONFIG_MAP, "n", f"c{number}")
        store.remove(live)
    assert len(applier_._settled) < 200


async def test_a_foreign_object_is_never_touched() -> None:
    """A forced apply would rewrite it in silence; it is read first, and left."""
    cluster, _, apply = await applier()
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "s"},
               "spec": {"ports": [{"port": 1}]}}  # fmt: skip
    cluster.user_applies(foreign)
    before = copy.deepcopy(cluster.find(SERVICE, "n", "s"))
    wanted = config_map("s") | {"kind": "Service", "spec": {"ports": [{"port": 80}]}}
    with pytest.raises(NameTaken, match="Service n/s exists and is not ours"):
        await apply.ensure(wanted, owners=("u-1",))
    with pytest.raises(NameTaken):
        await apply.ensure(wanted, owners=("u-1",), shared=True)
    assert cluster.find(SERVICE, "n", "s") == before
    assert cluster.writes == []


async def test_the_child_of_a_deleted_namesake_is_not_ours() -> None:
    """Ownership goes by uid, not by name."""
    cluster, _, apply = await applier()
    await apply.ensure(config_map(), owners=("u-1",))
    with pytest.raises(NameTaken, match="ModelBackend m with uid u-1"):
        await apply.ensure(config_map(ownerReferences=[{**OWNER, "uid": "u-2"}]), owners=("u-2",))
    assert len(cluster.writes) == 1


async def test_a_child_that_lost_our_label_is_found_and_mended() -> None:
    """The watch calls that a deletion; the object is read before it is written, and its secret kept."""
    cluster, store, apply = await applier()
    await apply.ensure(config_map(), owners=("u-1",))
    bare = cluster.edit(CONFIG_MAP, "n", "c", lambda live: live["metadata"].pop("labels"))
    store.remove(copy.deepcopy(bare))
    await apply.ensure(config_map(), owners=("u-1",))
    assert cluster.find(CONFIG_MAP, "n", "c")["metadata"]["labels"] == LABELS
    assert store.get(CONFIG_MAP, "n", "c") is not None


async def test_a_webhook_that_undoes_us_does_not_make_a_hot_loop() -> None:
    """The same write into the same version is not repeated; a new version is tried again."""
    cluster, store, apply = await applier()

    def undo(obj: dict[str, Any]) -> None:
        obj["spec"]["replicas"] = 7

    cluster.defaults["Deployment"] = undo
    wanted = config_map("d") | {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1}}
    del wanted["data"]
    for _ in range(5):
        await apply.ensure(wanted, owners=("u-1",))
    assert len(cluster.writes) == 1
    touched = cluster.edit(DEPLOYMENT, "n", "d", lambda live: live.update(status={"readyReplicas": 1}))
    store.put(copy.deepcopy(touched))
    for _ in range(5):
        await apply.ensure(wanted, owners=("u-1",))
    assert len(cluster.writes) == 2


async def test_prune_deletes_what_we_rendered_and_nothing_else() -> None:
    """Only kinds we render, with our label and hash, that are not wanted."""
    cluster, store, apply = await applier()
    for name in ("keep", "drop"):
        await apply.ensure(config_map(name), owners=("u-1",))
    cluster.user_applies(config_map("users"))
    store.put(copy.deepcopy(cluster.find(CONFIG_MAP, "n", "users")))
    gone = await apply.prune(store.owned("u-1"), [ObjectKey("ConfigMap", "n", "keep")])
    assert gone == [ObjectKey("ConfigMap", "n", "drop")]
    assert cluster.names(CONFIG_MAP, "n") == ["keep", "users"]
    assert DESIRED_HASH in cluster.find(CONFIG_MAP, "n", "keep")["metadata"]["annotations"]
