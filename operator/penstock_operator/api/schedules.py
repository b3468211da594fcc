"""`autoscaling.schedules`: limits on replicas that depend on the time."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import Form, cel, quoted, rules


def _field(number: str, names: str = "") -> str:
    value = f"({number}{names})"
    item = f"([*]|{value}(-{value})?)(/[1-9][0-9]?)?"
    return f"{item}(,{item})*"


CRON = " ".join(
    (
        "^" + _field("[0-5]?[0-9]"),
        _field("[01]?[0-9]|2[0-3]"),
        _field("0?[1-9]|[12][0-9]|3[01]"),
        _field("0?[1-9]|1[0-2]", "|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"),
        _field("[0-7]", "|SUN|MON|TUE|WED|THU|FRI|SAT") + "$",
    )
)
"""Minute, hour, day of the month, month, day of the week."""

_CRON = Form(
    CRON,
    "expected a cron expression of five fields (minute 0-59, hour 0-23, day 1-31, month 1-12 or JAN-DEC, "
    "day of the week 0-7 or SUN-SAT), such as 0 8 * * MON-FRI",
)
_NAME = Form(
    r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
    "expected lower-case letters, digits and -, beginning with a letter and not ending with -, such as "
    "office-hours",
)
_ZONE = Form(
    r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$",
    "expected a time zone of the IANA database, such as Europe/Berlin",
)

Cron = Annotated[str, Field(max_length=64, json_schema_extra=rules(_CRON.rule)), AfterValidator(_CRON.check)]


class Schedule(Part):
    """Limits that hold from each `start` to the next `end`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.minReplicas) || has(self.maxReplicas)",
                "expected minReplicas, maxReplicas or both: what is to hold from start to end",
            ),
            cel(
                "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "expected minReplicas of at most maxReplicas",
                expression="'expected minReplicas of at most maxReplicas (%d), found %d'"
                ".format([self.maxReplicas, self.minReplicas])",
            ),
            cel("self.start != self.end", "expected start and end at different times, found the same"),
        )
    )

    name: Annotated[
        str,
        Field(
            max_length=50,
            json_schema_extra=rules(_NAME.rule),
            description="What it is called in status and conditions.",
        ),
        AfterValidator(_NAME.check),
    ]
    time_zone: Annotated[
        str,
        Field(
            max_length=64,
            json_schema_extra=rules(
                # NB: a zone unknown to the API server makes the rule fail with an error that names it.
                cel(
                    f"{_ZONE.matches} && timestamp('2026-01-01T00:00:00Z').getHours(self) >= 0",
                    _ZONE.expected,
                    expression=f"{quoted(_ZONE.expected + ', found ')} + self",
                )
            ),
            description="The time zone of start and end, by its IANA name, as Europe/Berlin. Default UTC.",
        ),
        AfterValidator(_ZONE.check),
    ] = "UTC"
    start: Annotated[
        Cron,
        Field(
            description="When the limits begin to hold, in cron's form: minute, hour, day of the month, "
            "month, day of the week. 0 8 * * MON-FRI: on working days at 8:00."
        ),
    ]
    end: Annotated[Cron, Field(description="When they hold no longer, in the same form.")]
    min_replicas: Annotated[
        int | None,
        Field(
            ge=0,
            le=1000,
            description="Replicas at least. 0 needs scaleToZero.after. Default: autoscaling.minReplicas.",
        ),
    ] = None
    max_replicas: Annotated[
        int | None,
        Field(ge=1, le=1000, description="Replicas at most. Default: autoscaling.maxReplicas."),
    ] = None
