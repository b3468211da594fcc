"""What an apiserver says of a refused write becomes one word and its own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.status import refusal

QUOTA = (
    'services "m" is forbidden: exceeded quota: q, requested: services=1, used: services=0, '
    "limited: services=0"
)
WEBHOOK_DOWN = (
    'Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: Post '
    '"https://w.default.svc:443/?timeout=2s": service "w" not found'
)
POLICY = (
    "deployments.apps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "
    "no tags"
)
RBAC = (
    'services "m" is forbidden: User "system:serviceaccount:penstock-system:penstock-operator" cannot patch '
    'resource "services" in API group "" in the namespace "n"'
)


@pytest.mark.parametrize(
    ("status", "message", "reason", "passing"),
    [
        (403, QUOTA, "QuotaExceeded", False),
        (403, 'pods "m" is forbidden: failed quota: q: must specify limits.cpu', "QuotaExceeded", False),
        (403, 'admission webhook "w.example.com" denied the request: no', "WebhookDenied", False),
        (400, 'admission webhook "w.example.com" denied the request: no', "WebhookDenied", False),
        (500, WEBHOOK_DOWN, "WebhookFailed", True),
        (422, POLICY, "PolicyDenied", False),
        (403, RBAC, "Forbidden", False),
        (422, 'Deployment.apps "m" is invalid: spec: bad', "WriteRejected", False),
        (413, "Request entity too large", "WriteRejected", False),
        (409, "the object has been modified", "WriteConflict", True),
        (500, "etcdserver: leader changed", "WriteFailed", True),
        (503, "the server is currently unable to handle the request", "WriteFailed", True),
        (429, "too many requests", "WriteFailed", True),
        (401, "Unauthorized", "WriteFailed", True),
        (404, 'namespaces "n" not found', "WriteFailed", True),
        (0, "PATCH /apis/apps: TimeoutError", "WriteFailed", True),
    ],
)
def test_reasons(status: int, message: str, reason: str, passing: bool) -> None:
    """One word for each cause; only what may pass by itself is called passing."""
    result = refusal("Service m", status, message)
    assert (result.reason, result.passing) == (reason, passing)
    assert result.message == f"Service m: {message}"


@given(st.integers(0, 599), st.text(max_size=4000))
def test_any_message_is_bounded_and_of_one_line(status: int, message: str) -> None:
    """Whatever a webhook says fits into a condition and into a line."""
    result = refusal("Service m", status, message)
    assert len(result.message) <= 1600
    assert "\n" not in result.message
    assert result.reason.isalpha()
