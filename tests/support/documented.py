"""Examples of the docs that tests take at their word."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def default_deny_example() -> str:
    """The NetworkPolicies that docs/operations.md gives to default-deny namespaces, as YAML."""
    text = (DOCS / "operations.md").read_text()
    _, mark, rest = text.partition("<!-- default-deny: example -->\n```yaml\n")
    assert mark
    return rest.partition("```")[0]
