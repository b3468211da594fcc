"""Other projects' programs in a cluster: an image of what is built here, and their own manifests."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devcluster import images, programs
from devcluster.cluster import Cluster
from devcluster.console import step


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Addon:
    """What to install.

    Attributes:
        component: Of `programs.COMPONENTS`; its copy `config` has the manifests.
        manifests: The folder of a kustomization, in `config`.
        images: Those that the manifests name; each is replaced by ours.
        namespace: Where it runs.
        deployments: What must become ready.
        api: The API group and version that must be served.
        patch: Operations on each Deployment, beside the one that forbids a pull.
    """

    component: str
    manifests: str
    images: tuple[str, ...]
    namespace: str
    deployments: tuple[str, ...]
    api: str
    patch: tuple[Mapping[str, Any], ...] = ()


_CONTAINER = "/spec/template/spec/containers/0"
KEDA = Addon(  # without its webhooks
    component="keda",
    manifests="minimal",
    images=("ghcr.io/kedacore/keda", "ghcr.io/kedacore/keda-metrics-apiserver"),
    namespace="keda",
    deployments=("keda-operator", "keda-metrics-apiserver"),
    api="v1beta1.external.metrics.k8s.io",
)
METRICS_SERVER = Addon(
    component="metrics-server",
    manifests=".",
    images=("gcr.io/k8s-staging-metrics-server/metrics-server",),
    namespace="kube-system",
    deployments=("metrics-server",),
    api="v1beta1.metrics.k8s.io",
    patch=(
        {"op": "add", "path": f"{_CONTAINER}/command", "value": ["/metrics-server"]},
        # A kubelet here signs its certificate itself.
        {"op": "add", "path": f"{_CONTAINER}/args/-", "value": "--kubelet-insecure-tls"},
    ),
)


def install(cluster: Cluster, addon: Addon) -> None:
    """Build the programs where they are missing, and install them with their own roles.

    Args:
        cluster: One that is up.
        addon: `KEDA` or `METRICS_SERVER`.

    Raises:
        DevclusterError: A build failed, or something does not become ready.
    """
    component = programs.COMPONENTS[addon.component]
    programs.ensure(component.name)
    image = f"localhost/{component.name}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dockerfile = f"FROM scratch\nCOPY {' '.join(component.binaries)} /\nUSER 65532:65532\n"
        folder.joinpath("Dockerfile").write_text(dockerfile)
        images.build(dockerfile=folder / "Dockerfile", tag=f"{image}:dev", context=component.folder)
        cluster.load(f"{image}:dev")
        manifests = (component.folder / "config" / addon.manifests).resolve()
        pull = {"op": "replace", "path": f"{_CONTAINER}/imagePullPolicy", "value": "Never"}
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(manifests, folder.resolve())],
            "images": [{"name": name, "newName": image, "newTag": "dev"} for name in addon.images],
            "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps([pull, *addon.patch])}],
        }
        folder.joinpath("kustomization.yaml").write_text(json.dumps(kustomization))
        with step(f"installing {component.name} {component.version}"):
            # NB: not applied by the client: KEDA's CRDs are larger than an annotation may be.
            cluster.kubectl("apply", "--server-side", "-k", str(folder))
            for name in addon.deployments:
                rollout = ("rollout", "status", f"deployment/{name}", "--timeout=240s")
                cluster.kubectl("-n", addon.namespace, *rollout, timeout=260)
            available = (f"apiservice/{addon.api}", "--for=condition=Available", "--timeout=120s")
            cluster.kubectl("wait", *available, timeout=140)
