"""Makes conditions and status documents from what was observed. Pure: the time is an argument.

Read in this order: `conditions` (how they merge), `pods` (kubelet's reasons for troubled containers),
`refusals` (the apiserver's reasons for refused writes), then the kinds: `artifact` and `backend`, `endpoint`
(with `RouterObserved`), `mirrors` and `split`, `policy`.
"""

from penstock_operator.status.backend import (
    HISTORY,
    BackendObserved,
    backend_status,
    by_cost,
    is_waking,
    load_moved,
    terms_moved,
    unreadable_status,
)
from penstock_operator.status.conditions import condition, merge, parse_failed
from penstock_operator.status.endpoint import EndpointObserved, RouterObserved, endpoint_status, router_ready
from penstock_operator.status.policy import PolicyUse, policy_status
from penstock_operator.status.refusals import Refusal, refusal
from penstock_operator.status.split import split_status

__all__ = [
    "HISTORY",
    "BackendObserved",
    "EndpointObserved",
    "PolicyUse",
    "Refusal",
    "RouterObserved",
    "backend_status",
    "by_cost",
    "condition",
    "endpoint_status",
    "is_waking",
    "load_moved",
    "merge",
    "parse_failed",
    "policy_status",
    "refusal",
    "router_ready",
    "split_status",
    "terms_moved",
    "unreadable_status",
]
