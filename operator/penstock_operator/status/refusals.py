"""The apiserver's reason for refusing a write, in one word and in its own words."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_wire.words import cut

_SAID = 1500
"""Characters of the server's message that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A write that the apiserver refused.

    Args:
        reason: one CamelCase word, for a condition.
        message: the object of the write, and the server's message, cut to a bounded length.
        passing: whether it is tried again within moments and may succeed; else a user must act.
    """

    reason: str
    message: str
    passing: bool


def refusal(what: str, status: int, message: str) -> Refusal:
    """Read an apiserver's refusal: there are no codes for these, and its messages have kept their form."""
    words = " ".join(message.split())
    text = f"{what}: {cut(words, _SAID)}"
    reason, passing = _reason(status, message)
    return Refusal(reason=reason, message=text, passing=passing)


def _reason(status: int, message: str) -> tuple[str, bool]:
    if "failed calling webhook" in message:
        return "WebhookFailed", True
    if "admission webhook" in message and "denied the request" in message:
        return "WebhookDenied", False
    if "AdmissionPolicy '" in message and "denied request" in message:
        return "PolicyDenied", False
    if status == 403 and ("exceeded quota" in message or "failed quota" in message):
        return "QuotaExceeded", False
    if status == 403 and "cannot" in message and "User " in message:
        return "Forbidden", False
    if status == 409:
        return "WriteConflict", True
    if 400 <= status < 500 and status not in (401, 404, 429):
        return "WriteRejected", False
    return "WriteFailed", True
