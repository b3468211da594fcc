"""What the API server and the operator both check of a text: one form, two checkers."""

from __future__ import annotations

import pytest

from penstock_operator.api.fields import DURATION, NAME, PATH, Form, bytes_rule, duration_rule

QUOTES = Form(r"^'[a\\]$", r"expected 'a' or \, such as 'a")


@pytest.mark.parametrize(
    ("form", "text", "fits"),
    [
        (DURATION, "1m30s", True),
        (DURATION, "1m30s\n", False),
        (DURATION, "\u0661s", False),
        (NAME, "digits-2", True),
        (NAME, "Digits", False),
        (PATH, "/a\u00a0b", True),
        (PATH, "/a b", False),
    ],
)
def test_the_operator_reads_a_form_as_the_api_server_does(form: Form, text: str, fits: bool) -> None:
    """All of the text counts, and classes are of ASCII, as RE2's are."""
    if fits:
        assert form.check(text) == text
    else:
        with pytest.raises(ValueError, match=r"^expected "):
            form.check(text)


def test_a_forms_rule_shows_what_was_found() -> None:
    """Quotes and backslashes of the words are those of CEL."""
    assert QUOTES.rule == {
        "rule": r"""self.matches(r"^'[a\\]$")""",
        "message": r"expected 'a' or \, such as 'a",
        "messageExpression": r"""'expected \'a\' or \\, such as \'a, found ' + self""",
    }


@pytest.mark.parametrize(
    ("least", "most", "examples"),
    [("1ms", "24h", "500ms, 30s, 5m or 1h"), ("0s", "60s", "500ms or 30s"), ("10s", "10m", "30s or 5m")],
)
def test_examples_of_a_duration_are_within_its_bounds(least: str, most: str, examples: str) -> None:
    """And so is each that a message shows."""
    message = f"expected a duration from {least} to {most}, such as {examples}"
    assert duration_rule(least, most)["message"] == message


def test_bounds_in_bytes_hold_for_numbers_and_quantities() -> None:
    """A number is compared with the same bytes that a quantity is."""
    (rule,) = bytes_rule("1Ki", "1Gi")["x-kubernetes-validations"]
    assert "self >= 1024 && self <= 1073741824 :" in rule["rule"]
    assert "quantity('1Ki')" in rule["rule"]
    assert "quantity('1Gi')" in rule["rule"]
