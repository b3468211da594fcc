"""Settings that the operator sends to a sidecar: those that change without a rollout (others: arguments)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from penstock_wire.contract import COST_PATH
from penstock_wire.control import documents
from penstock_wire.control.artifact import ArtifactDemand
from penstock_wire.durations import format_ms
from penstock_wire.errors import DocumentError

UNKNOWN_QUEUE = 1024
"""Items that can wait by default while the rate of answers is unknown."""
MOST_QUEUED = 1_000_000
"""Upper bound of the items that can wait by default."""


class Priority(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Levels of urgency; 1 is the most urgent.

    Args:
        levels: how many there are; 1 = none.
        default: level of a request without that field.
        header: the field that gives the level.
    """

    levels: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    default: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    header: str = "x-penstock-priority"


class Fairness(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Equal shares of the slots, one for each value of a header field.

    Args:
        header: the field; all requests without it have one share together.
    """

    header: str


class Cost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an item costs.

    Args:
        path: where each item has it: `$`, the item itself, or members as in `$.input.text`.
    """

    path: Annotated[str, msgspec.Meta(pattern=COST_PATH, max_length=256)]


class Batching(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A BatchPolicy's spec with its defaults filled in; durations in milliseconds.

    Args:
        max_batch_size: most items in one batch.
        max_batch_bytes: most bytes of items in one batch.
        batch_wait_timeout_ms: how long a part-full batch can wait while a slot is free, from the arrival of
            the key's oldest item; 0 = not at all; absent = at most half of a batch's time, and only for
            clients that are about to send again. Never null: older sidecars accept only a number.
        max_concurrent_batches: slots: batches in the model at once.
        latency_objective_ms: the deadline for admission, dropping and batch size; None = the client's.
        default_timeout_ms: deadline of a request without one.
        max_queued_items: items that can wait; None = as many as are answered within a deadline, see
            `queue_limit`; 0 = no queue.
        batch_key_headers: header names whose values must be equal within a batch.
        on_batch_error: whether a failed batch is halved and run again to find the request that fails it;
            None = Isolate.
        priority: levels of urgency.
        fairness: the header field that divides the slots into shares, None = no shares.
        cost: where items say what they cost; absent = their bytes are it.
        max_batch_cost: most of the number of items times the largest of their costs, in one batch; absent =
            any.
        reuse: whether requests that are the same as one in flight wait for its answer. These three are
            never null: older sidecars do not have them.
    """

    max_batch_size: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    max_batch_bytes: Annotated[int, msgspec.Meta(ge=1)] = 32 * 1024 * 1024
    batch_wait_timeout_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] | msgspec.UnsetType = msgspec.UNSET
    max_concurrent_batches: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    latency_objective_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    default_timeout_ms: Annotated[int, msgspec.Meta(ge=1)] = 30_000
    max_queued_items: Annotated[int, msgspec.Meta(ge=0)] | None = None
    batch_key_headers: tuple[str, ...] = ()
    on_batch_error: Literal["Isolate", "Fail"] | None = None
    priority: Priority = msgspec.field(default_factory=Priority)
    fairness: Fairness | None = None
    cost: Cost | msgspec.UnsetType = msgspec.UNSET
    max_batch_cost: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    reuse: Literal["InFlight"] | msgspec.UnsetType = msgspec.UNSET

    def queue_limit(self, slots: int, answered: float = 0.0) -> int:
        """Return how many items can wait; the derived default is as many as are answered within a deadline.

        Args:
            slots: batches that can be in the model at once now.
            answered: items that one slot answers within a deadline, 0 if unknown.
        """
        if self.max_queued_items is not None:
            return self.max_queued_items
        able = min(MOST_QUEUED, int(slots * answered)) if answered else UNKNOWN_QUEUE
        return max(8 * self.max_batch_size * slots, able)


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """The settings of a sidecar.

    Args:
        v: version of the document's form.
        version: counts the changes; the higher wins. None in a file that a user wrote.
        backend: name of the ModelBackend.
        batching: how to batch.
        max_ongoing_requests: requests in the model at once if nothing is batched.
        user_config: any JSON to reconfigure the model with; None = nothing.
        artifact: the digest that pods must find of the model's artifact; absent where none is known.
    """

    v: int = documents.VERSION
    version: int | None = None
    backend: str = ""
    batching: Batching = msgspec.field(default_factory=Batching)
    max_ongoing_requests: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    user_config: Any = None
    artifact: ArtifactDemand | msgspec.UnsetType = msgspec.UNSET


def decode(data: bytes, *, what: str = "settings", text: bool = False, by_hand: bool = False) -> Settings:
    """Decode settings (raises DocumentError; see `documents.decode`).

    If written by hand, settings that a BatchPolicy cannot have are refused, too.
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
    """Encode settings as JSON with members in a fixed order: equal settings are equal bytes."""
    return msgspec.json.encode(settings)
