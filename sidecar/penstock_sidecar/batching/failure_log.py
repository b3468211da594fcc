"""Logs one line for each failed batch: its requests' ids, the reason, the end of the model's answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock_sidecar.model.answers import model_reason
from penstock_sidecar.queue.request import Outcome, Slice
from penstock_wire.errors import PenstockError
from penstock_wire.process import log

LOGGED_IDS = 16
"""Maximum number of requests that a log line about a batch names."""
WORDS = 200
"""Maximum characters of the model's words, from their end, where a traceback has its error."""
MOST_READ = 64 * 1024
"""Bytes of an answer that is searched for its `detail`: a longer one would hold others up."""
_OVERLOADED = 429


def log_failed_batch(parts: Sequence[Slice], outcome: Outcome) -> None:
    """Log why a batch failed, unless the model refused its data, which concerns only the callers.

    Args:
        parts: the parts of requests in the batch.
        outcome: the model's own answer, or the sidecar's error.
    """
    status = outcome.status
    if isinstance(outcome, PenstockError):
        reason, words = outcome.reason.value, outcome.detail[:WORDS]
    elif status < 500 and status != _OVERLOADED:
        return
    else:
        reason = model_reason(status, outcome.headers)
        words = _words(outcome.body)
    ids = [part.work.request_id.decode() for part in parts[:LOGGED_IDS]]
    log(
        "a batch failed",
        level="warning",
        reason=reason,
        status=status,
        words=words,
        requests=len(parts),
        request_ids=ids,
    )


def _words(body: bytes) -> str:
    """The end of what the model says: of a problem's or FastAPI's `detail`, else of the whole answer."""
    try:
        detail = json.loads(body)["detail"] if len(body) <= MOST_READ else None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        detail = None
    text = detail if isinstance(detail, str) else body[-4 * WORDS :].decode("utf-8", "replace")
    return text if len(text) <= WORDS else f"…{text[-WORDS:]}"
