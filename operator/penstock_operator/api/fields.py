"""Field types that several resources use, and helpers that put Kubernetes' own schema words on a field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from penstock_wire import durations


def cel(rule: str, message: str, *, expression: str | None = None, path: str | None = None) -> dict[str, str]:
    """One CEL rule of a schema.

    Args:
        rule: true where the value is well.
        message: what a user reads; also where `expression` fails.
        expression: CEL that makes the message, where it can say what was found.
        path: the field to blame, as `.name`, where it is not the one the rule stands on.
    """
    validation = {"rule": rule, "message": message}
    if expression is not None:
        validation["messageExpression"] = expression
    if path is not None:
        validation["fieldPath"] = path
    return validation


def rules(*validations: dict[str, str], **words: Any) -> dict[str, Any]:
    """`json_schema_extra` of a field or a model: CEL rules, and further words of the schema as `x_…`."""
    extra: dict[str, Any] = {"x-kubernetes-validations": list(validations)} if validations else {}
    extra.update({word.replace("_", "-"): value for word, value in words.items()})
    return extra


def duration_rule(least: str, most: str) -> dict[str, str]:
    """The rule that a duration lies between two others, ends included."""
    return cel(
        f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')",
        f"expected a duration from {least} to {most}",
        expression=f"'expected a duration from {least} to {most}, found ' + self",
    )


NOT_OURS = cel(
    "!self.startsWith('penstock-')",
    "expected a name that does not begin with penstock-, which is Penstock's own",
    expression="'expected a name that does not begin with penstock-, which is Penstock\\'s own, found ' "
    "+ self",
)
"""The rule that a volume is not one of those that Penstock renders."""


def map_list(*keys: str) -> dict[str, Any]:
    """`json_schema_extra` of a list whose elements are distinguished by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ANY_OBJECT: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""`json_schema_extra` of an object taken from core/v1 as it is: its fields are checked in the pod."""

Duration = Annotated[str, Field(pattern=durations.PATTERN, max_length=16)]
"""A duration as users write it, such as `250ms`, `30s`, `1m30s`."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

Name = Annotated[str, Field(pattern=NAME_PATTERN, min_length=1, max_length=50)]
"""The name of another resource of ours in the same namespace."""

IntOrPercent = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9]{1,3}%$", max_length=4)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
"""A count, or a percentage such as `25%`."""
