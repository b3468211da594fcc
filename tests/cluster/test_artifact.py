"""A model's files from a bucket and from a volume: there before the model, the same in every pod."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from devcluster.network import FIRST
from penstock_wire.control.artifact import digest_of
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import MODEL_IMAGE, Namespace, endpoint
from tests.support.processes.s3_server import S3Server

CODE = """
import pathlib, penstock

class Label:
    def __init__(self, file="label.txt"): self.label = pathlib.Path("/mnt/models", file).read_text()[:7]

    @penstock.batched
    def predict(self, items: list) -> list: return [self.label] * len(items)
"""


def backend(name: str, uri: str, *, file: str = "label.txt", **artifact: Any) -> dict[str, Any]:
    """A class that answers what a file of its artifact begins with."""
    python: dict[str, Any] = {"target": "label:Label", "image": MODEL_IMAGE, "imagePullPolicy": "Never"}
    python["initKwargs"] = {"file": file}
    python["env"] = [{"name": "PYTHONPATH", "value": "/code"}]
    python["volumeMounts"] = [{"name": "code", "mountPath": "/code"}]
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {"name": name},
        "spec": {
            "model": {"python": python, "artifact": {"uri": uri, **artifact}},
            "podTemplate": {"volumes": [{"name": "code", "configMap": {"name": "label"}}]},
        },
    }


def test_every_pod_serves_the_files_of_the_first_download(namespace: Namespace, tmp_path: Path) -> None:
    """From another pod, or not at all if they were changed; missing ones are named; volumes are mounted."""
    secret = {"secretRef": {"name": "reader"}}

    def answer(name: str) -> str:
        return namespace.curl(namespace.url(name), body='{"instances": [1]}')[2]

    def words(name: str) -> str:
        return str(namespace.condition("modelbackend", name, "Ready").get("message"))

    with S3Server(FIRST.address, prefix=namespace.cluster.exec_prefix) as s3:
        s3.put("weights")
        s3.put("weights/digits/label.txt", b"first")
        namespace.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "reader"}, "stringData": s3.env},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "label"},
             "data": {"label.py": CODE}},
            backend("digits", "s3://weights/digits", **secret),
            backend("missing", "s3://weights/none", **secret),
            endpoint("digits", "digits"),
        )  # fmt: skip
        namespace.wait_ready("modelbackend", "digits")
        assert answer("digits") == '{"predictions":["first"]}'
        found = digest_of({"label.txt": hashlib.sha256(b"first").hexdigest()})

        def recorded() -> dict[str, Any]:
            return dict((namespace.get("modelbackend", "digits") or {})["status"].get("artifact") or {})

        wait_for("the digest of the first download", lambda: recorded().get("digest") == found)
        assert recorded()["bytes"] == 5
        absent = "expected an object or a prefix at s3://weights/none, found neither"
        wait_for("the words for a missing object", lambda: absent in words("missing"))

        s3.put("weights/digits/label.txt", b"second")
        namespace.kubectl("scale", "modelbackend/digits", "--replicas=2")
        wait_for(
            "a second pod",
            lambda: (namespace.get("modelbackend", "digits") or {})["status"].get("readyReplicas") == 2,
        )
        assert {answer("digits") for _ in range(4)} == {'{"predictions":["first"]}'}
        copied = namespace.kubectl("logs", "-l", "penstock.dev/backend=digits", "-c", "penstock-artifact")
        assert copied.count("copying from ") == 1
        namespace.kubectl("scale", "modelbackend/digits", "--replicas=0")
        wait_for("the end of its pods", lambda: not namespace.list("pods", "penstock.dev/backend=digits"))
        namespace.kubectl("scale", "modelbackend/digits", "--replicas=1")
        refusal = f"expected s3://weights/digits with digest {found}, found "
        wait_for("the refusal of other files", lambda: refusal in words("digits"))

    (tmp_path / "models").mkdir(mode=0o755)
    (tmp_path / "models" / "label.txt").write_text("claimed")
    volume = f"{namespace.name}-weights"
    size = {"storage": "1Mi"}
    namespace.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
         "spec": {"capacity": size, "accessModes": ["ReadOnlyMany"], "storageClassName": "",
                  "hostPath": {"path": str(tmp_path)}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "weights"},
         "spec": {"resources": {"requests": size}, "accessModes": ["ReadOnlyMany"], "storageClassName": "",
                  "volumeName": volume}},
        backend("claimed", "pvc://weights/models"),
        backend("image", f"oci://{MODEL_IMAGE}", file="etc/passwd"),
        endpoint("claimed", "claimed"),
        endpoint("image", "image"),
    )  # fmt: skip
    namespace.wait_ready("modelbackend", "claimed")
    assert answer("claimed") == '{"predictions":["claimed"]}'
    namespace.wait_ready("modelbackend", "image")
    assert answer("image") == '{"predictions":["root:x:"]}'
    namespace.kubectl("delete", "persistentvolume", volume, "--wait=false")
