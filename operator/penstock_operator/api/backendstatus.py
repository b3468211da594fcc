"""`status` of a ModelBackend: its observed state."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock_operator.api.base import Part
from penstock_operator.api.conditions import Status
from penstock_operator.api.fields import map_list


class QueueLoad(Part):
    """The queues of all pods of a workload, refreshed within 3 seconds; later if many workloads are busy."""

    queued: Annotated[int, Field(description="Items that wait.")] = 0
    ongoing: Annotated[int, Field(description="Items that are with the model.")] = 0
    oldest_age_ms: Annotated[int, Field(description="How long the oldest waiting item has waited.")] = 0
    arrivals_per_minute: Annotated[int, Field(description="Items that arrived in a minute.")] = 0
    batch_fill_percent: Annotated[
        int,
        Field(
            description="How full the batches of the last minute were, in percent of maxBatchSize: 100 if "
            "they were made under a larger one."
        ),
    ] = 0


class ByCostStatus(Part):
    """The batches of a backend whose items differ in cost, as the sidecar with the most has learned it."""

    items: Annotated[int, Field(description="Items of a usual batch.")]
    cost: Annotated[int, Field(description="Sum of their costs: bytes, or what batching.cost counts.")]
    milliseconds: Annotated[int, Field(description="How long such a batch is predicted to take.")]
    terms: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...],
        Field(
            max_length=8,
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="What a batch's time goes by: item (their number), cost (the sum of their costs), "
            "padded (their number times the largest cost), square (times its square).",
        ),
    ]
    error_percent: Annotated[
        int, Field(description="Median error of a batch's predicted time, in percent of it.")
    ]
    error_by_items_percent: Annotated[
        int, Field(description="What that error would be by the number of items alone.")
    ]


class LoadStatus(QueueLoad):
    """The load of all pods of a backend, refreshed within 3 seconds; later if many backends are busy."""

    requests_per_minute: Annotated[
        int, Field(description="Requests that routers answered within the last minute, errors included.")
    ] = 0
    refused_per_minute: Annotated[
        int,
        Field(
            description="Of these, refused by Penstock for lack of room, time or a ready pod; each with its "
            "reason in errors."
        ),
    ] = 0
    failed_per_minute: Annotated[
        int, Field(description="Of these, answered with another error of 500 or above, the model's included.")
    ] = 0
    errors: Annotated[
        dict[str, int],
        Field(
            max_length=32,
            default_factory=dict,
            description="The refused and failed ones by reason; model_answer is an error that the model gave "
            "without a reason of Penstock's.",
        ),
    ]
    by_cost: Annotated[
        ByCostStatus | None,
        Field(description="What batches are where items differ in cost; absent where their number decides."),
    ] = None


class CrashStatus(Part):
    """An end of a model's container that nobody asked for."""

    pod: Annotated[str, Field(max_length=253, description="Name of the pod.")]
    time: Annotated[str, Field(max_length=64, description="When the container ended.")]
    message: Annotated[
        str, Field(max_length=4096, description="Its exit code and the cause, and its last words.")
    ]


class ModelStatus(Part):
    """The state of the model's loading."""

    state: Annotated[
        Literal["Pending", "Loading", "Loaded", "FailedToLoad"],
        Field(description="Pending: no pod runs. Loading: none answers readyPath yet. Loaded: one does."),
    ] = "Pending"
    last_failure: Annotated[
        str | None,
        Field(max_length=4096, description="Why the model did not start last time, with its last words."),
    ] = None
    restarts: Annotated[
        int | None, Field(description="Restarts of the model's container in the pods that there are.")
    ] = None
    last_crash: Annotated[
        CrashStatus | None,
        Field(description="The last end of a model's container that was restarted; it stays after its pod."),
    ] = None


class ArtifactStatus(Part):
    """The files of the model that its pods download."""

    source: Annotated[
        str,
        Field(max_length=64, description="Names the uri, include and digest of the spec that this is of."),
    ]
    digest: Annotated[
        str | None,
        Field(
            max_length=71,
            description="What the files of the first download were; a pod that finds others does not serve.",
        ),
    ] = None
    bytes: Annotated[int | None, Field(description="Size of the files, as far as it is known.")] = None
    downloaded: Annotated[
        int | None, Field(description="Bytes in the pod that is the furthest; absent if none downloads.")
    ] = None
    progress: Annotated[
        str | None,
        Field(
            max_length=128,
            description="The same in words, such as 3.1 of 14.2 GB, 180 MB/s, 62 s left. Refreshed when a "
            "twentieth more is there.",
        ),
    ] = None


class SidecarStatus(Part):
    """The sidecar in the backend's pods."""

    image: Annotated[str, Field(max_length=1024, description="Image of the sidecar in the pods' template.")]
    upgrade_pending: Annotated[
        bool | None,
        Field(
            description="true: the operator would render the pods otherwise now, such as with a newer "
            "sidecar. The next change that rolls them brings it; sidecar.upgrade: Now brings it at once."
        ),
    ] = None


class ReconfigureStatus(Part):
    """The answer of one pod's model to the userConfig."""

    pod: Annotated[str, Field(max_length=253, description="Name of the pod.")]
    version: Annotated[int, Field(description="Version of the settings that brought the userConfig.")]
    ok: Annotated[bool, Field(description="Whether the model took it; if not, its last one is in force.")]
    message: Annotated[str, Field(max_length=1024, description="What the model said, where it refused.")] = ""


class ScalingInputs(Part):
    """The inputs of a decision of the autoscaler."""

    load: Annotated[
        int,
        Field(description="Items, waiting and in the model, and held requests; averaged, rounded up."),
    ] = 0
    held: Annotated[
        int, Field(description="Requests that routers held for it just then: each counts as an item.")
    ] = 0
    target_load: Annotated[
        int,
        Field(description="autoscaling.targetLoad; if unset, what a pod should have by its service curve."),
    ] = 0
    by_load: Annotated[
        int | None, Field(description="Replicas that the load asks for. Absent with targetLoad: see wanted.")
    ] = None
    by_rate: Annotated[
        int | None,
        Field(
            description="Replicas that the arrivals ask for. Absent with targetLoad, and until batches have "
            "been measured."
        ),
    ] = None
    arrivals_per_minute: Annotated[
        int | None, Field(description="Items that arrived in a minute, where they ask for replicas.")
    ] = None
    expected_per_minute: Annotated[
        int | None,
        Field(description="The same by the time that pods are ready which start now: more where they rise."),
    ] = None
    reserve_per_minute: Annotated[
        int | None,
        Field(
            description="The greatest rise of arrivals lately within such a time: replicas do not fall below "
            "what takes it, too, before downscaleDelay has passed."
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        Field(description="Items of the largest batch that keeps latencyObjective. Absent with targetLoad."),
    ] = None
    batch_ms: Annotated[
        int | None, Field(description="Milliseconds that such a batch takes. Absent until it is known.")
    ] = None
    refused: Annotated[int, Field(description="Items refused for a full queue just before.")] = 0
    wanted: Annotated[
        int,
        Field(
            description="Replicas before any limit: load / targetLoad, rounded up, or the more of byLoad and "
            "byRate; while items are refused for a full queue, one more than are ready at least."
        ),
    ] = 0
    ready_pods: Annotated[int, Field(description="Pods whose reports were counted.")] = 0
    silent_pods: Annotated[
        int, Field(description="Pods that stopped reporting, counted with their last load.")
    ] = 0
    processor_wait_percent: Annotated[
        int | None,
        Field(
            description="Percent of the time for which a ready pod, or a router that holds requests, could "
            "have run but had no processor: of the one that waited most. Absent where unknown."
        ),
    ] = None


class RecommendationStatus(Part):
    """The recommendation as of its last change of number or verdict; `inputs` is refreshed as `load` is."""

    verdict: Annotated[
        str,
        Field(
            max_length=64,
            description="What decides the number now: Scale: the load. Steady: the load asks for what is "
            "there. Limited: maxReplicas. Schedule: a limit of a schedule. Release: a release "
            "needs so many. Delayed: it may not fall yet. Panic: nor so soon after a burst. "
            "FirstLook: the operator has not "
            "watched for a stable window yet. ShortOfProcessors: pods start step by step. NoHolder: no "
            "endpoint would hold a request at 0. NoReports, TooManyUnknown: too little is known.",
        ),
    ]
    message: Annotated[str, Field(max_length=1024, description="The computation in words.")]
    since: Annotated[
        str,
        Field(
            json_schema_extra={"format": "date-time"},
            description="Since when it has been this number with this verdict.",
        ),
    ]
    inputs: Annotated[ScalingInputs, Field(description="The terms that it was made from.")] = ScalingInputs()


class ScalingEntry(Part):
    """One change of the replicas."""

    time: Annotated[str, Field(json_schema_extra={"format": "date-time"}, description="When.")]
    from_: Annotated[int, Field(alias="from", description="Replicas before.")]
    to: Annotated[int, Field(description="Replicas after.")]
    reason: Annotated[str, Field(max_length=1024, description="Why, in words.")]
    inputs: Annotated[ScalingInputs, Field(description="What the decision was made from.")] = ScalingInputs()


class ModelBackendStatus(Status):
    """The observed state of a ModelBackend."""

    replicas: Annotated[int, Field(description="Pods that exist.")] = 0
    ready_replicas: Annotated[int, Field(description="Pods that take requests.")] = 0
    updated_replicas: Annotated[int, Field(description="Pods of the current template.")] = 0
    first_ready_time: Annotated[
        str | None,
        Field(
            json_schema_extra={"format": "date-time"},
            description="When a pod was ready for the first time. Before that, a TrafficSplit gives the "
            "backend no share while another of its backends is ready.",
        ),
    ] = None
    selector: Annotated[
        str | None, Field(description="Label selector of the pods, for the scale subresource.")
    ] = None
    desired_replicas: Annotated[
        int | None,
        Field(
            description="What the autoscaler recommends, with mode External too; without one, spec.replicas."
        ),
    ] = None
    recommendation: Annotated[
        RecommendationStatus | None,
        Field(description="Why the autoscaler recommends desiredReplicas; absent without autoscaling."),
    ] = None
    load: Annotated[LoadStatus | None, Field(description="The load of all pods.")] = None
    model: Annotated[ModelStatus | None, Field(description="How the loading of the model stands.")] = None
    artifact: Annotated[
        ArtifactStatus | None,
        Field(description="The files that pods download; absent without spec.model.artifact."),
    ] = None
    sidecar: Annotated[SidecarStatus | None, Field(description="What is beside the model in the pods.")] = (
        None
    )
    reconfigure: Annotated[
        tuple[ReconfigureStatus, ...] | None,
        Field(
            max_length=10,
            json_schema_extra=map_list("pod"),
            description="How the pods' models took the latest userConfig: those that refused it first, "
            "ten at "
            "most.",
        ),
    ] = None
    scaling: Annotated[
        tuple[ScalingEntry, ...],
        Field(max_length=10, description="The last changes of the replicas by the autoscaler, newest first."),
    ] = ()
    used_by: Annotated[
        tuple[Annotated[str, Field(max_length=128)], ...],
        Field(
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="Who uses it: ModelEndpoint/NAME for an endpoint that names it as its backend, "
            "TrafficSplit/NAME for a split that shares requests to it, of weight 0 too.",
        ),
    ] = ()
    settings_version: Annotated[
        int | None, Field(description="Version of the settings that the sidecars get.")
    ] = None
    settings_digest: Annotated[
        str | None,
        Field(
            max_length=64,
            description="Digest of these settings. A suspended backend keeps those of its ConfigMap only "
            "if they have this digest.",
        ),
    ] = None
