"""Every reason that a condition may have is in the operations page, and nothing else is."""

from __future__ import annotations

import ast
import re
import typing
from pathlib import Path

from penstock_operator import status
from penstock_operator.autoscaling.recommend import Verdict
from penstock_operator.status import refusals

PAGE = Path(__file__).parents[3] / "docs/operations.md"
_WORD = re.compile(r"[A-Z][A-Za-z]+")

NOT_TOLD = {"Scale", "Steady", "Delayed", "FirstLook"}
"""Verdicts of the autoscaler that never become a reason: there are reports where they are given."""


def strings(node: ast.AST) -> set[str]:
    """The words that an expression may come to."""
    return {
        found.value
        for found in ast.walk(node)
        if isinstance(found, ast.Constant) and isinstance(found.value, str) and _WORD.fullmatch(found.value)
    }


def in_code() -> set[str]:
    """The third argument of every `condition(...)`, and every `Trouble(reason=...)`."""
    found: set[str] = set()
    for path in Path(status.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id == "condition" and len(call.args) > 2:
                found |= strings(call.args[2])
            elif call.func.id == "Trouble":
                found |= {word for key in call.keywords if key.arg == "reason" for word in strings(key.value)}
    tree = ast.parse(Path(refusals.__file__).read_text())
    (function,) = (node for node in tree.body if getattr(node, "name", "") == "_reason")
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            found |= strings(node.value.elts[0])
    return found | (set(typing.get_args(Verdict)) - NOT_TOLD)


def in_page() -> set[str]:
    """The first column of the page's tables of reasons."""
    text = PAGE.read_text().split("## Conditions: meaning and what to do")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {word for cell in rows for word in re.findall(r"`([A-Za-z]+)`", cell)}


def test_every_reason_is_told_what_to_do_about() -> None:
    """Code and page name the same reasons."""
    assert in_page() == in_code()
    assert len(in_code()) > 40
