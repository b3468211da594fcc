"""KEDA in a cluster: the image of its programs, and its own manifests."""

import os
import tempfile
from pathlib import Path

from devcluster import images, programs
from devcluster.cluster import Cluster
from devcluster.console import step

IMAGE = "localhost/keda:dev"
NAMESPACE = "keda"
_PARTS = ("keda-operator", "keda-metrics-apiserver")
"""Its Deployments."""

_DOCKERFILE = "FROM scratch\nCOPY keda keda-adapter /\nUSER 65532:65532\n"
_KUSTOMIZATION = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{manifests}]
images:
- {{name: ghcr.io/kedacore/keda, newName: {name}, newTag: {tag}}}
- {{name: ghcr.io/kedacore/keda-metrics-apiserver, newName: {name}, newTag: {tag}}}
patches:
- target: {{kind: Deployment}}
  patch: '[{{"op": "replace", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "Never"}}]'
"""


def install(cluster: Cluster) -> None:
    """Build KEDA where it is missing, and install it with its own roles, but without its webhooks.

    Args:
        cluster: One that is up.

    Raises:
        DevclusterError: A build failed, or KEDA does not become ready.
    """
    programs.ensure("keda")
    built = programs.COMPONENTS["keda"].folder
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.joinpath("Dockerfile").write_text(_DOCKERFILE)
        images.build(dockerfile=folder / "Dockerfile", tag=IMAGE, context=built)
        cluster.load(IMAGE)
        name, _, tag = IMAGE.partition(":")
        manifests = os.path.relpath((built / "config/minimal").resolve(), folder.resolve())
        text = _KUSTOMIZATION.format(manifests=manifests, name=name, tag=tag)
        folder.joinpath("kustomization.yaml").write_text(text)
        with step(f"installing KEDA {programs.COMPONENTS['keda'].version}"):
            # NB: not applied by the client: its CRDs are larger than an annotation may be.
            cluster.kubectl("apply", "--server-side", "-k", str(folder))
            for part in _PARTS:
                rollout = ("rollout", "status", f"deployment/{part}", "--timeout=240s")
                cluster.kubectl("-n", NAMESPACE, *rollout, timeout=260)
            api = "apiservice/v1beta1.external.metrics.k8s.io"
            cluster.kubectl("wait", api, "--for=condition=Available", "--timeout=120s", timeout=140)
