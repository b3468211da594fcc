"""Names of header fields with a meaning to Penstock, and rules for forwarding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Headers = tuple[tuple[bytes, bytes], ...]
"""Header fields in the order received; names in lower case."""

REQUEST_ID: Final = b"x-request-id"
TIMEOUT_MS: Final = b"x-penstock-timeout-ms"
IDLE_MS: Final = b"x-penstock-idle-ms"
"""How long an answer can pause between two pieces, and a tunnel be without a byte; set by a router."""
PRIORITY: Final = b"x-penstock-priority"
SHARD_KEY: Final = b"x-penstock-shard-key"
"""Requests with the same value go to the same backend and pod."""
STICKY: Final = b"x-penstock-sticky"
"""Set by a router on a request that came to this pod by its key, and on a mirror's copy: the sidecar must not
hand it back."""
RETRY: Final = b"x-penstock-retry"
"""Set by a router on a request that a pod has refused or handed back, and thus has counted as an arrival;
`UNREAD` if the pod has counted it as one item."""
HELD: Final = b"x-penstock-held"
"""Set by a router on a request that was held for a pod: no `latencyObjective` can be kept for it any more."""
METHOD: Final = b"x-penstock-method"
MODEL_ID: Final = b"x-penstock-model-id"
"""The model that a request is for, where a server has many. Requests for one model share batches, and a pod
if possible."""
CALL_CHAIN: Final = b"x-penstock-call-chain"
"""Endpoints that handles have called on the way to this request (`call_chain`)."""
QUEUE: Final = b"x-penstock-queue"
NOT_ADMITTED: Final = b"x-penstock-not-admitted"
"""In an answer: the request was surely not executed; `UNREAD` if it was refused by its head alone."""
UNREAD: Final = b"unread"
REASON: Final = b"x-penstock-reason"
ATTEMPT: Final = b"x-penstock-attempt"
ITEM_ANSWERS: Final = b"x-penstock-item-answers"
ITEM_STREAMS: Final = b"x-penstock-item-streams"
MIRROR: Final = b"x-penstock-mirror"
"""Set by a router on a copy of a request; no client gets its answer."""
DRAIN: Final = b"x-penstock-drain"
RECONFIGURE: Final = b"x-penstock-reconfigure"
"""Shows a model server that its own sidecar reconfigures it."""
BATCH_LIMIT: Final = b"x-penstock-batch-limit"
"""Sent with each probe of a model's ready path: most items in a batch now."""
CANCELLABLE: Final = b"x-penstock-cancellable"
"""In the answer of a model's ready path: calls that end with their connection, at once (`method_names`)."""
TENSORS: Final = b"x-penstock-tensors"
"""In the answer of a model's ready path: `1` if it answers the Open Inference Protocol (v2), too."""
CONFIG: Final = b"x-penstock-config"
"""Identifies a userConfig: sent with it, and returned by the model's ready path while it is in force."""
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
SERVER_TIMING: Final = b"server-timing"
INFERENCE_HEADER_LENGTH: Final = b"inference-header-content-length"
"""The length of the JSON that binary tensors follow (Triton's extension "binary tensor data")."""

PREFIX: Final = b"x-penstock-"

IN_VALUES: Final = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])
"""Bytes allowed in a field's value (RFC 9110 section 5.5): no control character (as DEL, 7F) but HTAB."""

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 section 7.6.1: fields that concern one connection and are never forwarded."""

PER_CONNECTION: Final = HOP_BY_HOP | {b"content-length"}
"""The same, and the length of the body, which is framed separately on each connection."""

_LONGEST_MS: Final = 10**12

KEY_FIELDS: Final = frozenset(
    {
        b"accept",
        b"accept-language",
        b"content-language",
        b"content-type",
        b"origin",
        METHOD,
        MODEL_ID,
    }
)
"""Fields that a model can act on, beside credentials: requests that differ in one share no batch."""

_CREDENTIAL_WORDS: Final = frozenset(
    {
        b"apikey",  # Kong, Apigee (x-apikey)
        b"auth",  # x-auth-token (OpenStack), x-auth-request-user (oauth2-proxy)
        b"authentication",
        b"authorization",  # also proxy-, and x-serverless- (Google Cloud Run)
        b"cookie",
        b"credential",  # x-credential-identifier (Kong)
        b"dpop",  # RFC 9449
        b"jwt",  # x-goog-iap-jwt-assertion, cf-access-jwt-assertion, x-jwt-assertion (WSO2)
        b"password",
        b"secret",
        b"signature",  # signature, signature-input (RFC 9421), x-signature, x-hub-signature-256
        b"token",  # x-amz-security-token, x-vault-token, private-token (GitLab), x-ms-token-aad-id-token
        b"userinfo",  # x-apigateway-api-userinfo (Google), x-userinfo (APISIX, Kong)
    }
)
"""Words of names of fields that say who the caller is, or prove it."""
_CREDENTIAL_ENDS: Final = (
    b"api-key",  # x-api-key (AWS API Gateway, Anthropic), api-key (Azure OpenAI), x-goog-api-key
    b"access-key",
    b"functions-key",  # x-functions-key (Azure Functions)
    b"rapidapi-key",
    b"subscription-key",  # ocp-apim-subscription-key (Azure API Management)
)
_CREDENTIAL_STARTS: Final = (
    b"cf-access-",  # Cloudflare Access
    b"kubeflow-userid",
    b"remote-user",
    b"ssl-client-",  # ingress-nginx; x-ssl-client-: HAProxy's usual names
    b"tailscale-user-",
    b"x-amzn-oidc-",  # AWS load balancers
    b"x-consumer-",  # Kong
    b"x-email",  # with x-user: oauth2-proxy's recipe for nginx
    b"x-forwarded-client-cert",  # Envoy
    b"x-forwarded-email",  # oauth2-proxy, likewise the next three
    b"x-forwarded-groups",
    b"x-forwarded-preferred-username",
    b"x-forwarded-user",
    b"x-goog-authenticated-user-",  # Google IAP
    b"x-ms-client-principal",  # Azure App Service
    b"x-remote-",  # proxies before Kubernetes' API
    b"x-ssl-client-",
    b"x-user",
    b"x-webauth-",  # Grafana
)
"""Beginnings of names of fields in which gateways say who the caller is."""

TO_MODEL: Final = frozenset({METHOD, MODEL_ID, CALL_CHAIN})
"""A client's `x-penstock-*` fields that a model gets."""

FROM_CLIENT: Final = frozenset({METHOD, MODEL_ID, SHARD_KEY, TIMEOUT_MS, PRIORITY, CALL_CHAIN})
"""The `x-penstock-*` fields that a client can send; the edge drops the others."""


def is_key_field(name: bytes) -> bool:
    """Whether requests that differ in a field share no batch: a model can act on it, or it is a credential.

    Credentials are known by their names: by the words and parts that vendors and gateways use.

    Args:
        name: the field's name in lower case.
    """
    if name in KEY_FIELDS:
        return True
    name = name.replace(b"_", b"-")
    if name.endswith(_CREDENTIAL_ENDS) or name.startswith(_CREDENTIAL_STARTS):
        return True
    return not _CREDENTIAL_WORDS.isdisjoint(name.split(b"-"))


def get(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of a field, or None.

    Args:
        headers: the fields.
        name: the field's name in lower case.
    """
    for key, value in headers:
        if key == name:
            return value
    return None


def without(headers: Headers, names: Iterable[bytes]) -> Headers:
    """Return the fields with names not among `names` (lower case)."""
    dropped = frozenset(names)
    return tuple(field for field in headers if field[0] not in dropped)


def end_to_end(headers: Headers) -> Headers:
    """Return the fields to forward: none that is hop-by-hop or named by `Connection`, no length."""
    named: set[bytes] = set()
    for key, value in headers:
        if key == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return tuple(field for field in headers if field[0] not in PER_CONNECTION and field[0] not in named)


def timeout_ms(headers: Headers) -> int | None:
    """Return the client's remaining time in milliseconds; None if it sent none, -1 if it is unreadable.

    A client with an unreadable value wants some limit: its request is refused (`errors.bad_timeout`).
    """
    return milliseconds(headers, TIMEOUT_MS)


def milliseconds(headers: Headers, name: bytes) -> int | None:
    """Return the milliseconds in a field; None if the field is missing, -1 if it is unreadable.

    Args:
        headers: the fields.
        name: the field's name in lower case.
    """
    value = get(headers, name)
    if value is None:
        return None
    if not value.isdigit():
        return -1
    return int(value) if len(value) <= 12 else _LONGEST_MS
