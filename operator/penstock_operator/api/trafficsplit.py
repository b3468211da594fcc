"""TrafficSplit: how an endpoint's requests are shared among backends."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from penstock_operator.api.base import Part, Resource
from penstock_operator.api.conditions import Status
from penstock_operator.api.fields import Name, cel, map_list, rules
from penstock_operator.api.match import MatchList
from penstock_wire.control.traffic_rules import OnMissing


class SplitBackend(Part):
    """One backend and its share."""

    name: Annotated[Name, Field(description="Name of the ModelBackend, in the same namespace.")]
    weight: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="Its share of the requests, relative to the sum of all weights. 0 = none.",
        ),
    ]
    match: Annotated[
        MatchList,
        Field(
            description="Rules: a request that matches one of them is this backend's, whatever the weights. "
            "The first backend of the list with such a rule gets it; all other requests are shared by "
            "weight."
        ),
    ] = ()


class TrafficSplitSpec(Part):
    """Which endpoint, and who serves how much of it."""

    endpoint: Annotated[
        Name,
        Field(
            description="Name of the ModelEndpoint, in the same namespace. Where two splits name one "
            "endpoint, the oldest stands."
        ),
    ]
    backends: Annotated[
        tuple[SplitBackend, ...],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra=map_list("name")
            | rules(
                cel(
                    "self.exists(b, b.weight > 0)",
                    "expected at least one backend with a weight above 0, found none",
                )
            ),
            description="The backends and their weights; names are unique, the weights are proportional.",
        ),
    ]
    on_missing: Annotated[
        OnMissing,
        Field(
            description="What becomes of the requests of a backend that does not exist. Share: the others "
            "have them, by weight. Fail: they are answered 503 at once. Default Share."
        ),
    ] = "Share"


class SplitWeight(Part):
    """How far a weight has come."""

    name: Annotated[str, Field(description="Name of the ModelBackend.")]
    desired: Annotated[int, Field(description="The weight that the spec asks for.")]
    applied: Annotated[
        int | None,
        Field(description="The weight that all ready routers have taken up; absent until they have."),
    ] = None


class TrafficSplitStatus(Status):
    """What Penstock observed of a TrafficSplit."""

    shares: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="The backends and the shares that the spec asks for, in one line: one 90%, two 10%.",
        ),
    ] = None
    weights: Annotated[
        tuple[SplitWeight, ...],
        Field(
            default=(), json_schema_extra=map_list("name"), description="The weights, asked for and taken up."
        ),
    ] = ()


class TrafficSplit(Resource):
    """How an endpoint's requests are shared among backends."""

    plural: ClassVar[str] = "trafficsplits"

    spec: Annotated[TrafficSplitSpec, Field(description="Which endpoint, and who serves how much of it.")]
    status: Annotated[
        TrafficSplitStatus, Field(description="What Penstock observed. Written by the operator alone.")
    ] = TrafficSplitStatus()
