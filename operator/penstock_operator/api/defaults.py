"""Derived defaults: what a schema cannot fill because it depends on other fields. All of it is here."""

from __future__ import annotations

from msgspec import UNSET

from penstock_operator.api.batchpolicy import BatchPolicy, BatchPolicySpec
from penstock_operator.api.fields import bytes_of
from penstock_operator.api.modelbackend import Drain, ModelBackend
from penstock_operator.api.modelendpoint import ModelEndpoint
from penstock_wire import durations
from penstock_wire.contract import CANCEL_PATH, GRACE_BEYOND_DRAIN_S, RECONFIGURE_PATH
from penstock_wire.control import settings

LEAST_ITEM_BYTES = 2
"""An item's least bytes: one digit and a comma."""


MAX_ONGOING_REQUESTS = 100
"""`maxOngoingRequests` where it is absent."""


def batching_spec(backend: ModelBackend, policy: BatchPolicy | None) -> BatchPolicySpec:
    """The batching that holds for a backend: its own, its policy's, or the defaults.

    Args:
        backend: the backend.
        policy: the BatchPolicy that `batchPolicyRef` names, if it exists.
    """
    if backend.spec.batching is not None:
        return backend.spec.batching
    if policy is not None and backend.spec.batch_policy_ref is not None:
        return policy.spec
    return BatchPolicySpec()


MOST_SLOTS = 64
"""The largest `maxConcurrentBatches`."""


def batching(spec: BatchPolicySpec) -> settings.Batching:
    """A BatchPolicy's spec as a sidecar gets it: durations in milliseconds, and every default filled.

    But for `maxQueuedItems`, which the sidecar derives from how fast its model answers.
    """
    return settings.Batching(
        max_batch_size=spec.max_batch_size,
        max_batch_bytes=bytes_of(spec.max_batch_bytes),
        batch_wait_timeout_ms=UNSET
        if spec.batch_wait_timeout is None
        else durations.parse_ms(spec.batch_wait_timeout),
        max_concurrent_batches=spec.max_concurrent_batches,
        latency_objective_ms=None
        if spec.latency_objective is None
        else durations.parse_ms(spec.latency_objective),
        default_timeout_ms=durations.parse_ms(spec.default_timeout),
        max_queued_items=spec.max_queued_items,
        overflow_status=spec.overflow_status,
        batch_key_headers=spec.batch_key_headers,
        # Absent, it follows from the protocol, which rolls: a sidecar knows its own.
        on_batch_error=spec.on_batch_error,
        priority=settings.Priority(
            levels=spec.priority.levels, default=spec.priority.default, header=spec.priority.header.lower()
        ),
        fairness=settings.Fairness(header=spec.fairness.header.lower()) if spec.fairness else None,
    )


def max_ongoing_requests(backend: ModelBackend) -> int:
    """`maxOngoingRequests` with its default of 100, which holds where nothing is batched."""
    given = backend.spec.max_ongoing_requests
    return MAX_ONGOING_REQUESTS if given is None else given


def reconfigure_path(backend: ModelBackend) -> str | None:
    """Where the model takes its `userConfig`: as the spec says, else where the SDK listens for it.

    It does not depend on there being a userConfig, which is hot, while this is in the pod template.
    """
    model = backend.spec.model
    if model.reconfigure_path is not None:
        return model.reconfigure_path
    return RECONFIGURE_PATH if model.python is not None else None


def route(endpoint: ModelEndpoint) -> str:
    """The endpoint's path prefix at the front door: `/<name>` by default, "" for none, no trailing slash."""
    given = endpoint.spec.route
    if given is None:
        return f"/{endpoint.name}"
    return given.rstrip("/") or given[:1]


def is_dedicated(endpoint: ModelEndpoint) -> bool:
    """Whether the endpoint asks for a router of its own."""
    return endpoint.spec.router is not None and endpoint.spec.router.dedicated


def url(endpoint: ModelEndpoint) -> str:
    """Where clients in the cluster call the endpoint."""
    return f"http://{endpoint.name}.{endpoint.namespace}.svc"


def grace_seconds(drain: Drain) -> int:
    """`terminationGracePeriodSeconds`: propagationDelay + timeout, rounded up, + 30 s; nothing measured."""
    milliseconds = durations.parse_ms(drain.propagation_delay) + durations.parse_ms(drain.timeout)
    return -(-milliseconds // 1000) + GRACE_BEYOND_DRAIN_S


def unreachable_target(backend: ModelBackend, spec: BatchPolicySpec) -> str | None:
    """Why a pod's load can never exceed `targetLoad`, with the numbers; None if it can, or nothing scales.

    With `auto` a sidecar has at most as many slots as may be asked for. What waits by default only the
    sidecar knows.
    """
    scaling = backend.spec.autoscaling
    if scaling is None or scaling.target_load is None:
        return None
    slots = MOST_SLOTS if spec.max_concurrent_batches == "auto" else spec.max_concurrent_batches
    ongoing, queue = slots * spec.max_batch_size, spec.max_queued_items
    if queue is None:
        return None
    if backend.spec.model.protocol == "none":
        ongoing = max_ongoing_requests(backend)
    if scaling.target_load < queue + ongoing:
        return None
    return (
        f"targetLoad is {scaling.target_load}, but a pod never has more than {queue + ongoing} items: "
        f"{queue} wait, {ongoing} are in the model; more are refused"
    )


def unreachable_batch(spec: BatchPolicySpec) -> str | None:
    """Why a batch can never be full, with both numbers; None if it can.

    No queue at all (0) is a choice of its own: batches are then what single requests bring.
    """
    size, queue = spec.max_batch_size, spec.max_queued_items
    if queue is not None and 0 < queue < size:
        return f"maxBatchSize is {size}, but maxQueuedItems lets no more than {queue} wait"
    room = bytes_of(spec.max_batch_bytes)
    if room < size * LEAST_ITEM_BYTES:
        most = room // LEAST_ITEM_BYTES
        return (
            f"maxBatchSize is {size}, but maxBatchBytes of {spec.max_batch_bytes} holds no more than {most} "
            f"items: with what parts it from the next, an item has at least {LEAST_ITEM_BYTES} bytes"
        )
    return None


def closed_paths(backend: ModelBackend) -> tuple[str, ...]:
    """The paths at which a sidecar alone may ask the model: userConfig comes there, or who has left."""
    path = reconfigure_path(backend)
    cancel = (CANCEL_PATH,) if backend.spec.model.protocol == "envelope" else ()
    return ((path,) if path is not None else ()) + cancel
