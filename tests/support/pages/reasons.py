"""The reasons that the operator's code may give a condition, read from its source."""

from __future__ import annotations

import ast
import gc
import re
import typing
from pathlib import Path

from penstock_operator import status
from penstock_operator.autoscaling.recommend import Verdict
from penstock_operator.releases.standing import TRUTHS
from penstock_operator.status import refusals

_WORD = re.compile(r"[A-Z][A-Za-z]+")

NOT_TOLD = {"Scale", "Steady", "Delayed", "FirstLook", "Panic"}
"""Verdicts of the autoscaler that never become a reason: there are reports where they are given."""


def strings(node: ast.AST) -> set[str]:
    """The words that an expression may come to."""
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and _WORD.fullmatch(each.value)
    }


def _parsed(path: Path) -> ast.Module:
    # NB: a collection meanwhile may end a task of another test, whose traceback asyncio logs, and so parses:
    # CPython before 3.11.8 then fails (gh-106905).
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def in_code() -> set[str]:
    """The third argument of every `condition(...)`, every `Trouble(reason=...)`, and those of a release."""
    reasons: set[str] = set()
    for path in Path(status.__file__).parent.glob("*.py"):
        for call in ast.walk(_parsed(path)):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id == "condition" and len(call.args) > 2:
                reasons |= strings(call.args[2])
            elif call.func.id == "Trouble":
                reasons |= {
                    word for key in call.keywords if key.arg == "reason" for word in strings(key.value)
                }
    tree = _parsed(Path(refusals.__file__))
    (function,) = (node for node in tree.body if getattr(node, "name", "") == "_reason")
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            reasons |= strings(node.value.elts[0])
    return reasons | set(TRUTHS) | (set(typing.get_args(Verdict)) - NOT_TOLD)
