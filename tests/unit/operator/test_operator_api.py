"""Reading resources as the apiserver stores them, and the defaults that a schema cannot fill."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.api import (
    BatchPolicy,
    BatchPolicySpec,
    ModelBackend,
    ModelEndpoint,
    ResourceError,
    TrafficSplit,
    defaults,
)
from penstock_operator.api.modelbackend import Drain
from penstock_operator.releases import steps
from penstock_wire.control import settings
from penstock_wire.quantities import bytes_of

CONTAINER = {"container": {"image": "i"}}


def backend(**spec: Any) -> ModelBackend:
    return ModelBackend.parse(
        {"metadata": {"name": "b", "namespace": "n"}, "spec": {"model": CONTAINER} | spec}
    )


def endpoint(**spec: Any) -> ModelEndpoint:
    return ModelEndpoint.parse({"metadata": {"name": "e", "namespace": "n"}, "spec": {"backend": "b"} | spec})


def test_reads_what_is_stored() -> None:
    """The API's spelling in, ours out; with the metadata that decides."""
    stored = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {
            "name": "b",
            "namespace": "n",
            "uid": "u",
            "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T00:00:00Z",
            "managedFields": [{}],
        },
        "spec": {
            "model": {"container": {"image": "i", "envFrom": [{"secretRef": {"name": "s"}}]}},
            "batchPolicyRef": "p",
            "podTemplate": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]},
            "inventedLater": {"and": "ignored"},
        },
        "status": {"scaling": [{"time": "2026-01-01T00:00:00Z", "from": 1, "to": 2, "reason": "r"}]},
    }
    backend = ModelBackend.parse(stored)
    assert (backend.name, backend.namespace, backend.metadata.generation, backend.deleting) == (
        "b",
        "n",
        3,
        True,
    )
    assert backend.spec.batch_policy_ref == "p"
    assert backend.spec.pod_template is not None
    assert backend.spec.pod_template.document()["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]
    assert backend.status.scaling[0].from_ == 1
    assert backend.status.scaling[0].document()["from"] == 1


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        (ModelBackend, {}, "spec.model: Field required, found nothing"),
        (
            ModelBackend,
            {"model": {"container": {"image": "i"}}, "replicas": -2},
            "spec.replicas: Input should be greater than or equal to 0, found -2",
        ),
        (
            ModelBackend,
            {"model": {"container": {"image": "i"}, "protocol": "grpc"}},
            "spec.model.protocol: Input should be 'instances', 'v2', 'openai' or 'none', found",
        ),
        (
            ModelBackend,
            {"model": {"container": {"image": "i"}, "protocol": "envelope"}},
            "spec.model.protocol: envelope is gone: with instances a model answers and streams by item, and",
        ),
        (
            BatchPolicy,
            {"maxConcurrentBatches": "auto"},
            "spec.maxConcurrentBatches: auto is gone: give a number from 1 to 64; measure with 1, 2",
        ),
        (
            TrafficSplit,
            {"endpoint": "e", "backends": [{"name": "a", "weight": "x"}]},
            "spec.backends.0.weight: Input should be a valid integer",
        ),
        (
            BatchPolicy,
            {"batchWaitTimeout": "soon"},
            "spec.batchWaitTimeout: expected a duration such as 500ms, 30s, 5m or 1h, found 'soon'",
        ),
        (
            ModelEndpoint,
            {"backend": "B"},
            "spec.backend: expected the name of a resource of Penstock, such as",
        ),
        (
            ModelEndpoint,
            {"backend": "b", "maxBodyBytes": "10MB"},
            "spec.maxBodyBytes: expected a number of bytes, or a quantity such as 32Mi, found '10MB'",
        ),
        (ModelEndpoint, {"backend": "b", "maxBodyBytes": 0}, "spec.maxBodyBytes: expected a number of bytes"),
        (
            ModelBackend,
            {"model": CONTAINER, "rollout": {"maxSurge": "half"}},
            "spec.rollout.maxSurge: expected a number of at least 0, or a percentage such as 25%, found 'hal",
        ),
        (ModelEndpoint, None, "spec: Input should be a valid dictionary"),
    ],
)
def test_what_does_not_fit_is_named(kind: type[Any], spec: Any, message: str) -> None:
    """An object that an older schema let through: which, each path, what was expected, what was found."""
    with pytest.raises(ResourceError) as caught:
        kind.parse({"metadata": {"name": "x", "namespace": "n"}, "spec": spec})
    assert str(caught.value).startswith(f"{kind.__name__} n/x: ")
    assert message in str(caught.value)


def test_what_the_api_server_did_not_refuse_before_is_still_read() -> None:
    """A release of before goes on to be explained in its status, and a backend keeps its pods."""
    many = {f"example.com/r{number}": 1 for number in range(13)}
    model = {"container": {"image": "i", "resources": {"limits": many}}}
    container = backend(model=model).spec.model.container
    assert container is not None
    assert container.resources is not None
    assert container.resources.limits == many
    assert endpoint(route="/a%20b").spec.route == "/a%20b"
    strategy = {
        "stable": "a",
        "candidate": "b",
        "steps": [{"setWeight": 5}, {"mirror": 5}, {"pause": "9000h"}],
    }
    spec = {"endpoint": "e", "backends": [{"name": "a", "weight": 1}], "strategy": strategy}
    read = TrafficSplit.parse({"metadata": {"name": "s"}, "spec": spec}).spec.strategy
    assert read is not None
    assert len(steps.faults(read)) == 2


def test_a_strange_status_is_taken_as_empty() -> None:
    """What another version wrote into the status never keeps a resource from being served."""
    stored = {"metadata": {"name": "b"}, "spec": {"model": CONTAINER}, "status": {"replicas": "many"}}
    assert ModelBackend.parse(stored).status.replicas == 0


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        (1024, 1024),
        ("1024", 1024),
        ("1k", 1000),
        ("1Ki", 1024),
        ("32Mi", 33554432),
        ("2M", 2000000),
        ("1Gi", 2**30),
        ("3T", 3 * 10**12),
        ("1Pi", 2**50),
    ],
)
def test_bytes(quantity: int | str, expected: int) -> None:
    """Quantities as the schema lets them through."""
    assert bytes_of(quantity) == expected


@pytest.mark.parametrize("quantity", ["", "Mi", "1.5Mi", "1KiKi", "-1", "1E", "1ki", "10MB"])
def test_bytes_that_are_none(quantity: str) -> None:
    """Anything else says what was expected."""
    with pytest.raises(ValueError, match="expected a number of bytes, or a quantity such as 32Mi"):
        bytes_of(quantity)


def test_batching_comes_from_one_source() -> None:
    """The backend's own, else its policy's, else the defaults; a policy that is not named has no effect."""
    policy = BatchPolicy.parse({"metadata": {"name": "p"}, "spec": {"maxBatchSize": 4}})
    assert defaults.batching_spec(backend(), policy) == BatchPolicySpec()
    assert defaults.batching_spec(backend(batchPolicyRef="p"), policy).max_batch_size == 4
    assert defaults.batching_spec(backend(batchPolicyRef="p"), None) == BatchPolicySpec()
    assert defaults.batching_spec(backend(batching={"maxBatchSize": 2}), policy).max_batch_size == 2


@pytest.mark.parametrize(
    ("spec", "queue"),
    [
        ({}, None),
        ({"maxBatchSize": 4, "maxConcurrentBatches": 3}, None),
        ({"maxQueuedItems": 0}, 0),
        ({"maxQueuedItems": 7}, 7),
    ],
)
def test_queue(spec: dict[str, Any], queue: int | None) -> None:
    """Where `maxQueuedItems` is absent the sidecar derives it; 0 is not absent."""
    batching = defaults.batching(BatchPolicySpec.model_validate(spec))
    assert batching.max_queued_items == queue


def test_the_sidecar_has_the_same_defaults() -> None:
    """An empty policy renders as a sidecar's own defaults."""
    assert defaults.batching(BatchPolicySpec()) == settings.Batching()
    assert defaults.max_ongoing_requests(backend()) == settings.Settings().max_ongoing_requests


def test_every_field_of_a_policy_is_told() -> None:
    """Durations in milliseconds, header names in lower case, nothing left out."""
    spec = BatchPolicySpec.model_validate(
        {
            "maxBatchSize": 8,
            "maxBatchBytes": "1Mi",
            "batchWaitTimeout": "20ms",
            "maxConcurrentBatches": 3,
            "latencyObjective": "1s500ms",
            "defaultTimeout": "1m",
            "maxQueuedItems": 7,
            "batchKeyHeaders": ["X-Tenant"],
            "onBatchError": "Fail",
            "priority": {"levels": 3, "default": 2, "header": "X-Urgency"},
            "fairness": {"header": "X-Tenant"},
            "cost": {"path": "$.text"},
            "maxBatchCost": 16384,
            "reuse": "InFlight",
        }
    )
    assert spec.model_fields_set == BatchPolicySpec.model_fields.keys()
    assert defaults.batching(spec) == settings.Batching(
        max_batch_size=8,
        max_batch_bytes=1048576,
        batch_wait_timeout_ms=20,
        max_concurrent_batches=3,
        latency_objective_ms=1500,
        default_timeout_ms=60_000,
        max_queued_items=7,
        batch_key_headers=("X-Tenant",),
        on_batch_error="Fail",
        priority=settings.Priority(levels=3, default=2, header="x-urgency"),
        fairness=settings.Fairness(header="x-tenant"),
        cost=settings.Cost(path="$.text"),
        max_batch_cost=16384,
        reuse="InFlight",
    )


def test_where_a_model_is_reconfigured() -> None:
    """As the spec says, else at the SDK's own path, with or without a userConfig, which is hot."""
    python = {"python": {"target": "a:B", "image": "i"}}
    assert defaults.reconfigure_path(backend(userConfig={"a": 1})) is None
    assert defaults.reconfigure_path(backend(model=CONTAINER | {"reconfigurePath": "/c"})) == "/c"
    assert defaults.reconfigure_path(backend(model=python)) == "/-/reconfigure"
    assert defaults.reconfigure_path(backend(model=python | {"reconfigurePath": "/c"})) == "/c"
    assert defaults.closed_paths(backend(model=CONTAINER)) == ()
    assert defaults.closed_paths(backend(model=CONTAINER | {"reconfigurePath": "/c"})) == ("/c",)


def test_a_batch_that_can_never_be_full() -> None:
    """The message has both numbers; no queue at all is a choice of its own."""
    small = BatchPolicySpec(max_batch_size=32, max_queued_items=8)
    assert (
        defaults.unreachable_batch(small) == "maxBatchSize is 32, but maxQueuedItems lets no more than 8 wait"
    )
    assert defaults.unreachable_batch(BatchPolicySpec(max_queued_items=0)) is None
    assert defaults.unreachable_batch(BatchPolicySpec()) is None
    assert defaults.unreachable_batch(BatchPolicySpec(max_queued_items=32)) is None
    narrow = BatchPolicySpec(max_batch_size=4096, max_batch_bytes="1Ki")
    assert defaults.unreachable_batch(narrow) == (
        "maxBatchSize is 4096, but maxBatchBytes of 1Ki holds no more than 512 items: with what parts it "
        "from the next, an item has at least 2 bytes"
    )
    assert defaults.unreachable_batch(BatchPolicySpec(max_batch_size=512, max_batch_bytes="1Ki")) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, "/e"), ("", ""), ("/", "/"), ("/v1", "/v1"), ("/v1/", "/v1"), ("/v1/digits/", "/v1/digits")],
)
def test_route(given: str | None, expected: str) -> None:
    """`/<name>` by default; a trailing slash says nothing."""
    assert defaults.route(endpoint(**({} if given is None else {"route": given}))) == expected


def test_url() -> None:
    """The endpoint's Service in the cluster's DNS."""
    assert defaults.url(endpoint()) == "http://e.n.svc"


@pytest.mark.parametrize(
    ("delay", "timeout", "grace"),
    [("5s", "30s", 65), ("0s", "0s", 30), ("1500ms", "1m", 92), ("1ms", "0s", 31)],
)
def test_grace(delay: str, timeout: str, grace: int) -> None:
    """Grace is what is written in the spec and 30 s, in whole seconds."""
    assert defaults.grace_seconds(Drain(propagation_delay=delay, timeout=timeout)) == grace
