"""The ids of the requests that a call answers, for the call's log lines."""

from __future__ import annotations

from contextvars import ContextVar

SHOWN = 16
"""The most ids in a log line."""

_ids: ContextVar[tuple[str, ...]] = ContextVar("request_ids", default=())


def begin(field: bytes | None) -> tuple[str, ...]:
    """Note the ids of the requests that the current call answers.

    Args:
        field: `x-request-id`: the id, or the ids of a batch's requests, separated by commas; None for none.

    Returns:
        The ids.
    """
    ids = tuple(field.decode("latin-1").split(",")) if field else ()
    _ids.set(ids)
    return ids


def logged() -> dict[str, object]:
    """The fields of a log line: `request_id`, or for several `request_ids` and their number as `requests`."""
    ids = _ids.get()
    if len(ids) > 1:
        return {"requests": len(ids), "request_ids": ids[:SHOWN]}
    return {"request_id": ids[0]} if ids else {}
