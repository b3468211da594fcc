"""`spec.podTemplate` of a ModelBackend: all of its pods except the model and the sidecar."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from penstock_operator.api.base import Part
from penstock_operator.api.core import VolumeMounts
from penstock_operator.api.fields import (
    ANY_OBJECT,
    NOT_OURS,
    cel,
    map_list,
    rules,
)

Raw = Annotated[dict[str, Any], Field(json_schema_extra=ANY_OBJECT, description="One entry, as in core/v1.")]
"""An entry of a core/v1 list, passed on unchanged."""


class Volume(Part):
    """A volume of the pods, as in core/v1."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            json_schema_extra=rules(NOT_OURS),
            description="Name of the volume, for volumeMounts.",
        ),
    ]


class Container(Part):
    """A further container of the pods, as in core/v1, with a subset of its `volumeMounts`."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            json_schema_extra=rules(
                NOT_OURS,
                cel("self != 'model'", "expected a name other than model, which is the model container's"),
            ),
            description="Name of the container.",
        ),
    ]
    volume_mounts: Annotated[
        VolumeMounts, Field(description="Volumes of podTemplate.volumes that the container sees.")
    ] = ()
    security_context: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="The container's securityContext, as in core/v1; its fields replace Penstock's one "
            "by one. Default: restricted, as the model container's.",
        ),
    ] = None


_LABEL_OF_OURS = (
    "(k.startsWith('penstock.dev/') || k in ['app.kubernetes.io/name', 'app.kubernetes.io/managed-by'])"
)
"""Whether a label `k` is Penstock's, in CEL."""


class PodTemplate(Part):
    """The parts of the pods other than the model and the sidecar."""

    labels: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                cel(
                    f"!self.exists(k, {_LABEL_OF_OURS})",
                    "expected no label penstock.dev/..., app.kubernetes.io/name or "
                    "app.kubernetes.io/managed-by: they are Penstock's",
                    expression="'expected no label penstock.dev/..., app.kubernetes.io/name or "
                    "app.kubernetes.io/managed-by: they are Penstock\\'s, found %s'"
                    f".format([self.filter(k, {_LABEL_OF_OURS})])",
                )
            ),
            description="Labels of the pods.",
        ),
    ] = Field(default_factory=dict)
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=262_144)]],
        Field(max_length=64, description="Annotations of the pods."),
    ] = Field(default_factory=dict)
    volumes: Annotated[
        tuple[Volume, ...],
        Field(
            max_length=64,
            json_schema_extra=map_list("name"),
            description="Volumes of the pods, as in core/v1. Names that begin with penstock- are Penstock's.",
        ),
    ] = ()
    init_containers: Annotated[
        tuple[Container, ...],
        Field(
            max_length=16,
            json_schema_extra=map_list("name"),
            description="Containers that run to their end before the model starts, one after the other, such "
            "as one that fetches weights; the sidecar runs beside them.",
        ),
    ] = ()
    containers: Annotated[
        tuple[Container, ...],
        Field(
            max_length=16,
            json_schema_extra=map_list("name"),
            description="Containers that run beside the model. When the pod goes away they are told to end "
            "at once, while the model still drains.",
        ),
    ] = ()
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(max_length=64, description="Labels that a node must have."),
    ] = Field(default_factory=dict)
    affinity: Annotated[
        dict[str, Any] | None,
        Field(json_schema_extra=ANY_OBJECT, description="Affinity to nodes and pods, as in core/v1."),
    ] = None
    tolerations: Annotated[
        tuple[Raw, ...], Field(max_length=64, description="Taints that the pods tolerate, as in core/v1.")
    ] = ()
    topology_spread_constraints: Annotated[
        tuple[Raw, ...],
        Field(max_length=64, description="How the pods spread over the cluster, as in core/v1."),
    ] = ()
    priority_class_name: Annotated[
        str | None, Field(max_length=253, description="PriorityClass of the pods.")
    ] = None
    runtime_class_name: Annotated[
        str | None, Field(max_length=253, description="RuntimeClass of the pods.")
    ] = None
    scheduler_name: Annotated[
        str | None,
        Field(max_length=253, description="Scheduler that places the pods. Default: Kubernetes' own."),
    ] = None
    resource_claims: Annotated[
        tuple[Raw, ...],
        Field(
            max_length=32,
            description="ResourceClaims or their templates, such as for GPUs, as in core/v1; the model's "
            "resources.claims names those that its container gets.",
        ),
    ] = ()
    host_aliases: Annotated[
        tuple[Raw, ...],
        Field(max_length=64, description="Lines of the pods' /etc/hosts, as in core/v1."),
    ] = ()
    dns_policy: Annotated[
        Literal["ClusterFirst", "Default", "None"] | None,
        Field(description="How the pods find names. Default: Kubernetes' own, ClusterFirst."),
    ] = None
    dns_config: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="Name servers, search domains and options of the pods, as in core/v1.",
        ),
    ] = None
    image_pull_secrets: Annotated[
        tuple[Raw, ...],
        Field(max_length=16, description="Secrets to pull images with, each {name: ...}, as in core/v1."),
    ] = ()
    service_account_name: Annotated[
        str | None,
        Field(
            max_length=253,
            description="ServiceAccount of the pods. Its token is never mounted into the model container. "
            "Default, when absent: <name>-backend, made by Penstock, without any right.",
        ),
    ] = None
    security_context: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="securityContext of the pods, as in core/v1; its fields replace Penstock's one by "
            "one. Default: non-root, group 65532 for volumes (OnRootMismatch), RuntimeDefault seccomp.",
        ),
    ] = None
