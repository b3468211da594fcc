"""The kinds of objects that the operator touches, and their REST paths.

They are listed, not discovered: the operator cannot read or write other kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "penstock.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of Kubernetes objects."""

    kind: str
    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """As in a manifest: ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of a collection, an object or its subresource.

        Args:
            namespace: None for the collection over all namespaces and for cluster-scoped kinds.
            name: None for the collection.
            subresource: ``status`` or ``scale``.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        where = f"/namespaces/{namespace}" if namespace else ""
        tail = f"/{name}" if name else ""
        sub = f"/{subresource}" if subresource else ""
        return f"{root}{where}/{self.plural}{tail}{sub}"


def _ours(kind: str, plural: str) -> Kind:
    return Kind(kind=kind, group=GROUP, version=VERSION, plural=plural)


BACKEND = _ours("ModelBackend", "modelbackends")
ENDPOINT = _ours("ModelEndpoint", "modelendpoints")
SPLIT = _ours("TrafficSplit", "trafficsplits")
POLICY = _ours("BatchPolicy", "batchpolicies")

DEPLOYMENT = Kind(kind="Deployment", group="apps", version="v1", plural="deployments")
SERVICE = Kind(kind="Service", group="", version="v1", plural="services")
CONFIG_MAP = Kind(kind="ConfigMap", group="", version="v1", plural="configmaps")
SERVICE_ACCOUNT = Kind(kind="ServiceAccount", group="", version="v1", plural="serviceaccounts")
POD = Kind(kind="Pod", group="", version="v1", plural="pods")
ROLE_BINDING = Kind(
    kind="RoleBinding", group="rbac.authorization.k8s.io", version="v1", plural="rolebindings"
)
DISRUPTION_BUDGET = Kind(
    kind="PodDisruptionBudget", group="policy", version="v1", plural="poddisruptionbudgets"
)
NAMESPACE = Kind(kind="Namespace", group="", version="v1", plural="namespaces")
POD_AUTOSCALER = Kind(
    kind="HorizontalPodAutoscaler", group="autoscaling", version="v2", plural="horizontalpodautoscalers"
)
NETWORK_POLICY = Kind(kind="NetworkPolicy", group="networking.k8s.io", version="v1", plural="networkpolicies")
LEASE = Kind(kind="Lease", group="coordination.k8s.io", version="v1", plural="leases")
ENDPOINT_SLICE = Kind(kind="EndpointSlice", group="discovery.k8s.io", version="v1", plural="endpointslices")
EVENT = Kind(kind="Event", group="events.k8s.io", version="v1", plural="events")
SECRET = Kind(kind="Secret", group="", version="v1", plural="secrets")
TOKEN_REVIEW = Kind(kind="TokenReview", group="authentication.k8s.io", version="v1", plural="tokenreviews")

PARENTS = (BACKEND, ENDPOINT, SPLIT, POLICY)
"""Kinds that users write."""

CHILDREN = (
    DEPLOYMENT,
    SERVICE,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    ROLE_BINDING,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD_AUTOSCALER,
    ENDPOINT_SLICE,
)
"""Kinds that we render, in the order in which they are applied last (see reconcile)."""

WATCHED_CHILDREN = (*CHILDREN, POD)
"""Kinds that are watched with our label; Deployments make the pods, not we."""

BY_KIND: dict[str, Kind] = {
    kind.kind: kind for kind in (*PARENTS, *WATCHED_CHILDREN, NAMESPACE, LEASE, EVENT, SECRET, TOKEN_REVIEW)
}


def kind_of(obj: dict[str, object]) -> Kind:
    """The kind of a manifest.

    Raises:
        KeyError: the operator knows no such kind.
    """
    return BY_KIND[str(obj["kind"])]
