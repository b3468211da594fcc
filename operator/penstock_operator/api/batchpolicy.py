"""BatchPolicy: how the sidecars of one or more backends batch, queue and refuse."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from penstock_operator.api.backendstatus import QueueLoad
from penstock_operator.api.base import Part, Resource
from penstock_operator.api.conditions import Status
from penstock_operator.api.fields import (
    Bytes,
    Duration,
    Form,
    bytes_rule,
    cel,
    duration_rule,
    gone,
    map_list,
    rules,
)
from penstock_wire import contract

_HEADER = Form(
    r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
    "expected the name of a header field, such as x-tenant: letters, digits, - and _, without blanks and :",
)

HeaderName = Annotated[
    str, Field(max_length=64, json_schema_extra=rules(_HEADER.rule)), AfterValidator(_HEADER.check)
]


class Priority(Part):
    """Levels of urgency; 1 is the most urgent."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.default <= self.levels",
                "expected default of at most levels",
                expression="'expected default of at most levels (%d), found %d'"
                ".format([self.levels, self.default])",
            )
        )
    )

    levels: Annotated[
        int,
        Field(
            ge=1,
            le=8,
            description="How many levels there are; 1 is the most urgent. Default 1: all are equally urgent.",
        ),
    ] = 1
    default: Annotated[
        int,
        Field(ge=1, le=8, description="Level of a request that names no existing level. Default 1."),
    ] = 1
    header: Annotated[
        HeaderName,
        Field(
            description="The request header that names the level. Who can send it can claim any level: "
            "name one that your edge sets, or let default be 1. Default x-penstock-priority."
        ),
    ] = "x-penstock-priority"


class Fairness(Part):
    """An equal share of the model for each value of a request header."""

    header: Annotated[
        HeaderName,
        Field(description="The request header; requests without it share one share."),
    ]


_COST_PATH = Form(
    contract.COST_PATH,
    "expected a path into an item: $, or members of objects, such as $.text or $.input.tokens",
)


class Cost(Part):
    """What an item costs the model."""

    path: Annotated[
        str,
        Field(
            max_length=256,
            json_schema_extra=rules(_COST_PATH.rule),
            description="Where each item has its cost: a text counts by its characters, an array by its "
            "elements, a number as it is (0 to 10^9, rounded up). $ is the item itself. An item without it "
            "is refused with 422 bad_shape. The tensors of protocol v2 count by their bytes.",
        ),
        AfterValidator(_COST_PATH.check),
    ]


class BatchPolicySpec(Part):
    """The batching of sidecars. Every field is hot: a change reaches them in seconds, nothing restarts."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.latencyObjective) || duration(self.latencyObjective) <= "
                "duration(self.defaultTimeout)",
                "expected latencyObjective of at most defaultTimeout",
                expression="'expected latencyObjective of at most defaultTimeout (' + "
                "self.defaultTimeout + '), "
                "found ' + self.latencyObjective",
            )
        )
    )

    max_batch_size: Annotated[
        int, Field(ge=1, le=4096, description="Items that one batch may hold at most. Default 32.")
    ] = 32
    max_batch_bytes: Annotated[
        Bytes,
        Field(
            json_schema_extra=bytes_rule("1Ki", "1Gi"),
            description="Bytes of items that one batch may hold at most, as a quantity such as 32Mi or a "
            "number of bytes. Default 32Mi.",
        ),
    ] = "32Mi"
    batch_wait_timeout: Annotated[
        Duration | None,
        Field(
            json_schema_extra=rules(duration_rule("0s", "60s")),
            description="How long a part-full batch may wait for more items while the model is free, counted "
            "from the arrival of its oldest item. 0ms: not at all. Default, when absent: a batch waits half "
            "of its time with the model at most, and only where callers who were just answered are about "
            "to ask again.",
        ),
    ] = None
    max_concurrent_batches: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="Batches that one pod's model runs at the same time. Default 1.",
        ),
        gone("auto", "give a number from 1 to 64; measure with 1, 2 and 4"),
    ] = 1
    latency_objective: Annotated[
        Duration | None,
        Field(
            json_schema_extra=rules(duration_rule("1ms", "24h")),
            description="The time in which a request should be answered, waiting and running. Admission, "
            "dropping and the size of batches go by it: what cannot keep it is refused at once, and batches "
            "stay small enough to keep it. At most defaultTimeout; a request's own shorter timeout counts. "
            "Default, when absent: requests' timeouts alone count.",
        ),
    ] = None
    default_timeout: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("1ms", "24h")),
            description="The time a request that names no timeout of its own has, waiting and running. "
            "Default 30s.",
        ),
    ] = "30s"
    max_queued_items: Annotated[
        int | None,
        Field(
            ge=0,
            le=1_000_000,
            description="Items that may wait in one pod; more are refused with 503. 0 = no queue. "
            "Default, when absent: what the pod answers within defaultTimeout (or latencyObjective), as far "
            "as its latest batches show; at least 8 full batches for each slot, and 1024 before any.",
        ),
    ] = None
    batch_key_headers: Annotated[
        tuple[HeaderName, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="Names of request headers whose values must be equal within one batch. Default none.",
        ),
    ] = ()
    on_batch_error: Annotated[
        Literal["Isolate", "Fail"] | None,
        Field(
            description="What follows when the model answers a batch of several requests with 500, 3xx or "
            "4xx (but 408, 425, 429). Isolate: parts of it are run again until each request has an answer of "
            "its own; where bad requests keep coming, batches become smaller. Fail: each gets 502 "
            "batch_failed. Default, when absent: Isolate.",
        ),
    ] = None
    priority: Annotated[
        Priority,
        Field(
            description="Levels of urgency: a more urgent request goes first, but none waits for ever. "
            "Default: one level."
        ),
    ] = Priority()
    fairness: Annotated[
        Fairness | None,
        Field(
            description="Share the model equally between the values of a request header, such as one that "
            "names the tenant. Default: first come, first served."
        ),
    ] = None
    cost: Annotated[
        Cost | None,
        Field(
            description="What an item costs, where its bytes do not show it. Penstock learns from the times "
            "of batches how much that counts, and cuts by it where it does. Default: an item's bytes."
        ),
    ] = None
    max_batch_cost: Annotated[
        int | None,
        Field(
            ge=1,
            le=10**12,
            description="How much one batch may cost at most: the number of its items times the largest cost "
            "among them, as memory goes where items are padded. A single larger item goes alone. Default: "
            "no limit.",
        ),
    ] = None
    reuse: Annotated[
        Literal["InFlight"] | None,
        Field(
            description="InFlight: a request that is the same as one that waits or runs (equal bytes, "
            "accept-encoding and range, and all that a batch has in common) waits for its answer instead of "
            "running again. Only successes are shared, and no streams; nothing is kept once it is answered. "
            "For models that answer the same to the same. Default, when absent: each request runs."
        ),
    ] = None


class PolicyUser(Part):
    """A backend, or a workload with injected sidecars, that uses a policy."""

    name: Annotated[
        str, Field(description="Name of the ModelBackend; of a workload with its kind, as Deployment/name.")
    ]
    applied_generation: Annotated[
        int | None,
        Field(description="The policy's metadata.generation that all ready pods of the backend obey."),
    ] = None
    pods: Annotated[int, Field(description="Ready pods of the backend that obey the current policy.")] = 0


class PolicyWorkload(PolicyUser):
    """A workload with injected sidecars that uses a policy."""

    load: Annotated[QueueLoad | None, Field(description="The queues of all its pods.")] = None


class BatchPolicyStatus(Status):
    """The observed state of a BatchPolicy."""

    workloads: Annotated[
        tuple[PolicyWorkload, ...],
        Field(
            default=(),
            json_schema_extra=map_list("name"),
            description="The workloads whose pods name this policy in the label penstock.dev/inject and have "
            "the sidecar, and how far they have taken it up.",
        ),
    ] = ()

    backends: Annotated[
        tuple[PolicyUser, ...],
        Field(
            default=(),
            json_schema_extra=map_list("name"),
            description="The backends that name this policy, and how far they have taken it up.",
        ),
    ] = ()

    policies: Annotated[
        tuple[str, ...] | None,
        Field(
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="All BatchPolicies of the namespace, by which the API server says that the label "
            "penstock.dev/inject names none of them; absent if there are more than 100.",
        ),
    ] = None


class BatchPolicy(Resource):
    """The rules by which the sidecars of the backends that name it batch, queue and refuse."""

    plural: ClassVar[str] = "batchpolicies"

    spec: Annotated[BatchPolicySpec, Field(description="How to batch, queue and refuse.")]
    status: Annotated[
        BatchPolicyStatus, Field(description="What Penstock observed. Written by the operator alone.")
    ] = BatchPolicyStatus()
