"""The condition that every status carries, as in core Kubernetes (metav1.Condition)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import map_list


class Condition(Part):
    """One aspect of the state of a resource."""

    type: Annotated[str, Field(max_length=64, description="What the condition is about, such as Ready.")]
    status: Annotated[
        Literal["True", "False", "Unknown"],
        Field(description="Whether it holds. Unknown: Penstock cannot see it at present."),
    ]
    reason: Annotated[
        str, Field(max_length=64, description="One CamelCase word for the cause, meant for programs.")
    ]
    message: Annotated[
        str, Field(max_length=4096, description="The cause in words, meant for people; it may be empty.")
    ] = ""
    observed_generation: Annotated[
        int, Field(description="The metadata.generation of the resource that this condition is about.")
    ] = 0
    last_transition_time: Annotated[
        str,
        Field(
            description="When the condition last changed its status.",
            json_schema_extra={"format": "date-time"},
        ),
    ] = ""


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        default=(),
        max_length=16,
        json_schema_extra=map_list("type"),
        description="The aspects of the resource's state, one entry for each type. Ready is the summary.",
    ),
]
"""The conditions of a status, a list keyed by type."""


class Status(Part):
    """The members that the status of every kind has."""

    observed_generation: Annotated[
        int | None,
        Field(description="The metadata.generation that this status was computed from."),
    ] = None
    conditions: Conditions = ()

    def document(self) -> dict[str, Any]:
        """Return the status as the API spells it, without members that are None or empty objects.

        The API server makes null of an object that an apply empties, and then refuses that null
        (https://github.com/kubernetes-sigs/structured-merge-diff/issues/305). It keeps emptied lists.
        """
        filled: dict[str, Any] = _filled(super().document())
        return filled


def _filled(value: Any) -> Any:
    """Return what JSON can say without the members of its objects that are empty objects."""
    if isinstance(value, dict):
        filled = {name: _filled(member) for name, member in value.items()}
        return {name: member for name, member in filled.items() if member != {}}
    return [_filled(item) for item in value] if isinstance(value, list) else value
