"""Derived defaults: what a schema cannot fill because it depends on other fields. All of it is here."""

from __future__ import annotations

from penstock_operator.api.batchpolicy import BatchPolicy, BatchPolicySpec
from penstock_operator.api.modelbackend import Drain, ModelBackend
from penstock_operator.api.modelendpoint import ModelEndpoint
from penstock_wire import durations, settings

_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

SIDECAR_GRACE_S = 30
"""Seconds that the last batches have beyond the drain before kubelet kills the pod."""


def bytes_of(quantity: int | str) -> int:
    """A quantity in bytes: a number, or digits with one of k, Ki, M, Mi, G, Gi.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(quantity, int):
        return quantity
    digits = quantity.rstrip("kKMGi")
    unit = quantity[len(digits) :]
    if not digits.isdigit() or (unit and unit not in _UNITS):
        raise ValueError(f"expected a number of bytes such as 32Mi, found {quantity!r}")
    return int(digits) * _UNITS.get(unit, 1)


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


def max_queued_items(spec: BatchPolicySpec) -> int:
    """`maxQueuedItems` with its derived default: 8 x maxBatchSize x maxConcurrentBatches."""
    if spec.max_queued_items is not None:
        return spec.max_queued_items
    return 8 * spec.max_batch_size * spec.max_concurrent_batches


def batching(spec: BatchPolicySpec) -> settings.Batching:
    """A BatchPolicy's spec as a sidecar is told it: every default filled, durations in milliseconds."""
    return settings.Batching(
        max_batch_size=spec.max_batch_size,
        max_batch_bytes=bytes_of(spec.max_batch_bytes),
        batch_wait_timeout_ms=durations.parse_ms(spec.batch_wait_timeout),
        max_concurrent_batches=spec.max_concurrent_batches,
        default_timeout_ms=durations.parse_ms(spec.default_timeout),
        max_queued_items=max_queued_items(spec),
        overflow_status=spec.overflow_status,
        batch_key_headers=spec.batch_key_headers,
    )


def route(endpoint: ModelEndpoint) -> str:
    """The endpoint's path prefix at the front door: `/<name>` by default, "" for none, no trailing slash."""
    given = endpoint.spec.route
    if given is None:
        return f"/{endpoint.name}"
    return given.rstrip("/") or given[:1]


def url(endpoint: ModelEndpoint) -> str:
    """Where clients in the cluster call the endpoint."""
    return f"http://{endpoint.name}.{endpoint.namespace}.svc"


def grace_seconds(drain: Drain) -> int:
    """`terminationGracePeriodSeconds`: propagationDelay + timeout, rounded up, + 30 s; nothing measured."""
    milliseconds = durations.parse_ms(drain.propagation_delay) + durations.parse_ms(drain.timeout)
    return -(-milliseconds // 1000) + SIDECAR_GRACE_S


def unreachable_batch(spec: BatchPolicySpec) -> str | None:
    """Why a batch can never be full, with both numbers; None if it can."""
    queue = max_queued_items(spec)
    if 0 < queue < spec.max_batch_size:
        return f"maxBatchSize is {spec.max_batch_size}, but maxQueuedItems lets no more than {queue} wait"
    return None
