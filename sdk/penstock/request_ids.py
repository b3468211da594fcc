"""The ids of the requests that a call answers, for the log lines that are written on its way."""

from __future__ import annotations

from contextvars import ContextVar

SHOWN = 16
"""Ids in a log line at most."""

_ids: ContextVar[tuple[str, ...]] = ContextVar("request_ids", default=())


def begin(field: bytes | None) -> tuple[str, ...]:
    """Note whom the call answers that begins here.

    Args:
        field: `x-request-id`: of a batch the ids of its requests, with a comma between two; None for none.

    Returns:
        The ids.
    """
    ids = tuple(field.decode("latin-1").split(",")) if field else ()
    _ids.set(ids)
    return ids


def logged() -> dict[str, object]:
    """The fields of a log line: `request_id`, or of several `request_ids` and their number as `requests`."""
    ids = _ids.get()
    if len(ids) > 1:
        return {"requests": len(ids), "request_ids": ids[:SHOWN]}
    return {"request_id": ids[0]} if ids else {}
