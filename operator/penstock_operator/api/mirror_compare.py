"""The comparison of a mirror's answers with the served ones."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import Form, rules
from penstock_wire.control.router_settings import IGNORED_PATH_PATTERN

_IGNORED = Form(
    IGNORED_PATH_PATTERN,
    "expected a path of JSON from its root $, such as $.usage, $.predictions[*].id or $['a name']",
)


class MirrorCompare(Part):
    """The comparison of a mirror's answers with the served ones."""

    ignore: Annotated[
        tuple[
            Annotated[
                str,
                Field(max_length=256, json_schema_extra=rules(_IGNORED.rule)),
                AfterValidator(_IGNORED.check),
            ],
            ...,
        ],
        Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
            description="Paths of JSON that are left out, with all below them, such as $.usage, "
            "$.predictions[*].id or $['a name'].",
        ),
    ] = ()
    tolerance: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Two numbers are alike where they differ by no more than this times the larger of 1 "
            "and their magnitudes. 0 = equal.",
        ),
    ] = 0.0
    show_values: Annotated[
        bool,
        Field(
            description="Whether the status shows the two values where answers differ first, cut after 48 "
            "characters: who may read the TrafficSplit then sees parts of clients' answers. Else it shows "
            "their types.",
        ),
    ] = False
