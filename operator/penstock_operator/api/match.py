"""Rules that a request matches by its own header fields and cookies."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import Form, cel, rules
from penstock_wire.control import traffic_rules
from penstock_wire.control.router_settings import HEADER_PATTERN
from penstock_wire.control.traffic_rules import MAX_REGEX, RegexBudget

_FIELD_NAME = Form(
    HEADER_PATTERN,
    "expected the name of a header field or a cookie, such as x-group: letters, digits, - and _, without "
    "blanks, = and :",
)

FieldName = Annotated[
    str, Field(max_length=128, json_schema_extra=rules(_FIELD_NAME.rule)), AfterValidator(_FIELD_NAME.check)
]
"""The name of a header field or of a cookie."""
_Text = Annotated[str, Field(max_length=256)]


MATCH_RULES = rules(
    cel(
        "has(self.header) != has(self.cookie)",
        "expected one of header and cookie",
        expression="'expected one of header and cookie, found ' + (has(self.header) ? 'both' : 'none')",
    ),
    cel(
        "[has(self.value), has(self.prefix), has(self.regex)].filter(each, each).size() == 1",
        "expected one of value, prefix and regex",
        expression="'expected one of value, prefix and regex, found ' + "
        "(has(self.value) || has(self.prefix) || has(self.regex) ? 'several' : 'none')",
    ),
)
"""The CEL rules that each match rule must satisfy."""


class Match(Part):
    """One header field or one cookie, and a condition on its value."""

    header: Annotated[
        FieldName | None, Field(description="Name of the header field, in any case. This or cookie.")
    ] = None
    cookie: Annotated[
        FieldName | None, Field(description="Name of the cookie, in its case. This or header.")
    ] = None
    value: Annotated[
        _Text | None,
        Field(description="The value is exactly this. One of value, prefix and regex."),
    ] = None
    prefix: Annotated[
        _Text | None,
        Field(description="The value begins with this; empty = any value. One of value, prefix and regex."),
    ] = None
    regex: Annotated[
        str | None,
        Field(
            max_length=MAX_REGEX,
            json_schema_extra=rules(
                # NB: an unreadable expression makes the rule fail with an error that says what is wrong.
                cel("''.matches(self) in [true, false]", "expected a regular expression of RE2")
            ),
            description="All of the value, of at most 1024 bytes, matches this regular expression of RE2. "
            "One of value, prefix and regex.",
        ),
    ] = None


MatchList = Annotated[
    tuple[Annotated[Match, Field(json_schema_extra=MATCH_RULES)], ...],
    Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
]
"""Match rules; a request has to match one of them."""


def settings(rules: tuple[Match, ...]) -> tuple[traffic_rules.Match, ...]:
    """Convert rules to the router's settings."""
    return tuple(
        traffic_rules.Match(
            header=rule.header, cookie=rule.cookie, value=rule.value, prefix=rule.prefix, regex=rule.regex
        )
        for rule in rules
    )


def faults(rules: tuple[Match, ...], where: str, budget: RegexBudget) -> tuple[str, ...]:
    """The rules that the router leaves out, and why: faults that the API server cannot detect.

    Args:
        budget: for their expressions, and those of rules that are tried with them.
    """
    slips = ((number, traffic_rules.match_slip(rule, budget)) for number, rule in enumerate(settings(rules)))
    return tuple(f"{where}[{number}]{slip}" for number, slip in slips if slip)
