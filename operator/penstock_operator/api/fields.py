"""Field types that several resources use, and helpers that add Kubernetes' schema keywords to a field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from penstock_wire import durations
from penstock_wire.quantities import PATTERN, bytes_of


def cel(rule: str, message: str, *, expression: str | None = None, path: str | None = None) -> dict[str, str]:
    """One CEL rule of a schema.

    Args:
        rule: true if the value is valid.
        message: what a user reads; also if `expression` fails.
        expression: CEL that makes the message, if it can include what was found.
        path: the field to blame, as `.name`, if it is not the one that has the rule.
    """
    validation = {"rule": rule, "message": message}
    if expression is not None:
        validation["messageExpression"] = expression
    if path is not None:
        validation["fieldPath"] = path
    return validation


def quoted(text: str) -> str:
    """Return a text as a CEL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def rules(*validations: dict[str, str], **words: Any) -> dict[str, Any]:
    """`json_schema_extra` of a field or a model: CEL rules, and further schema keywords, `-` as `_`."""
    extra: dict[str, Any] = {"x-kubernetes-validations": list(validations)} if validations else {}
    extra.update({word.replace("_", "-"): value for word, value in words.items()})
    return extra


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a text: a rule for the API server, a validator for the operator.

    It replaces the schema's `pattern`: for that, the API server's error has only the regular expression.

    Args:
        pattern: regular expression that the whole text matches, in the common syntax of RE2 and Python.
        expected: what to write, with an example: `expected … such as …`.
    """

    pattern: str
    expected: str

    @property
    def matches(self) -> str:
        """The CEL expression that is true for a text of this form."""
        return f'self.matches(r"{self.pattern}")'

    @property
    def rule(self) -> dict[str, str]:
        """The CEL rule for the field."""
        return cel(self.matches, self.expected, expression=f"{quoted(self.expected + ', found ')} + self")

    def check(self, text: str) -> str:
        """Return the text if it has this form.

        Raises:
            ValueError: it does not.
        """
        # NB: RE2's character classes are ASCII only.
        if re.fullmatch(self.pattern, text, re.ASCII) is None:
            raise ValueError(self.expected)
        return text


DURATION = Form(durations.PATTERN, "expected a duration such as 500ms, 30s, 5m or 1h")
"""A duration, without bounds."""

_EXAMPLES = ("500ms", "30s", "5m", "1h")


def duration_rule(least: str, most: str) -> dict[str, str]:
    """The rule that a text is a duration between two others, ends included."""
    ends = range(durations.parse_ms(least), durations.parse_ms(most) + 1)
    fit = [each for each in _EXAMPLES if durations.parse_ms(each) in ends]
    examples = " or ".join(filter(None, (", ".join(fit[:-1]), fit[-1])))
    message = f"expected a duration from {least} to {most}, such as {examples}"
    return cel(
        f"{DURATION.matches} && duration(self) >= duration('{least}') && "
        f"duration(self) <= duration('{most}')",
        message,
        expression=f"{quoted(message + ', found ')} + self",
    )


NOT_OURS = cel(
    "!self.startsWith('penstock-')",
    "expected a name that does not begin with penstock-, which is Penstock's own",
    expression="'expected a name that does not begin with penstock-, which is Penstock\\'s own, found ' "
    "+ self",
)
"""The rule that a name is not reserved for what Penstock renders."""


def gone(value: str, instead: str) -> BeforeValidator:
    """A validator that refuses a value which older versions had.

    Args:
        value: the value; it may be of another type than the field's.
        instead: what to use instead, as one phrase.
    """

    def check(found: Any) -> Any:
        if found == value:
            raise ValueError(f"{value} is gone: {instead}")
        return found

    return BeforeValidator(check)


def map_list(*keys: str) -> dict[str, Any]:
    """`json_schema_extra` of a list whose elements are distinguished by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ANY_OBJECT: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""`json_schema_extra` of an object that is passed on unchanged: its fields are checked in the pod."""

Duration = Annotated[str, Field(max_length=16), AfterValidator(DURATION.check)]
"""A duration as users write it, such as `250ms`, `30s`, `1m30s`. NB: each field has a `duration_rule`."""

NAME = Form(
    r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
    "expected the name of a resource of Penstock, such as digits-2: lower-case letters, digits and -, "
    "beginning with a letter and not ending with -",
)

Name = Annotated[str, Field(max_length=50, json_schema_extra=rules(NAME.rule)), AfterValidator(NAME.check)]
"""The name of another Penstock resource in the same namespace."""

PATH = Form(r"^/\S*$", "expected a path that begins with / and has no blanks, such as /v1/health")

Path = Annotated[str, Field(max_length=1024, json_schema_extra=rules(PATH.rule)), AfterValidator(PATH.check)]
"""A path of the model's server."""


def _count(value: int | str) -> int | str:
    if value < 0 if isinstance(value, int) else re.fullmatch("[0-9]{1,3}%", value, re.ASCII) is None:
        raise ValueError(_COUNT)
    return value


_COUNT = "expected a number of at least 0, or a percentage such as 25%"

IntOrPercent = Annotated[
    int | str,
    AfterValidator(_count),
    Field(
        json_schema_extra=rules(
            cel(
                'type(self) == int ? self >= 0 : self.matches(r"^[0-9]{1,3}%$")',
                _COUNT,
                expression=f"{quoted(_COUNT + ', found ')} + string(self)",
            ),
            x_kubernetes_int_or_string=True,
            maxLength=4,
        )
    ),
]
"""A count, or a percentage such as `25%`."""


def bytes_rule(least: str, most: str) -> dict[str, Any]:
    """`json_schema_extra` of a field of `Bytes`: its bounds."""
    message = f"expected from {least} to {most}, as a number of bytes or a quantity such as 10Mi"
    return rules(
        cel(
            f"type(self) == int ? self >= {bytes_of(least)} && self <= {bytes_of(most)} : "
            f"self.matches(r\"{PATTERN}\") && quantity(self).compareTo(quantity('{least}')) >= 0 && "
            f"quantity(self).compareTo(quantity('{most}')) <= 0",
            message,
            expression=f"{quoted(message + ', found ')} + string(self)",
        ),
        x_kubernetes_int_or_string=True,
        maxLength=18,
    )


def _bytes(value: int | str) -> int | str:
    try:
        count = bytes_of(value)
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError("expected a number of bytes, or a quantity such as 32Mi")
    return value


Bytes = Annotated[int | str, AfterValidator(_bytes)]
"""A number of bytes, or a quantity such as `32Mi`. NB: each field has a `bytes_rule`."""
