"""Examples of the docs that tests take at their word."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def default_deny_example() -> str:
    """The NetworkPolicies that docs/operations/secure.md gives to default-deny namespaces, as YAML."""
    return (EXAMPLES / "default-deny.yaml").read_text()
