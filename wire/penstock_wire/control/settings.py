"""Settings that the operator sends to a sidecar: hot fields only (what rolls travels as arguments)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from penstock_wire.control import documents
from penstock_wire.durations import format_ms
from penstock_wire.errors import DocumentError

UNKNOWN_QUEUE = 1024
"""Items that may wait by default while it is not known how fast they are answered."""
MOST_QUEUED = 1_000_000
"""Items that may wait by default at most."""


class Priority(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Levels of urgency; 1 is the most urgent.

    Args:
        levels: how many there are; 1 = none.
        default: level of a request that names none.
        header: the field that names it.
    """

    levels: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    default: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    header: str = "x-penstock-priority"


class Fairness(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An equal share of the slots for each value of a header field.

    Args:
        header: the field; requests without it share one share.
    """

    header: str


class Batching(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A BatchPolicy's spec with the defaults filled; durations in milliseconds.

    Args:
        max_batch_size: items in one batch at most.
        max_batch_bytes: bytes of items in one batch at most.
        batch_wait_timeout_ms: how long a part-full batch may wait while a slot is free, from the arrival of
            the key's oldest item; 0 = not at all; absent = half of a batch's time at most, and only for
            callers who are about to ask again. Never null: sidecars of before know a number only.
        max_concurrent_batches: slots: batches in the model at once; `auto` finds out what pays.
        latency_objective_ms: the deadline that admission, dropping and batch size go by; None = the client's.
        default_timeout_ms: deadline of a request that brings none.
        max_queued_items: items that may wait; None = what is answered within a deadline, see `queue_limit`;
            0 = no queue.
        overflow_status: status of a refusal for a full queue.
        batch_key_headers: header names whose values must be equal within a batch.
        on_batch_error: whether a failed batch is halved and run again to find the request that fails it;
            None = as fits the protocol.
        priority: levels of urgency.
        fairness: the senders that share the slots, None = no shares.
    """

    max_batch_size: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    max_batch_bytes: Annotated[int, msgspec.Meta(ge=1)] = 32 * 1024 * 1024
    batch_wait_timeout_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] | msgspec.UnsetType = msgspec.UNSET
    max_concurrent_batches: Annotated[int, msgspec.Meta(ge=1, le=64)] | Literal["auto"] = 1
    latency_objective_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    default_timeout_ms: Annotated[int, msgspec.Meta(ge=1)] = 30_000
    max_queued_items: Annotated[int, msgspec.Meta(ge=0)] | None = None
    overflow_status: Literal[503, 429] = 503
    batch_key_headers: tuple[str, ...] = ()
    on_batch_error: Literal["Isolate", "Fail"] | None = None
    priority: Priority = msgspec.field(default_factory=Priority)
    fairness: Fairness | None = None

    def queue_limit(self, slots: int, answered: float = 0.0) -> int:
        """Items that may wait, with the derived default filled in: as many as are answered within a deadline.

        Args:
            slots: batches that may be in the model at once now.
            answered: items that one slot answers within a deadline, 0 where that is not known.
        """
        if self.max_queued_items is not None:
            return self.max_queued_items
        able = min(MOST_QUEUED, int(slots * answered)) if answered else UNKNOWN_QUEUE
        return max(8 * self.max_batch_size * slots, able)


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """What a sidecar obeys until it gets other settings.

    Args:
        v: version of the document's form.
        version: counts the changes; the higher wins. None in a file that somebody wrote by hand.
        backend: name of the ModelBackend.
        batching: how to batch.
        max_ongoing_requests: requests that are with the model at once where nothing is batched.
        user_config: what the model is reconfigured with, any JSON; None = nothing.
    """

    v: int = documents.VERSION
    version: int | None = None
    backend: str = ""
    batching: Batching = msgspec.field(default_factory=Batching)
    max_ongoing_requests: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    user_config: Any = None


def decode(data: bytes, *, what: str = "settings", text: bool = False, by_hand: bool = False) -> Settings:
    """Decode settings (raises DocumentError; see `documents.decode`).

    By hand, what a BatchPolicy may not have is refused, too.
    """
    settings = documents.decode(Settings, data, what=what, text=text, by_hand=by_hand)
    batching = settings.batching
    objective, timeout = batching.latency_objective_ms, batching.default_timeout_ms
    if by_hand and objective is not None and objective > timeout:
        raise DocumentError(
            f"{what}: $.batching.latencyObjective: expected at most defaultTimeout ({format_ms(timeout)}), "
            f"found {format_ms(objective)}"
        )
    return settings


def encode(settings: Any) -> bytes:
    """The document's bytes: JSON, members in a fixed order, so that equal settings are equal bytes."""
    return msgspec.json.encode(settings)
