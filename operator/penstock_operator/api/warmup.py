"""`spec.warmup` of a ModelBackend: requests that a model must answer before its pod is ready."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import ANY_OBJECT, Duration, Path, duration_rule, rules


class WarmupRequest(Part):
    """One request to the model."""

    path: Annotated[
        Path,
        Field(description="Path, with a query if any, such as /predict."),
    ]
    method: Annotated[
        Literal["GET", "POST", "PUT"], Field(description="HTTP method: GET, POST or PUT. Default POST.")
    ] = "POST"
    headers: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]],
        Field(
            max_length=32,
            description="Header fields to send. content-type is application/json unless it is among them.",
        ),
    ] = Field(default_factory=dict)
    body: Annotated[
        Any,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="The body: text is sent as it is, anything else as JSON. Default none.",
        ),
    ] = None


class Warmup(Part):
    """Requests to a new pod's model; the pod is ready once each was answered 2xx."""

    requests: Annotated[
        tuple[WarmupRequest, ...],
        Field(
            min_length=1,
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
            description="The requests, sent one after another, in this order; they go to the model as they "
            "are, unbatched. Together at most 256 KiB.",
        ),
    ]
    timeout: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("1ms", "1h")),
            description="The time that each of them has; one that was not answered 2xx within it is sent "
            "again. Default 60s.",
        ),
    ] = "60s"
