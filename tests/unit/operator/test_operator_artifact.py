"""The digest of an artifact's first download is recorded once and demanded of all pods; progress is shown."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock_operator.api import ModelBackend, ResourceError
from penstock_operator.desired import settings
from penstock_operator.desired.artifact import source
from penstock_operator.status.artifact import artifact_moved, artifact_status, demand
from penstock_wire.control.artifact import ArtifactState
from penstock_wire.control.report import SidecarReport


def backend(status: dict[str, Any] | None = None, **artifact: Any) -> ModelBackend:
    """A backend with an artifact."""
    model = {"container": {"image": "r.example/m:1"}, "artifact": {"uri": "s3://weights/digits", **artifact}}
    return ModelBackend.parse(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "ModelBackend",
            "metadata": {"name": "digits", "namespace": "demo", "uid": "u"},
            "spec": {"model": model},
            "status": {"artifact": status} if status else {},
        }
    )


def reports(of: ModelBackend, *states: dict[str, Any]) -> dict[str, SidecarReport]:
    """Reports of pods with these states."""
    assert of.spec.model.artifact is not None
    name = source(of.spec.model.artifact)
    return {
        f"pod-{number}": SidecarReport(
            pod=f"pod-{number}", uid="u", seq=1, state="loading", artifact=ArtifactState(source=name, **state)
        )
        for number, state in enumerate(states)
    }


def shown(of: ModelBackend, *states: dict[str, Any]) -> dict[str, Any]:
    """The status by these reports."""
    status = artifact_status(of, reports(of, *states))
    assert status is not None
    return status.document()


def test_a_digest_that_no_status_has_room_for_is_refused() -> None:
    """Else the apiserver would refuse the whole status."""
    sent = {"source": "s", "digest": "sha256:" + 65 * "a"}
    with pytest.raises(msgspec.ValidationError, match="length <= 71"):
        msgspec.convert(sent, ArtifactState)


DONE = {"here": 1000, "total": 1000}


def test_the_first_digest_stays_and_is_demanded() -> None:
    """A pod that has found another digest changes nothing; another uri begins anew."""
    first = shown(backend(), {**DONE, "digest": "sha256:a"}, {**DONE, "digest": "sha256:b"})
    assert (first["digest"], first["bytes"]) == ("sha256:a", 1000)
    recorded = backend(first)
    assert shown(recorded, {**DONE, "digest": "sha256:b"}) == first
    assert shown(recorded) == first
    demanded = demand(recorded)
    document = json.loads(settings.for_sidecar(recorded, None, artifact=demanded)(1))
    assert document["artifact"] == {"source": first["source"], "digest": "sha256:a"}
    assert "artifact" not in json.loads(settings.for_sidecar(backend(), None, artifact=demand(backend()))(1))

    other = backend(first, uri="s3://weights/digits-2")
    assert demand(other) is None
    assert shown(other) == {"source": source(other.spec.model.artifact)}  # type: ignore[arg-type] # it has one


def test_progress_is_shown_by_twentieths() -> None:
    """A status is not written for each report; the furthest pod is shown, until none downloads."""
    first = shown(backend(), {"here": 100, "total": 1000}, {"here": 300, "total": 1000, "rate": 7})
    assert first["progress"] == "0.3 of 1 kB, 7 bytes/s, 2 min left"
    seen = backend(first)
    assert not artifact_moved(seen, reports(seen, {"here": 340, "total": 1000, "rate": 9}))
    assert artifact_moved(seen, reports(seen, {"here": 360, "total": 1000}))
    done = reports(seen, {**DONE, "digest": "sha256:a"})
    assert artifact_moved(seen, done)
    assert "progress" not in shown(seen, {**DONE, "digest": "sha256:a"})


@pytest.mark.parametrize(
    ("artifact", "words"),
    [
        ({"uri": "ftp://host/a"}, "a URI such as s3://bucket/key"),
        ({"uri": "https://me:pw@host/a"}, "a URI such as s3://bucket/key"),
        ({"uri": "hf://repository"}, "a URI such as s3://bucket/key"),
        ({"digest": "sha256:abc"}, "64 hexadecimal digits"),
        ({"mountPath": "/"}, "an absolute path other than /"),
        ({"mountPath": "models"}, "an absolute path other than /"),
    ],
)
def test_what_cannot_be_is_refused(artifact: dict[str, Any], words: str) -> None:
    """Each with what to write instead."""
    with pytest.raises(ResourceError, match=words):
        backend(**artifact)


def test_a_volume_is_not_downloaded() -> None:
    """A claim has no status of a download."""
    volume = backend(uri="pvc://weights/digits")
    assert artifact_status(volume, {}) is None
    assert not artifact_moved(volume, {})
