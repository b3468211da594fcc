"""ModelBackend: one version of one model, running as pods."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from penstock_operator.api.base import Part, Resource
from penstock_operator.api.batchpolicy import BatchPolicySpec
from penstock_operator.api.conditions import Status
from penstock_operator.api.core import Env, EnvFrom, Resources, VolumeMounts, Words
from penstock_operator.api.fields import (
    ANY_OBJECT,
    NOT_OURS,
    Duration,
    IntOrPercent,
    Name,
    cel,
    duration_rule,
    map_list,
    rules,
)

Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]
PullPolicy = Annotated[
    Literal["Always", "IfNotPresent", "Never"] | None,
    Field(
        description="When kubelet pulls the image: Always, IfNotPresent or Never. Default: Kubernetes' own."
    ),
]
Env_ = Annotated[Env, Field(description="Environment variables of the model container.")]
Resources_ = Annotated[Resources | None, Field(description="Compute resources of the model container.")]
VolumeMounts_ = Annotated[
    VolumeMounts, Field(description="Volumes of podTemplate.volumes that the model container sees.")
]


class ModelContainer(Part):
    """A container that serves the model over HTTP, a part of core/v1 Container; `lifecycle` is Penstock's."""

    image: Annotated[Image, Field(description="The image that serves the model.")]
    image_pull_policy: PullPolicy = None
    command: Annotated[Words, Field(description="Replaces the image's entrypoint.")] = ()
    args: Annotated[Words, Field(description="Arguments of the entrypoint.")] = ()
    env: Env_ = ()
    env_from: Annotated[
        tuple[EnvFrom, ...], Field(max_length=64, description="ConfigMaps and Secrets taken as environment.")
    ] = ()
    resources: Resources_ = None
    volume_mounts: VolumeMounts_ = ()
    security_context: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="The container's securityContext, as in core/v1; its fields replace Penstock's one "
            "by one. Default: restricted (non-root, read-only root with a writable /tmp, no capabilities, "
            "RuntimeDefault seccomp).",
        ),
    ] = None
    startup_probe: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="When the model counts as started, as in core/v1. Default none.",
        ),
    ] = None
    liveness_probe: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="When the model container is restarted, as in core/v1. Default none.",
        ),
    ] = None
    readiness_probe: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="A further condition of the pod's readiness, as in core/v1; the sidecar asks "
            "model.readyPath in any case. Default none.",
        ),
    ] = None


class ModelPython(Part):
    """A Python class that Penstock's SDK serves."""

    target: Annotated[
        str,
        Field(
            max_length=256,
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
            description="What to serve, as module:Class.",
        ),
    ]
    image: Annotated[Image, Field(description="The image that holds the code and penstock[sdk].")]
    image_pull_policy: PullPolicy = None
    init_kwargs: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="Keyword arguments of the class, any JSON. Default none.",
        ),
    ] = None
    env: Env_ = ()
    resources: Resources_ = None
    volume_mounts: VolumeMounts_ = ()


class Model(Part):
    """The model: how it is run and how it is spoken to."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.container) != has(self.python)",
                "expected exactly one of container and python",
                expression="'expected exactly one of container and python, found ' + "
                "(has(self.container) ? 'both' : 'neither')",
            )
        )
    )

    container: Annotated[
        ModelContainer | None,
        Field(description="Serve from a container of your own. Exactly one of container and python."),
    ] = None
    python: Annotated[
        ModelPython | None,
        Field(description="Serve a Python class. Exactly one of container and python."),
    ] = None
    protocol: Annotated[
        Literal["instances"],
        Field(
            description='What the model speaks. instances, the default: POST {"instances": [...]} is '
            'answered {"predictions": [...]}, one for each instance, in order.'
        ),
    ] = "instances"
    port: Annotated[
        int,
        Field(
            ge=1,
            le=65535,
            json_schema_extra=rules(
                cel(
                    "self != 8012 && self != 8013",
                    "expected a port other than 8012 and 8013, which are the sidecar's",
                    expression="'expected a port other than 8012 and 8013, which are the sidecar\\'s, found "
                    "' + (self == 8012 ? '8012' : '8013')",
                )
            ),
            description="The port the model listens on. Default 8080.",
        ),
    ] = 8080
    ready_path: Annotated[
        str,
        Field(
            max_length=1024,
            pattern=r"^/\S*$",
            description="Path that answers GET with 2xx once the model is loaded. Default /.",
        ),
    ] = "/"


class Autoscaling(Part):
    """Replicas that follow the load. The load is items waiting and items in the model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.minReplicas <= self.maxReplicas",
                "expected minReplicas of at most maxReplicas",
                expression="'expected minReplicas of at most maxReplicas (%d), found %d'"
                ".format([self.maxReplicas, self.minReplicas])",
            )
        )
    )

    min_replicas: Annotated[int, Field(ge=1, le=1000, description="Replicas at least. Default 1.")] = 1
    max_replicas: Annotated[int, Field(ge=1, le=1000, description="Replicas at most. Default 10.")] = 10
    target_load: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="Items, waiting and in the model, that one pod should have. The backend gets its "
            "load divided by this, rounded up.",
        ),
    ]
    stable_window: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("1s", "1h")),
            description="The load is averaged over this time. A load of twice what the ready pods should "
            "have, over a tenth of it, counts at once. Default 60s.",
        ),
    ] = "60s"
    downscale_delay: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("0s", "24h")),
            description="Replicas fall only to the most that was wanted within this time; they rise at once. "
            "Default 300s.",
        ),
    ] = "300s"


class Drain(Part):
    """How a pod that goes away finishes its work."""

    propagation_delay: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("0s", "10m")),
            description="How long a pod that goes away keeps taking requests, while routers learn of it. "
            "Default 5s.",
        ),
    ] = "5s"
    timeout: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("0s", "1h")),
            description="How long its queued items may then still be served; after it they are refused in a "
            "way that routers try elsewhere. 0s = at once. Default 30s.",
        ),
    ] = "30s"


class Rollout(Part):
    """How many pods a change may add and take away at a time."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!(string(self.maxSurge).matches('^0+%?$') && string(self.maxUnavailable).matches('^0+%?$'))",
                "expected maxSurge or maxUnavailable above 0, found both 0: no rollout could proceed",
            )
        )
    )

    max_surge: Annotated[
        IntOrPercent,
        Field(description="Pods beyond the replicas during a rollout, a number or a percentage. Default 1."),
    ] = 1
    max_unavailable: Annotated[
        IntOrPercent,
        Field(description="Pods that may be missing during a rollout, a number or a percentage. Default 0."),
    ] = 0


Raw = Annotated[dict[str, Any], Field(json_schema_extra=ANY_OBJECT, description="One entry, as in core/v1.")]
"""An entry of a list taken from core/v1 as it is."""


class Volume(Part):
    """A volume of the pods, as in core/v1."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            json_schema_extra=rules(NOT_OURS),
            description="Name of the volume, for volumeMounts.",
        ),
    ]


class PodTemplate(Part):
    """What the pods get beside the model and the sidecar."""

    labels: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                cel(
                    "self.all(k, !k.startsWith('penstock.dev/') && k != 'app.kubernetes.io/name' && "
                    "k != 'app.kubernetes.io/managed-by')",
                    "expected no label penstock.dev/..., app.kubernetes.io/name or "
                    "app.kubernetes.io/managed-by: they are Penstock's",
                )
            ),
            description="Labels of the pods.",
        ),
    ] = Field(default_factory=dict)
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=262_144)]],
        Field(max_length=64, description="Annotations of the pods."),
    ] = Field(default_factory=dict)
    volumes: Annotated[
        tuple[Volume, ...],
        Field(
            max_length=64,
            json_schema_extra=map_list("name"),
            description="Volumes of the pods, as in core/v1. Names that begin with penstock- are Penstock's.",
        ),
    ] = ()
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(max_length=64, description="Labels that a node must have."),
    ] = Field(default_factory=dict)
    affinity: Annotated[
        dict[str, Any] | None,
        Field(json_schema_extra=ANY_OBJECT, description="Affinity to nodes and pods, as in core/v1."),
    ] = None
    tolerations: Annotated[
        tuple[Raw, ...], Field(max_length=64, description="Taints that the pods tolerate, as in core/v1.")
    ] = ()
    topology_spread_constraints: Annotated[
        tuple[Raw, ...],
        Field(max_length=64, description="How the pods spread over the cluster, as in core/v1."),
    ] = ()
    priority_class_name: Annotated[
        str | None, Field(max_length=253, description="PriorityClass of the pods.")
    ] = None
    runtime_class_name: Annotated[
        str | None, Field(max_length=253, description="RuntimeClass of the pods.")
    ] = None
    image_pull_secrets: Annotated[
        tuple[Raw, ...],
        Field(max_length=16, description="Secrets to pull images with, each {name: ...}, as in core/v1."),
    ] = ()
    service_account_name: Annotated[
        str | None,
        Field(
            max_length=253,
            description="ServiceAccount of the pods. Its token is never mounted into the model container. "
            "Default, when absent: <name>-backend, made by Penstock, without any right.",
        ),
    ] = None
    security_context: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="securityContext of the pods, as in core/v1; its fields replace Penstock's one by "
            "one. Default: non-root, group 65532 for volumes, RuntimeDefault seccomp.",
        ),
    ] = None


class Sidecar(Part):
    """The sidecar in every pod of the backend."""

    resources: Annotated[
        Resources | None,
        Field(description="Compute resources of the sidecar. Default: requests of 100m CPU and 64Mi memory."),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="How much the sidecar logs. Default info."),
    ] = "info"


class ModelBackendSpec(Part):
    """One version of one model, and how it runs."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!(has(self.batching) && has(self.batchPolicyRef))",
                "expected at most one of batching and batchPolicyRef, found both",
            )
        )
    )

    model: Annotated[Model, Field(description="The model: how it is run and how it is spoken to.")]
    batching: Annotated[
        BatchPolicySpec | None,
        Field(
            description="How this backend batches. At most one of batching and batchPolicyRef; with neither, "
            "the defaults of a BatchPolicy hold."
        ),
    ] = None
    batch_policy_ref: Annotated[
        Name | None,
        Field(
            description="Name of the BatchPolicy to follow, in the same namespace. At most one of batching "
            "and batchPolicyRef."
        ),
    ] = None
    replicas: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="Pods to run. Also written through the scale subresource: by the autoscaler, an HPA, "
            "KEDA or kubectl scale. Default 1.",
        ),
    ] = 1
    autoscaling: Annotated[
        Autoscaling | None,
        Field(description="Let Penstock write replicas as the load asks. Default: off."),
    ] = None
    drain: Annotated[Drain, Field(description="How a pod that goes away finishes its work.")] = Drain()
    rollout: Annotated[
        Rollout, Field(description="How many pods a change may add and take away at a time.")
    ] = Rollout()
    pod_template: Annotated[
        PodTemplate | None, Field(description="What the pods get beside the model and the sidecar.")
    ] = None
    sidecar: Annotated[Sidecar, Field(description="The sidecar in every pod of the backend.")] = Sidecar()
    suspend: Annotated[
        bool,
        Field(
            description="Leave everything of this backend as it is: reconcile and scale nothing. Default "
            "false."
        ),
    ] = False


class LoadStatus(Part):
    """The load of all pods of a backend, refreshed at most every 15 seconds."""

    queued: Annotated[int, Field(description="Items that wait.")] = 0
    ongoing: Annotated[int, Field(description="Items that are with the model.")] = 0
    oldest_age_ms: Annotated[int, Field(description="How long the oldest waiting item has waited.")] = 0
    arrivals_per_minute: Annotated[int, Field(description="Items that arrived in a minute.")] = 0
    batch_fill_percent: Annotated[
        int, Field(description="How full the batches of the last minute were, in percent of maxBatchSize.")
    ] = 0


class ModelStatus(Part):
    """How the loading of the model stands."""

    state: Annotated[
        Literal["Pending", "Loading", "Loaded", "FailedToLoad"],
        Field(description="Pending: no pod runs. Loading: none answers readyPath yet. Loaded: one does."),
    ] = "Pending"
    last_failure: Annotated[
        str | None,
        Field(max_length=4096, description="Why the model did not start last time, with its last words."),
    ] = None


class ScalingInputs(Part):
    """What a decision of the autoscaler was made from."""

    load: Annotated[int, Field(description="Items, waiting and in the model, averaged, rounded up.")] = 0
    target_load: Annotated[int, Field(description="autoscaling.targetLoad.")] = 0
    wanted: Annotated[int, Field(description="load / targetLoad, rounded up, before any limit.")] = 0
    ready_pods: Annotated[int, Field(description="Pods whose reports were counted.")] = 0
    silent_pods: Annotated[
        int, Field(description="Pods that stopped reporting, counted with their last load.")
    ] = 0


class ScalingEntry(Part):
    """One change of the replicas."""

    time: Annotated[str, Field(json_schema_extra={"format": "date-time"}, description="When.")]
    from_: Annotated[int, Field(alias="from", description="Replicas before.")]
    to: Annotated[int, Field(description="Replicas after.")]
    reason: Annotated[str, Field(max_length=1024, description="Why, in words.")]
    inputs: Annotated[ScalingInputs, Field(description="What the decision was made from.")] = ScalingInputs()


class ModelBackendStatus(Status):
    """What Penstock observed of a ModelBackend."""

    replicas: Annotated[int, Field(description="Pods that there are.")] = 0
    ready_replicas: Annotated[int, Field(description="Pods that take requests.")] = 0
    updated_replicas: Annotated[int, Field(description="Pods of the current template.")] = 0
    selector: Annotated[
        str | None, Field(description="Label selector of the pods, for the scale subresource.")
    ] = None
    desired_replicas: Annotated[
        int | None, Field(description="What the autoscaler recommends; without it, spec.replicas.")
    ] = None
    load: Annotated[LoadStatus | None, Field(description="The load of all pods.")] = None
    model: Annotated[ModelStatus | None, Field(description="How the loading of the model stands.")] = None
    scaling: Annotated[
        tuple[ScalingEntry, ...],
        Field(max_length=10, description="The last changes of the replicas by the autoscaler, newest first."),
    ] = ()
    used_by: Annotated[
        tuple[Annotated[str, Field(max_length=128)], ...],
        Field(
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="What sends requests here: ModelEndpoint/NAME or TrafficSplit/NAME.",
        ),
    ] = ()
    settings_version: Annotated[
        int | None, Field(description="Version of the settings that the sidecars are told.")
    ] = None


class ModelBackend(Resource):
    """One version of one model, running as pods."""

    plural: ClassVar[str] = "modelbackends"

    spec: Annotated[ModelBackendSpec, Field(description="One version of one model, and how it runs.")]
    status: Annotated[
        ModelBackendStatus, Field(description="What Penstock observed. Written by the operator alone.")
    ] = ModelBackendStatus()
