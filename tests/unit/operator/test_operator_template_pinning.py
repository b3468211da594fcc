"""An operator that renders otherwise rolls no pod: the template stays until the user changes what rolls."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from penstock_operator.api import ModelBackend
from penstock_operator.desired import deployment, labels, template_pinning
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object

OLD = RenderConfig(sidecar_image="sidecar:1", router_image="r")
NEW = replace(OLD, sidecar_image="sidecar:2", token_seconds=600, image_pull_policy="Always")
LONG = "x" * 5000


def backend(**spec: Any) -> ModelBackend:
    model = spec.pop("model", {"container": {"image": "i", "env": [{"name": "A", "value": LONG}]}})
    return ModelBackend.parse(
        {"metadata": {"name": "b", "uid": "b", "namespace": "n"}, "spec": {"model": model} | spec}
    )


def render(
    wanted: ModelBackend, live: Object | None = None, config: RenderConfig = OLD, drain: str = "s"
) -> tuple[Object, bool]:
    """The Deployment that is desired, and whether an upgrade waits."""
    pinned = deployment.pinned_template(wanted, config=config, new_secret=drain, live=live)
    return deployment.deployment(wanted, pinned), pinned.upgrade_pending


def template(deployment: Object) -> Object:
    pod_template: Object = deployment["spec"]["template"]
    return pod_template


def sidecar(deployment: Object) -> Object:
    container: Object = template(deployment)["spec"]["initContainers"][0]
    return container


def test_another_operator_renders_nothing_anew() -> None:
    """Image, pull policy, token: the whole template stays, to the byte, at each run, as the status says."""
    first, _ = render(backend())
    second, pending = render(backend(), first, NEW)
    assert second == first
    assert pending
    assert render(backend(), second, NEW) == (first, True)
    # And back: an operator that is rolled back finds all as it was.
    assert render(backend(), second, OLD) == (first, False)


HOT = [
    {"replicas": 5},
    {"batching": {"maxBatchSize": 2}},
    {"userConfig": {"a": 1}},
    {"autoscaling": {"targetLoad": 3}},
    {"rollout": {"maxSurge": 2}},
    {"drain": {"timeout": "30s"}},  # what is the default anyway
    {"sidecar": {"upgrade": "OnNextChange"}},
]


@pytest.mark.parametrize("spec", HOT)
def test_what_is_hot_brings_no_upgrade(spec: dict[str, Any]) -> None:
    """Scaling, batching and the like leave the template where it is."""
    first, _ = render(backend())
    second, pending = render(backend(**spec), first, NEW)
    assert template(second) == template(first)
    assert pending


ROLLING = [
    {"model": {"container": {"image": "j"}}},
    {"drain": {"timeout": "31s"}},
    {"podTemplate": {"nodeSelector": {"a": "b"}}},
    {"podTemplate": {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}},
    {"warmup": {"requests": [{"path": "/w"}]}},
    {"sidecar": {"logLevel": "debug"}},
    {"sidecar": {"resources": {"requests": {"cpu": "1"}}}},
]


@pytest.mark.parametrize("spec", ROLLING)
def test_a_change_that_rolls_brings_the_upgrade_along(spec: dict[str, Any]) -> None:
    """The pods are replaced in any case: they get everything as it is rendered now, and keep the secret."""
    first, _ = render(backend())
    second, pending = render(backend(**spec), first, NEW, drain="another")
    assert not pending
    assert sidecar(second)["image"] == "sidecar:2"
    assert template_pinning.drain_secret(template(second)) == "s"
    assert render(backend(**spec), second, NEW) == (second, False)


def test_a_change_and_back_keeps_what_is_newest() -> None:
    """Undoing the change of a spec does not bring an old sidecar back."""
    first, _ = render(backend())
    second, _ = render(backend(drain={"timeout": "1s"}), first, NEW)
    third, pending = render(backend(), second, NEW)
    assert (sidecar(third)["image"], pending) == ("sidecar:2", False)


def test_upgrade_now_takes_it_at_once() -> None:
    """`sidecar.upgrade: Now` renders anew, once; taking it away again changes nothing."""
    first, _ = render(backend())
    second, pending = render(backend(sidecar={"upgrade": "Now"}), first, NEW)
    assert (sidecar(second)["image"], pending) == ("sidecar:2", False)
    assert render(backend(), second, NEW) == (second, False)


def test_an_edit_by_somebody_else_is_taken_back_to_what_was_kept() -> None:
    """What is desired comes from the record, not from the live pods: an edit neither stays nor upgrades."""
    first, _ = render(backend())
    edited = copy.deepcopy(first)
    sidecar(edited).update(image="evil:1", args=["--x"], env=[])
    template(edited)["spec"]["containers"][0]["lifecycle"] = {}
    assert render(backend(), edited, NEW) == (first, True)
    assert render(backend(), edited, OLD, drain="another") == (first, False)


def drop_long_strings(live: Object) -> None:
    template(live)["spec"]["containers"][0]["env"] = []
    record = json.loads(live["metadata"]["annotations"][labels.RENDERED])
    record["template"]["spec"]["containers"][0]["env"].append(
        {"name": "B", "value": {"penstock.dev/sha256": "0000000000000000"}}
    )
    live["metadata"]["annotations"][labels.RENDERED] = json.dumps(record)


def change_the_record(live: Object) -> None:
    text = live["metadata"]["annotations"][labels.RENDERED]
    live["metadata"]["annotations"][labels.RENDERED] = text.replace("sidecar:1", "evil:1")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda live: live["metadata"].pop("annotations"),
        lambda live: live["metadata"]["annotations"].update({labels.RENDERED: "{"}),
        lambda live: live["metadata"]["annotations"].update({labels.RENDERED: "[]"}),
        lambda live: live["metadata"]["annotations"].update({labels.RENDERED: "{}"}),
        lambda live: live["metadata"]["annotations"].update(
            {labels.RENDERED: '{"inputs": "", "hash": "", "template": []}'}
        ),
        drop_long_strings,
        change_the_record,
    ],
)
def test_a_record_that_is_spoilt_is_not_obeyed(spoil: Any) -> None:
    """Without a whole record the template is rendered anew, with the pods' own secret, and recorded."""
    first, _ = render(backend())
    spoilt = copy.deepcopy(first)
    spoil(spoilt)
    deployment, pending = render(backend(), spoilt, NEW, drain="another")
    assert (sidecar(deployment)["image"], pending) == ("sidecar:2", False)
    assert template_pinning.drain_secret(template(deployment)) == "s"
    assert render(backend(), deployment, NEW) == (deployment, False)


def test_long_strings_are_not_repeated_in_the_record() -> None:
    """Annotations have little room; what the spec says at length is remembered by its hash."""
    text = render(backend())[0]["metadata"]["annotations"][labels.RENDERED]
    assert LONG not in text
    assert len(text) < 8192
    warm = backend(warmup={"requests": [{"path": "/w", "body": "y" * 200_000}]})
    first, _ = render(warm)
    assert len(first["metadata"]["annotations"][labels.RENDERED]) < 8192
    assert render(warm, first, NEW) == (first, True)


def test_a_template_too_large_to_remember_is_rendered_each_time() -> None:
    """Hundreds of short variables: no record, so no promise, and no annotation that the apiserver refuses."""
    env = [{"name": f"A{number}", "value": "z" * 500} for number in range(200)]
    large = backend(model={"container": {"image": "i", "env": env}})
    first, _ = render(large)
    assert "annotations" not in first["metadata"]
    assert sidecar(render(large, first, NEW)[0])["image"] == "sidecar:2"


def test_the_hash_of_a_spec_is_of_what_was_said() -> None:
    """A field at its default counts as unsaid, as one that a later version adds will be for older specs.

    NB: these hashes stand in users' clusters: if one changes, an upgrade restarts every such model.
    """
    bare = ModelBackend.parse({"metadata": {"name": "b"}, "spec": {"model": {"container": {"image": "i"}}}})
    spelled = bare.model_dump(mode="json", by_alias=True)
    assert template_pinning.inputs_of(bare) == "44501fb1019cd062"
    assert template_pinning.inputs_of(ModelBackend.parse(spelled)) == "44501fb1019cd062"
    rich = backend(
        model={"python": {"target": "a:B", "image": "i", "initKwargs": {"n": 1}}, "port": 9000},
        drain={"timeout": "1s"},
        warmup={"requests": [{"path": "/w", "headers": {"a": "b"}}]},
        podTemplate={"volumes": [{"name": "v", "emptyDir": {}}], "tolerations": [{"operator": "Exists"}]},
        sidecar={"logLevel": "debug", "upgrade": "Now"},
    )
    assert template_pinning.inputs_of(rich) == "1eb3c9ae3efd0f87"
