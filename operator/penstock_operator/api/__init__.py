"""The custom resources as pydantic models, their derived defaults, and the CRDs generated from them.

Read in this order: `base`, `fields` and `conditions` (shared by all kinds), the four kinds: `batchpolicy`,
`modelbackend` (with `model`, `artifact`, `podtemplate`, `warmup`, `schedules`, `backendstatus`, and `core`
for types from core/v1), `modelendpoint`, `trafficsplit` (with `match`, `mirror_compare` and `strategy`);
`defaults` (defaults that a schema cannot fill), then `schema` and `crds` (the YAML), `reference` (the pages
of docs/reference).
"""

from penstock_operator.api.base import API_VERSION, GROUP, VERSION, Resource, ResourceError
from penstock_operator.api.batchpolicy import BatchPolicy, BatchPolicySpec
from penstock_operator.api.conditions import Condition
from penstock_operator.api.modelbackend import ModelBackend, ModelBackendSpec
from penstock_operator.api.modelendpoint import ModelEndpoint, ModelEndpointSpec
from penstock_operator.api.trafficsplit import TrafficSplit, TrafficSplitSpec

KINDS: dict[str, type[Resource]] = {
    "BatchPolicy": BatchPolicy,
    "ModelBackend": ModelBackend,
    "ModelEndpoint": ModelEndpoint,
    "TrafficSplit": TrafficSplit,
}
"""The model of each kind."""

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "BatchPolicy",
    "BatchPolicySpec",
    "Condition",
    "ModelBackend",
    "ModelBackendSpec",
    "ModelEndpoint",
    "ModelEndpointSpec",
    "Resource",
    "ResourceError",
    "TrafficSplit",
    "TrafficSplitSpec",
]
