"""What a new object and a refused child look like on a real apiserver."""

from __future__ import annotations

import json

import pytest

from tests.support.k8s import Namespace, container_backend, endpoint, wait_for


def test_a_new_object_has_observed_nothing(namespace: Namespace) -> None:
    """As the apiserver stores it, before any operator: kstatus takes it for in progress, not for current."""
    shown = namespace.kubectl(
        *("create", "--dry-run=server", "-o", "json", "-f", "-"), input=json.dumps(endpoint("e", "b"))
    )
    assert json.loads(shown)["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize(
    ("name", "reason", "flag"),
    [("quota", "QuotaExceeded", "Stalled"), ("policy", "PolicyDenied", "Stalled"),
     ("webhook", "WebhookFailed", "Reconciling")],
)  # fmt: skip
def test_what_the_apiserver_refuses_is_told_in_its_words(
    namespace: Namespace, name: str, reason: str, flag: str
) -> None:
    """A quota, an admission policy, a webhook that does not answer: the reason, and its end."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}]
    mark = f"penstock-test-{namespace.name}"
    obstacles = {
        "quota": [
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": mark},
             "spec": {"hard": {"count/services": "0"}}},
        ],
        "policy": [
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
             "metadata": {"name": mark},
             "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules},
                      "validations": [{"expression": "false", "message": "no services in tests"}]}},
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
             "metadata": {"name": mark},
             "spec": {"policyName": mark, "validationActions": ["Deny"],
                      "matchResources": {"namespaceSelector": here}}},
        ],
        "webhook": [
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
             "metadata": {"name": mark},
             "webhooks": [{"name": "nobody.penstock.dev", "admissionReviewVersions": ["v1"],
                           "sideEffects": "None", "timeoutSeconds": 1, "failurePolicy": "Fail",
                           "namespaceSelector": here, "rules": rules,
                           "clientConfig": {"service": {"namespace": namespace.name, "name": "nobody"}}}]},
        ],
    }[name]  # fmt: skip
    try:
        namespace.apply(*obstacles)
        probe = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe"},
                 "spec": {"ports": [{"port": 1}]}}  # fmt: skip
        wait_for("the obstacle to stand", lambda: _refused(namespace, probe), seconds=60)
        namespace.apply(container_backend("b", script="", replicas=0))
        told = namespace.wait_condition("modelbackend", "b", "Ready", "False", reason=reason)
        assert told["message"].startswith("Service b-backend: ")
        assert namespace.condition("modelbackend", "b", flag)["status"] == "True"
        assert namespace.get("deployment", "b-backend") is not None
    finally:
        for one in reversed(obstacles):
            namespace.kubectl("delete", one["kind"], one["metadata"]["name"])
    namespace.wait_condition("modelbackend", "b", "Ready", "True", seconds=120)
    assert namespace.condition("modelbackend", "b", flag) == {}


def _refused(namespace: Namespace, probe: dict[str, object]) -> bool:
    command = ("-n", namespace.name, "create", "--dry-run=server", "-f", "-")
    return namespace.cluster.kubectl(*command, input=json.dumps(probe), check=False).returncode != 0
