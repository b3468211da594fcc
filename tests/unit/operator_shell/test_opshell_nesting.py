"""Values nested too deeply for a parser cost their own object alone, wherever they come in."""

from __future__ import annotations

import itertools
import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator import nesting
from penstock_operator.api.crds import definition
from penstock_operator.kinds import BACKEND, DEPLOYMENT, ENDPOINT, PARENTS, POD
from penstock_operator.nesting import CUT, LEVELS, VALUES, TooMany, check_count, count
from penstock_operator.store import Store
from tests.support.worlds.operator_harness import Harness, backend, endpoint, serving, settings

pytestmark = pytest.mark.long

DEPTHS = [LEVELS, CUT + 1, 900, 1000, 3000, 9000]
"""Around our own bounds, around Python's, and what the apiserver admits."""


def nested(levels: int, inner: Any = 1) -> Any:
    """A value of so many levels of lists and objects in turn."""
    for level in range(levels):
        inner = [inner] if level % 2 else {"a": inner}
    return inner


def spelled(levels: int) -> str:
    """The text of such a value, of lists alone."""
    return "[" * levels + "]" * levels


def depth(value: Any) -> int:
    """Levels of containers, counted without recursion."""
    levels, layer = 0, [value]
    while layer := [each for each in layer if isinstance(each, dict | list)]:
        levels += 1
        layer = [each for held in layer for each in (held.values() if isinstance(held, dict) else held)]
    return levels


def reference(value: Any, levels: int) -> Any:
    """What `cut` makes of a value, the slow way."""
    if isinstance(value, dict):
        return {name: reference(member, levels - 1) for name, member in value.items()} if levels else None
    if isinstance(value, list):
        return [reference(member, levels - 1) for member in value] if levels else None
    return value


_TEXT = st.text(st.sampled_from('[]{}"\\,:aé'), max_size=6)
_TREE = st.recursive(
    st.none() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=20,
)


@given(_TREE, st.integers(1, 5), st.booleans(), st.sampled_from([None, 1]))
def test_what_is_cut_off_is_just_what_lies_below(
    value: Any, levels: int, ascii: bool, indent: int | None
) -> None:
    """Brackets in texts do not count, and all that is kept is as it was."""
    text = json.dumps(value, ensure_ascii=ascii, indent=indent).encode()
    assert json.loads(nesting.cut(text, levels)) == reference(value, levels)


@pytest.mark.parametrize("levels", DEPTHS)
def test_an_answer_is_parsed_however_deep_it_is(levels: int) -> None:
    """The neighbours of a deep value are whole, and what is left of it is deeper than an object may be."""
    text = f'{{"items": [{{"good": 1}}, {{"spec": {spelled(levels)}}}, {{"good": 2}}]}}'
    items = nesting.decode(text.encode())["items"]
    assert (items[0], items[2]) == ({"good": 1}, {"good": 2})
    assert depth(items[1]) > LEVELS


def free_form() -> list[str]:
    """The paths of all fields that may hold anything."""

    def walk(schema: Any, path: str) -> list[str]:
        paths = [path] if schema.get("x-kubernetes-preserve-unknown-fields") else []
        for name, member in (schema.get("properties") or {}).items():
            paths += walk(member, f"{path}.{name}")
        if isinstance(schema.get("items"), dict):
            paths += walk(schema["items"], f"{path}.0")
        return paths

    return [
        f"{kind.kind}{path}"
        for kind in PARENTS
        for version in definition(kind.kind)["spec"]["versions"]
        for path in walk(version["schema"]["openAPIV3Schema"], "")
    ]


def poisoned(path: str, value: Any, name: str = "bad") -> dict[str, Any]:
    """A resource with the value in a field, named by its path."""
    steps = path.split(".")[1:]
    document = backend(name)
    if "warmup" in steps:
        document["spec"]["warmup"] = {"requests": [{"path": "/"}]}
    if "python" in steps:
        document["spec"]["model"] = {"python": {"image": "i", "target": "m:C"}}
    at: Any = document
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if after is None:
            at[int(step) if step.isdigit() else step] = value
        elif step.isdigit():
            at = at[0]
        else:
            at.setdefault(step, [{"name": "x"}] if after.isdigit() else {})
            at = at[step]
    return document


def test_free_form_fields_are_those_of_backends() -> None:
    """The list is not empty, and names those that the tests on a cluster poison, too."""
    fields = free_form()
    assert {path.split(".")[0] for path in fields} == {"ModelBackend"}
    assert {
        "ModelBackend.spec.userConfig",
        "ModelBackend.spec.model.python.initKwargs",
        "ModelBackend.spec.warmup.requests.0.body",
    } <= set(fields)


@pytest.mark.parametrize("path", free_form())
async def test_a_poisoned_object_is_unreadable_and_its_neighbours_serve_on(path: str) -> None:
    """In any field that may hold anything: the condition names it, all else converges; mended, it is read."""
    harness = Harness()
    deep = nested(LEVELS)
    harness.apply(poisoned(path, {"a": deep} if path != "ModelBackend.spec.userConfig" else deep))
    harness.apply(backend("good"))
    harness.apply(endpoint(backend="good"))
    await harness.run()
    assert not harness.errors
    assert harness.condition(BACKEND, "bad", "Ready") == ("False", "Unreadable")
    message = harness.cluster.find(BACKEND, "n", "bad")["status"]["conditions"][0]["message"]
    assert ".".join(path.split(".")[1:7]) in message
    assert "128 levels" in message
    assert harness.cluster.names(DEPLOYMENT, "n") == ["good-backend", "penstock-router"]
    assert (harness.condition(ENDPOINT, "e", "Accepted") or "")[0] == "True"

    again = await harness.restart()  # a start with the object there
    assert not again.errors
    assert again.condition(BACKEND, "bad", "Ready") == ("False", "Unreadable")

    again.cluster.remove(BACKEND, "n", "bad")
    again.apply(poisoned("ModelBackend.spec.userConfig", {"a": 1}))
    await again.run()
    assert again.condition(BACKEND, "bad", "Ready") != ("False", "Unreadable")
    assert "bad-backend" in again.cluster.names(DEPLOYMENT, "n")


@pytest.mark.parametrize(("most", "fields"), [(VALUES, free_form()[-3:]), (VALUES // 50, free_form())])
async def test_objects_of_too_many_values_are_unreadable(
    most: int, fields: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide, or many little containers, in any field: not walked at each look, and all else converges."""
    if most != VALUES:  # in all fields with fewer: that many in each would take seconds
        monkeypatch.setattr(nesting, "check_count", partial(check_count, most=most))
        monkeypatch.setattr(nesting, "is_small", lambda *_: False)
    shapes: list[Any] = [
        [[]] * most, {str(number): 1 for number in range(most)}, [[1] * 250] * (most // 250),
    ]  # fmt: skip
    bad = {f"bad-{number}": path for number, path in enumerate(fields)}
    objects = [
        poisoned(path, {"a": shape}, name)
        for (name, path), shape in zip(bad.items(), itertools.cycle(shapes), strict=False)
    ]
    harness = await Harness().applied(*objects, backend("good"))
    assert not harness.errors
    for name, path in bad.items():
        assert harness.condition(BACKEND, name, "Ready") == ("False", "Unreadable")
        message = harness.cluster.find(BACKEND, "n", name)["status"]["conditions"][0]["message"]
        field = ".".join(path.split(".")[1:3])
        assert message.endswith(f"{field}: expected at most {most} values in a resource, found more")
        stored = harness.ctx.store.get(BACKEND, "n", name)
        assert stored is not None
        assert "spec" not in stored
    assert harness.cluster.names(DEPLOYMENT, "n") == ["good-backend"]


def test_values_are_counted_up_to_the_bound() -> None:
    """A text is one value, however long; the resource as a whole counts, and its largest field is named."""
    assert count({"a": [1, {"b": "x" * VALUES}], "c": {}}, 100) == 6
    assert count([[1] * 10] * 10, 50) > 50
    check_count({"a": [1] * 40, "b": [1] * 50}, 92)
    with pytest.raises(TooMany, match=r"spec\.b: expected at most 91 values"):
        check_count({"a": [1] * 40, "b": [1] * 50}, 91)


async def test_a_backend_that_serves_and_becomes_unreadable_keeps_what_scale_reads() -> None:
    """Its pods are counted, and an HPA finds them; of its load nothing is said that would grow old."""
    harness = await serving()
    before = harness.cluster.find(BACKEND, "n", "m")["status"]
    await harness.applied(backend(userConfig=nested(LEVELS)))
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "Unreadable")
    status = harness.cluster.find(BACKEND, "n", "m")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    kept = ("selector", "firstReadyTime", "usedBy", "settingsVersion")
    assert [status.get(name) for name in kept] == [before.get(name) for name in kept]
    assert "load" not in status
    harness.pods_ready("m-backend", 3)
    await harness.run()
    assert harness.cluster.find(BACKEND, "n", "m")["status"]["replicas"] == 3
    assert not harness.errors


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("ModelBackend.spec.userConfig", 2),
        ("ModelBackend.spec.warmup.requests.0.body", 5),
        ("ModelBackend.spec.model.python.initKwargs", 4),
    ],
)
async def test_the_deepest_value_that_is_read_is_followed(path: str, above: int) -> None:
    """What the store takes in passes all steps behind it: models, rendering, hashes, settings."""
    harness = Harness()
    deep: Any = nested(LEVELS - above)
    deep = deep if isinstance(deep, dict) else {"a": nested(LEVELS - above - 1)}
    await harness.applied(poisoned(path, deep))
    assert not harness.errors
    assert "bad-backend" in harness.cluster.names(DEPLOYMENT, "n")
    if path.endswith("userConfig"):
        assert settings(harness, "bad-backend-settings")["userConfig"] == deep
    await harness.applied(poisoned(path, {"a": deep}))
    assert harness.condition(BACKEND, "bad", "Ready") == ("False", "Unreadable")
    assert "bad-backend" in harness.cluster.names(DEPLOYMENT, "n"), "what runs is left as it is"
    await harness.applied(poisoned(path, {"b": 1}))
    assert harness.condition(BACKEND, "bad", "Ready") != ("False", "Unreadable")


def test_a_stub_is_indexed_and_gives_way() -> None:
    """It has kind and metadata; a later version that can be read takes its place, in all indexes."""
    store = Store()
    labels = {"penstock.dev/backend": "m"}
    metadata = {"namespace": "n", "name": "p", "uid": "u", "labels": labels, "more": nested(LEVELS)}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata | {"resourceVersion": "1"}}
    for version, more in (("1", {}), ("2", nested(LEVELS)), ("3", {}), ("4", nested(LEVELS)), ("5", {})):
        document = {"resourceVersion": version, "more": more}
        assert store.put(pod | {"metadata": metadata | document, "status": {"a": 1}}).happened
        stored = store.selected(POD, "n", "penstock.dev/backend", "m")
        assert [obj["metadata"]["resourceVersion"] for obj in stored] == [version]
        assert stored[0]["status"] == {"a": 1}
        assert ("penstock.dev/unreadable" in stored[0]) == bool(more)
        assert ("more" in stored[0]["metadata"]) != bool(more)
    assert len(store) == 1
