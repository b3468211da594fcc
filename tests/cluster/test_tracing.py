"""Spans leave the sidecars for the collector that the chart names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from penstock_operator.desired.pods import USER, container_security
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import MODEL_IMAGE, Namespace, container_backend, endpoint
from tests.support.cluster.release import upgrade

MODELS = Path(__file__).parent / "models"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def collector() -> tuple[dict[str, Any], dict[str, Any]]:
    """A Pod that takes spans, and its Service."""
    labels = {"app": "collector"}
    command = ["python", "-u", "-c", (MODELS / "collector.py").read_text()]
    probe = {"tcpSocket": {"port": 4318}, "periodSeconds": 1}
    container = {
        "name": "collector",
        "image": MODEL_IMAGE,
        "imagePullPolicy": "Never",
        "command": command,
        "readinessProbe": probe,
        "securityContext": container_security(user=USER),
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "collector", "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "collector"},
        "spec": {"selector": labels, "ports": [{"port": 4318}]},
    }
    return pod, service


@pytest.fixture
def traced(namespace: Namespace) -> Iterator[Namespace]:
    """A namespace with a collector that the release names; then all is as before."""
    namespace.apply(*collector())
    namespace.kubectl("wait", "--for=condition=Ready", "pod/collector", "--timeout=110s")
    values = (
        *("--set", f"tracing.endpoint=http://collector.{namespace.name}.svc:4318"),
        *("--set-string", "tracing.environment.OTEL_BSP_SCHEDULE_DELAY=200"),
    )
    try:
        upgrade(namespace.cluster, *values)
        yield namespace
    finally:
        upgrade(namespace.cluster)


def spans(namespace: Namespace) -> list[tuple[dict[str, str], Any]]:
    """All spans that have come, each with the attributes of its process."""
    result = []
    for line in namespace.kubectl("logs", "collector").splitlines():
        try:
            exported = ExportTraceServiceRequest.FromString(base64.b64decode(line, validate=True))
        except (binascii.Error, DecodeError):
            continue  # the line is being written
        for resource in exported.resource_spans:
            attributes = {
                attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
            }
            result += [(attributes, span) for scope in resource.scope_spans for span in scope.spans]
    return result


@pytest.mark.xdist_group("fight")
def test_a_request_and_its_batch_are_traced_where_the_chart_names_a_collector(traced: Namespace) -> None:
    """The caller's trace has the router's span, and says which pod of which backend it was."""
    script = (MODELS / "slow.py").read_text()
    traced.apply(container_backend("b", script=script), endpoint("b", "b"))
    traced.wait_ready("modelbackend", "b")
    traced.wait_ready("modelendpoint", "b")
    status, _, text = traced.curl(
        traced.url("b"), body='{"instances": [1]}', headers=(f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01",)
    )
    assert status == 200, text

    def request_and_batch() -> dict[tuple[str, str], tuple[dict[str, str], Any]] | None:
        mine = {
            (process["service.name"], span.name): (process, span)
            for process, span in spans(traced)
            if span.trace_id.hex() == TRACE
        }
        return mine if len(mine) == 3 else None

    request_spans = wait_for("the spans of the request and its batch", request_and_batch)
    routed, (_, served) = (
        request_spans.pop(("penstock-router", "POST")),
        request_spans[("penstock-sidecar", "POST")],
    )
    assert served.parent_span_id == routed[1].span_id
    assert request_spans.keys() == {("penstock-sidecar", "POST"), ("penstock-sidecar", "batch")}
    (pod,) = traced.pods("b")
    for process, _ in request_spans.values():
        assert process["service.instance.id"] == pod["metadata"]["name"]
        assert process["penstock.backend"] == "b"
