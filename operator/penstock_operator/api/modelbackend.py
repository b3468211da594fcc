"""ModelBackend: one version of one model, running as pods."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from penstock_operator.api.backendstatus import ModelBackendStatus
from penstock_operator.api.base import Part, Resource
from penstock_operator.api.batchpolicy import BatchPolicySpec
from penstock_operator.api.core import Resources
from penstock_operator.api.fields import (
    ANY_OBJECT,
    Duration,
    IntOrPercent,
    Name,
    cel,
    duration_rule,
    map_list,
    rules,
)
from penstock_operator.api.model import Model
from penstock_operator.api.podtemplate import PodTemplate
from penstock_operator.api.schedules import Schedule
from penstock_operator.api.warmup import Warmup


class ScaleToZero(Part):
    """The condition under which the last pod is removed."""

    after: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("10s", "24h")),
            description="How long there must have been no request: none that arrived, waited, was with the "
            "model or was held by a router.",
        ),
    ]


_LEAST = "(has(s.minReplicas) ? s.minReplicas : self.minReplicas)"
_MOST = "(has(s.maxReplicas) ? s.maxReplicas : self.maxReplicas)"
"""The maxReplicas in force during a schedule `s`, in CEL."""


class Autoscaling(Part):
    """Replicas that follow the load: items waiting and in the model, and requests that routers hold."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.minReplicas <= self.maxReplicas",
                "expected minReplicas of at most maxReplicas",
                expression="'expected minReplicas of at most maxReplicas (%d), found %d'"
                ".format([self.maxReplicas, self.minReplicas])",
            ),
            cel(
                "self.minReplicas > 0 || has(self.scaleToZero)",
                "expected scaleToZero.after with minReplicas 0: how long a backend without requests keeps "
                "its last pod",
            ),
            cel(
                "self.minReplicas == 0 || !has(self.scaleToZero)",
                "expected scaleToZero only with minReplicas 0",
                expression="'expected scaleToZero only with minReplicas 0, found minReplicas %d'"
                ".format([self.minReplicas])",
            ),
            cel(
                f"!has(self.schedules) || !self.schedules.exists(s, {_LEAST} > {_MOST})",
                "expected minReplicas of at most maxReplicas in each, where what a schedule leaves out is "
                "that of autoscaling",
                expression="'expected minReplicas of at most maxReplicas in each, where what a schedule "
                "leaves out is that of autoscaling, found %s'.format([self.schedules"
                f".filter(s, {_LEAST} > {_MOST})"
                f".map(s, '%s with %d and %d'.format([s.name, {_LEAST}, {_MOST}]))])",
                path=".schedules",
            ),
            cel(
                "!has(self.schedules) || has(self.scaleToZero) || "
                "self.schedules.all(s, !has(s.minReplicas) || s.minReplicas > 0)",
                "expected autoscaling.scaleToZero.after with minReplicas 0",
                expression="'expected autoscaling.scaleToZero.after with minReplicas 0, found none, and "
                "minReplicas 0 in %s'.format([self.schedules"
                ".filter(s, has(s.minReplicas) && s.minReplicas == 0).map(s, s.name)])",
                path=".schedules",
            ),
        )
    )

    mode: Annotated[
        Literal["Builtin", "External"],
        Field(
            description="Who writes replicas. Builtin, the default: Penstock. External: another scaler, such "
            "as an HPA or KEDA; Penstock never writes them, and what it recommends is in "
            "status.desiredReplicas, in metrics and on the operator's port."
        ),
    ] = "Builtin"
    min_replicas: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="Replicas at least. 0 needs scaleToZero.after, and an endpoint that sends the "
            "backend requests. Default 1.",
        ),
    ] = 1
    max_replicas: Annotated[int, Field(ge=1, le=1000, description="Replicas at most. Default 10.")] = 10
    target_load: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="Items, waiting and in the model, that one pod should have. The backend gets its "
            "load divided by this, rounded up. Default, when absent: as many pods as answer what arrives "
            "within latencyObjective, by how long their batches take.",
        ),
    ] = None
    scale_to_zero: Annotated[
        ScaleToZero | None,
        Field(
            description="When the last pod goes, with minReplicas 0. Routers then hold requests, and the "
            "first one starts a pod. Default: never."
        ),
    ] = None
    schedules: Annotated[
        tuple[Schedule, ...],
        Field(
            max_length=8,
            json_schema_extra=map_list("name"),
            description="Other limits at certain times, such as more replicas in office hours. Where two "
            "hold at the same time, none does, and the condition Accepted says so. Default none.",
        ),
    ] = ()
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
            "Without targetLoad they fall sooner, as far as they leave room for the steepest rise of "
            "arrivals within this time. Default 300s.",
        ),
    ] = "300s"


class Drain(Part):
    """The drain of a pod: how it finishes its work before it stops."""

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
    """The number of pods that a change can add and remove at a time."""

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


class DisruptionBudget(Part):
    """The number of pods that node drains can remove at a time."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.maxUnavailable) != has(self.minAvailable)",
                "expected exactly one of maxUnavailable and minAvailable",
                expression="'expected exactly one of maxUnavailable and minAvailable, found ' + "
                "(has(self.maxUnavailable) ? 'both' : 'neither')",
            )
        )
    )

    max_unavailable: Annotated[
        IntOrPercent | None, Field(description="Pods that may be missing, a number or a percentage.")
    ] = None
    min_available: Annotated[
        IntOrPercent | None, Field(description="Pods that must stay, a number or a percentage.")
    ] = None


class Sidecar(Part):
    """The sidecar in every pod of the backend."""

    resources: Annotated[
        Resources | None,
        Field(
            description="Compute resources of the sidecar; they replace the installation's as a whole, "
            "limits too. Default: as the installation says (sidecar.resources): requests of 100m CPU and "
            "64Mi memory, limits of 1 CPU and 1Gi."
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="How much the sidecar logs. Default info."),
    ] = "info"
    upgrade: Annotated[
        Literal["OnNextChange", "Now"],
        Field(
            description="When the pods get what an upgraded operator renders differently, such as a newer "
            "sidecar. OnNextChange, the default: with the next change of model, warmup, podTemplate, drain "
            "or sidecar, which rolls them anyway. Now: at once, and while it stands here with each upgrade."
        ),
    ] = "OnNextChange"


class ModelBackendSpec(Part):
    """One version of one model, and how it runs."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!(has(self.batching) && has(self.batchPolicyRef))",
                "expected at most one of batching and batchPolicyRef, found both",
            ),
            cel(
                "!has(self.maxOngoingRequests) || self.model.protocol in ['none', 'openai']",
                "expected maxOngoingRequests only with model.protocol none or openai: else "
                "maxConcurrentBatches limits what is with the model",
                expression="'expected maxOngoingRequests only with model.protocol none or openai, found "
                "it with "
                "' + self.model.protocol + ': there maxConcurrentBatches limits what is with the model'",
            ),
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
    max_ongoing_requests: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="Requests that are with one pod's model at the same time where nothing is "
            "batched; more "
            "wait. Only with model.protocol none or openai (for what openai passes through). Hot. Default, "
            "when absent: 100.",
        ),
    ] = None
    user_config: Annotated[
        Any,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="What the model is configured with, any JSON. It is given to the model before it "
            "gets "
            "requests, and again on each change, with no batch in it; nothing restarts. A python model "
            "takes it "
            "with its method reconfigure, a container at model.reconfigurePath. One that the model refuses "
            "leaves the last one in force: SettingsApplied is then False with reason ReconfigureFailed. "
            "Default none.",
        ),
    ] = None
    warmup: Annotated[
        Warmup | None,
        Field(
            description="Requests that each new pod's model must answer before the pod is ready. A "
            "change rolls "
            "the pods. Default none."
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
    disruption_budget: Annotated[
        DisruptionBudget | None,
        Field(
            description="How many pods may be taken away at a time where nodes are drained. Default, when "
            "absent: maxUnavailable 1 with more than one replica, none with one."
        ),
    ] = None
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


class ModelBackend(Resource):
    """One version of one model, running as pods."""

    plural: ClassVar[str] = "modelbackends"

    spec: Annotated[ModelBackendSpec, Field(description="One version of one model, and how it runs.")]
    status: Annotated[
        ModelBackendStatus, Field(description="What Penstock observed. Written by the operator alone.")
    ] = ModelBackendStatus()
