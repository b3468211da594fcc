"""The answer to a request of several items of which some have answers of their own: a request has one status.

It depends on these answers alone, so it is the same whoever shared the request's batch. The sidecar makes it
for each request of a batch, the SDK for a request that no sidecar has sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock_wire.errors import MODEL_REASONS, PenstockError, Reason
from penstock_wire.headers import REASON, Headers, get
from penstock_wire.http.messages import Response

SHOWN = 10
"""Maximum number of items that a problem document names."""


def problem_of(own: Iterable[tuple[int, Response, dict[str, bytes]]]) -> PenstockError:
    """Make the problem document that names the items.

    Its status is that of the items if all have the same error, else 422 if all are 4xx, or 500. Its reason is
    that of the items if all have the same; else `model_answer` if the status is a 4xx, or `model_failed`.

    Args:
        own: of each item with an answer of its own, at least one: its index in the request, the answer, and
            the body as JSON by the name of its member (`body` or `bodyB64`; empty without a body).
    """
    statuses: set[int] = set()
    reasons: set[bytes] = set()
    words: list[str] = []
    entries: list[dict[str, Any]] = []
    wait = count = 0
    for index, answer, raw in own:
        count += 1
        statuses.add(answer.status)
        reason = get(answer.headers, REASON) or b""
        reasons.add(reason if reason in MODEL_REASONS else b"")
        wait = max(wait, _retry_after(answer.headers))
        if count <= SHOWN:
            detail = _detail(raw) if reason in MODEL_REASONS else ""
            words.append(f"item {index}: {detail or f'the model answered {answer.status}'}")
            body = {name: msgspec.Raw(text) for name, text in raw.items()}
            entries.append({"index": index, "status": answer.status, **body})
    if count > SHOWN:
        words.append(f"And {count - SHOWN} more items")
    status = _status(statuses)
    word = reasons.pop() if len(reasons) == 1 else b""
    fallback = Reason.MODEL_ANSWER if status < 500 else Reason.MODEL_FAILED
    return PenstockError(
        MODEL_REASONS.get(word, fallback),
        ". ".join(words),
        status=status,
        retry_after=wait or None,
        extra={"items": entries},
    )


def _status(statuses: set[int]) -> int:
    if len(statuses) == 1 and min(statuses) >= 400:
        return min(statuses)
    return 422 if all(400 <= status < 500 for status in statuses) else 500


def _detail(raw: dict[str, bytes]) -> str:
    """The detail of a problem document."""
    try:
        document = msgspec.json.decode(raw.get("body", b""))
    except msgspec.DecodeError:
        return ""
    detail = document.get("detail") if isinstance(document, dict) else None
    return detail if isinstance(detail, str) else ""


def _retry_after(headers: Headers) -> int:
    """Seconds of an answer's `Retry-After`; 0 if it has none, or a date."""
    value = get(headers, b"retry-after") or b""
    return int(value) if value.isdigit() and len(value) <= 6 else 0
