"""The parts of core/v1 in a ModelBackend: the top level is described, the rest is checked in the pod."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import ANY_OBJECT, NOT_OURS, cel, map_list, rules

QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][0-9]+)?$"

Quantity = Annotated[
    int | Annotated[str, Field(pattern=QUANTITY, max_length=32)],
    Field(
        json_schema_extra=rules(
            # NB: in addition to the pattern: Kubernetes 1.33 reckons the cost for a text of 3 MB, whatever
            # maxLength is. To match the pattern in CEL would cost too much, as would this with 16 in a map.
            cel("type(self) == int || isQuantity(self)", "expected a quantity such as 500m, 2 or 4Gi"),
            x_kubernetes_int_or_string=True,
        )
    ),
]
"""A resource quantity, such as 500m or 2Gi."""

Words = Annotated[tuple[Annotated[str, Field(max_length=32_768)], ...], Field(max_length=1024)]


class EnvVar(Part):
    """One environment variable."""

    name: Annotated[str, Field(min_length=1, max_length=1024, description="Name of the variable.")]
    value: Annotated[
        str | None, Field(max_length=131_072, description="Its value; $(NAME) of an earlier one is expanded.")
    ] = None
    value_from: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="Where its value comes from: secretKeyRef, configMapKeyRef, fieldRef or "
            "resourceFieldRef, as in core/v1.",
        ),
    ] = None


Env = Annotated[
    tuple[EnvVar, ...],
    Field(max_length=512, json_schema_extra=map_list("name")),
]


class EnvFrom(Part):
    """A source of environment variables."""

    prefix: Annotated[str | None, Field(max_length=1024, description="Put before each name.")] = None
    config_map_ref: Annotated[
        dict[str, Any] | None,
        Field(json_schema_extra=ANY_OBJECT, description="The ConfigMap whose keys become variables."),
    ] = None
    secret_ref: Annotated[
        dict[str, Any] | None,
        Field(json_schema_extra=ANY_OBJECT, description="The Secret whose keys become variables."),
    ] = None


_FEW = {"maxProperties": 12}
"""NB: stored objects can have more, from before `Quantity` had a rule."""


class Resources(Part):
    """Compute resources of a container."""

    limits: Annotated[
        dict[str, Quantity] | None,
        Field(
            max_length=32,
            json_schema_extra=_FEW,
            description="The most it may use, such as {cpu: 2, nvidia.com/gpu: 1}.",
        ),
    ] = None
    requests: Annotated[
        dict[str, Quantity] | None,
        Field(max_length=32, json_schema_extra=_FEW, description="What is kept free for it on its node."),
    ] = None


class ResourcesWithClaims(Resources):
    """Compute resources of a container, with devices that are claimed."""

    claims: Annotated[
        tuple[Annotated[dict[str, Any], Field(json_schema_extra=ANY_OBJECT)], ...] | None,
        Field(max_length=32, description="Those of podTemplate.resourceClaims that it gets."),
    ] = None


class VolumeMount(Part):
    """The mount of a volume of podTemplate.volumes in the container."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            json_schema_extra=rules(NOT_OURS),
            description="Name of the volume.",
        ),
    ]
    mount_path: Annotated[
        str, Field(min_length=1, max_length=4096, description="Absolute path in the container.")
    ]
    sub_path: Annotated[
        str | None, Field(max_length=4096, description="Path inside the volume to mount instead of its root.")
    ] = None
    read_only: Annotated[bool | None, Field(description="Whether the container may only read it.")] = None


VolumeMounts = Annotated[
    tuple[VolumeMount, ...],
    Field(max_length=64, json_schema_extra=map_list("mountPath")),
]
