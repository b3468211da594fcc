"""Derived defaults: all defaults that a schema cannot fill because they depend on other fields."""

from __future__ import annotations

from msgspec import UNSET

from penstock_operator.api.batchpolicy import BatchPolicy, BatchPolicySpec
from penstock_operator.api.modelbackend import Drain, ModelBackend
from penstock_operator.api.modelendpoint import ModelEndpoint
from penstock_wire import durations
from penstock_wire.contract import GRACE_BEYOND_DRAIN_S, RECONFIGURE_PATH
from penstock_wire.control import settings
from penstock_wire.quantities import bytes_of

LEAST_ITEM_BYTES = 2
"""The fewest bytes of an item: one digit and a comma."""


MAX_ONGOING_REQUESTS = 100
"""The default of `maxOngoingRequests`."""


def batching_spec(backend: ModelBackend, policy: BatchPolicy | None) -> BatchPolicySpec:
    """The batching in force for a backend: its own, its policy's, or the defaults.

    Args:
        policy: the BatchPolicy that `batchPolicyRef` names, if it exists.
    """
    if backend.spec.batching is not None:
        return backend.spec.batching
    if policy is not None and backend.spec.batch_policy_ref is not None:
        return policy.spec
    return BatchPolicySpec()


def batching(spec: BatchPolicySpec) -> settings.Batching:
    """Convert a BatchPolicy's spec for a sidecar: durations in milliseconds, defaults filled.

    `maxQueuedItems` has no default here: the sidecar derives it from how fast its model answers.
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
        batch_key_headers=spec.batch_key_headers,
        on_batch_error=spec.on_batch_error,
        priority=settings.Priority(
            levels=spec.priority.levels, default=spec.priority.default, header=spec.priority.header.lower()
        ),
        fairness=settings.Fairness(header=spec.fairness.header.lower()) if spec.fairness else None,
        cost=UNSET if spec.cost is None else settings.Cost(path=spec.cost.path),
        reuse=UNSET if spec.reuse is None else spec.reuse,
        max_batch_cost=UNSET if spec.max_batch_cost is None else spec.max_batch_cost,
    )


def max_ongoing_requests(backend: ModelBackend) -> int:
    """`maxOngoingRequests` with its default of 100; it applies to backends that do not batch."""
    given = backend.spec.max_ongoing_requests
    return MAX_ONGOING_REQUESTS if given is None else given


def reconfigure_path(backend: ModelBackend) -> str | None:
    """The path at which the model takes its `userConfig`: from the spec, else the SDK's.

    It does not depend on whether a userConfig is set: that is hot, while the path is in the pod template.
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
    """The URL at which clients in the cluster call the endpoint."""
    return f"http://{endpoint.name}.{endpoint.namespace}.svc"


def grace_seconds(drain: Drain) -> int:
    """`terminationGracePeriodSeconds`: propagationDelay + timeout, rounded up, + 30 s; not measured."""
    milliseconds = durations.parse_ms(drain.propagation_delay) + durations.parse_ms(drain.timeout)
    return -(-milliseconds // 1000) + GRACE_BEYOND_DRAIN_S


def unreachable_target(backend: ModelBackend, spec: BatchPolicySpec) -> str | None:
    """The reason why a pod's load can never exceed `targetLoad`, with the numbers; None if there is none.

    The result is None without autoscaling, and if `maxQueuedItems` is absent: the sidecar alone computes its
    default.
    """
    scaling = backend.spec.autoscaling
    if scaling is None or scaling.target_load is None:
        return None
    ongoing, queue = spec.max_concurrent_batches * spec.max_batch_size, spec.max_queued_items
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
    """The reason why a batch can never be full, with both numbers; None if it can.

    A queue of 0 is a deliberate choice: a batch is then what a single request brings.
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
    """The model's paths that only its sidecar may call: the one for userConfig, if it has one."""
    path = reconfigure_path(backend)
    return () if path is None else (path,)
