"""The status of a ModelBackend."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET

from penstock_operator.api import Condition, ModelBackend
from penstock_operator.api.backendstatus import (
    ArtifactStatus,
    ByCostStatus,
    CrashStatus,
    LoadStatus,
    ModelBackendStatus,
    ModelStatus,
    QueueLoad,
    RecommendationStatus,
    ReconfigureStatus,
    ScalingEntry,
    SidecarStatus,
)
from penstock_operator.api.defaults import reconfigure_path
from penstock_operator.autoscaling import NO_HOLDER, Recommendation
from penstock_operator.desired import labels, names
from penstock_operator.desired.objects import Object
from penstock_operator.desired.settings import lacks
from penstock_operator.status import conditions, pods
from penstock_operator.status.artifact import artifact_status
from penstock_operator.status.conditions import condition
from penstock_operator.status.refusals import Refusal
from penstock_wire import durations
from penstock_wire.control.report import SidecarReport
from penstock_wire.words import cut

ModelState = Literal["Pending", "Loading", "Loaded", "FailedToLoad"]

HISTORY = 10
"""Entries that a status keeps in `scaling` and in `reconfigure`."""
_SAID = 1024
"""Characters of a model's message, or of the autoscaler's, that a status keeps."""
_AT_ZERO = ("ScaledToZero", "spec.replicas is 0")
_SHOW_LOAD_SHARE = 0.1
_QUIET = {"processor_wait_percent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendObserved:
    """The observed state of a backend.

    Args:
        reports: the last report of each pod by name, of pods that reported lately (say 10 s).
        record_changed: whether their ConfigMap, which a suspended backend's pods start from, has others.
        policy_missing: whether `batchPolicyRef` names a policy that does not exist.
        taken: children with names that are taken by others' objects, as `Service/NAME`; left untouched.
        refused: why the apiserver refused a child, if it did (an image name, a quota, a webhook).
        scale_refused: why it refused the autoscaler's number, if it did.
        recommendation: the autoscaler's last recommendation; None without autoscaling.
        terms: whether to show its current terms, not those of the last change of its number.
        scaled: changes through `/scale` that may be missing in `status.scaling`, the oldest first.
        foreign_scaler: another manager that sets the replicas beside the autoscaler.
        foreign_applies: whether it applies them in the spec; else it writes `/scale`.
        foreign_stands: seconds for which its number stands, from when it was observed.
        batching_note: why a batch can never be full, if so (`defaults.unreachable_batch`).
        target_note: why a pod's load can never exceed its target, if so (`defaults.unreachable_target`).
        schedule_note: why its schedules are invalid, if they are.
        objective: `latencyObjective` of its policy, as written.
        item_seconds: seconds that a batch of one item takes; None if that is unknown.
        held: what a suspended backend leaves unchanged: its "pods", its "settings".
    """

    deployment: Object | None = None
    pods: Sequence[Object] = ()
    reports: Mapping[str, SidecarReport] = field(default_factory=dict)
    settings_version: int = 0
    settings_digest: str = ""
    record_changed: bool = False
    policy_missing: bool = False
    taken: Sequence[str] = ()
    refused: Refusal | None = None
    scale_refused: Refusal | None = None
    used_by: Sequence[str] = ()
    load: LoadStatus | None = None
    recommendation: Recommendation | None = None
    terms: bool = False
    scaled: Sequence[ScalingEntry] = ()
    foreign_scaler: str | None = None
    foreign_applies: bool = False
    foreign_stands: float = 0.0
    batching_note: str | None = None
    target_note: str | None = None
    objective: str | None = None
    item_seconds: float | None = None
    unreachable: bool = False
    schedule_note: str | None = None
    upgrade_pending: bool = False
    held: Collection[str] = ()


def backend_status(backend: ModelBackend, seen: BackendObserved, *, now: str) -> dict[str, Any]:
    """Make the whole status of a backend, for manager `penstock-status` to apply.

    The old status is `backend.status`: unchanged parts keep their times, and the result equals the old
    status if nothing changed.
    """
    old = backend.status
    counts = (seen.deployment or {}).get("status", {})
    # NB: what is wrong with pods of the version before says nothing of this one.
    wrong = pods.refused(seen.deployment) or pods.trouble(pods.of_rollout(seen.pods, seen.deployment))
    model = _model_status(seen, wrong)
    files = artifact_status(backend, seen.reports)
    applied = _settings_applied(backend, seen)
    status_conditions = [
        _available(backend, seen, wrong),
        _model_loaded(backend, seen, model, wrong, files),
        applied,
        *_accepted(backend, seen),
        *_scaling(backend, seen, wrong),
    ]
    ready, reconciling, stalled = _ready(backend, seen, wrong, applied)
    status_conditions += [ready, *conditions.flags(ready, reconciling=reconciling, stalled=stalled)]
    if model.last_failure is None and ready.status != "True" and old.model is not None:
        model = model.model_copy(update={"last_failure": old.model.last_failure})
    if old.model is not None and old.model.last_crash is not None:
        crashes = [old.model.last_crash, model.last_crash or old.model.last_crash]
        model = model.model_copy(update={"last_crash": max(crashes, key=lambda crash: crash.time)})
    generation = backend.metadata.generation
    return ModelBackendStatus(
        observed_generation=generation,
        replicas=counts.get("replicas") or 0,
        ready_replicas=counts.get("readyReplicas") or 0,
        updated_replicas=counts.get("updatedReplicas") or 0,
        first_ready_time=old.first_ready_time or (now if counts.get("readyReplicas") else None),
        selector=labels.selector_text(labels.backend_selector(backend.name)),
        desired_replicas=_desired(backend, seen),
        recommendation=_recommendation(backend, seen, now),
        load=seen.load,
        model=model,
        artifact=files,
        sidecar=_sidecar(seen),
        reconfigure=_reconfigured(seen) or None,
        scaling=_history(backend, seen),
        used_by=tuple(seen.used_by),
        settings_version=seen.settings_version or None,
        settings_digest=seen.settings_digest or None,
    ).document() | {
        "conditions": conditions.merge(old.conditions, status_conditions, generation=generation, now=now)
    }


def unreadable_status(
    stored: Mapping[str, Any], error: str, *, deployment: Object | None, now: str
) -> dict[str, Any]:
    """Make the status of an unreadable backend: its pods are still counted, for `/scale`."""
    counts = (deployment or {}).get("status") or {}
    selector = labels.selector_text(labels.backend_selector(stored["metadata"]["name"]))
    return conditions.parse_failed(stored, error, now=now) | {
        "replicas": counts.get("replicas") or 0,
        "readyReplicas": counts.get("readyReplicas") or 0,
        "updatedReplicas": counts.get("updatedReplicas") or 0,
        "selector": selector,
    }


def load_moved(old: QueueLoad | None, new: QueueLoad) -> bool:
    """Whether the load has moved from the one in a status: a number by more than a tenth, or a new reason."""
    if old is None:
        return True
    if old == new:
        return False
    before, after = old.model_dump(), new.model_dump()
    if before.pop("errors", {}).keys() != after.pop("errors", {}).keys():
        return True
    learned, now = before.pop("by_cost", None), after.pop("by_cost", None)
    if (learned and learned["terms"]) != (now and now["terms"]):
        return True
    return any(abs(after[key] - before[key]) > _SHOW_LOAD_SHARE * abs(before[key]) for key in before)


def by_cost(reports: Collection[SidecarReport]) -> ByCostStatus | None:
    """What batches are where items differ in cost: of the class and the pod with the most; None elsewhere."""
    fits = [fit for report in reports for fit in report.fit.values()]
    fit = max(fits, key=lambda each: each.n, default=None)
    if fit is None or fit.batch is UNSET or fit.work is UNSET:
        return None
    a_ms, b_ms = fit.bounded()
    return ByCostStatus(
        items=round(fit.batch.items),
        cost=round(fit.batch.cost),
        milliseconds=round(a_ms + b_ms * (fit.items or 0.0)),
        terms=tuple(sorted({name[:64] for name in fit.work})),
        error_percent=round(100 * fit.batch.error),
        error_by_items_percent=round(100 * fit.batch.error_by_items),
    )


def terms_moved(old: RecommendationStatus | None, new: Recommendation | None) -> bool:
    """Whether the terms have moved from those in a status: one changed by more than a tenth."""
    if old is None or new is None:
        return False  # the first recommendation is always shown
    # The wait for processors changes all the time and seldom decides.
    before, after = (inputs.model_dump(exclude=_QUIET) for inputs in (old.inputs, new.inputs))
    return any(
        abs((after[key] or 0) - (before[key] or 0)) > _SHOW_LOAD_SHARE * abs(before[key] or 0)
        for key in before
    )


def _desired(backend: ModelBackend, seen: BackendObserved) -> int:
    """The number to show; before a new leader's first look, the one that the last leader has shown."""
    if seen.recommendation is not None:
        return seen.recommendation.replicas
    spec, old = backend.spec, backend.status
    looks = spec.autoscaling is not None and not spec.suspend and old.recommendation is not None
    return old.desired_replicas if looks and old.desired_replicas is not None else spec.replicas


def _recommendation(backend: ModelBackend, seen: BackendObserved, now: str) -> RecommendationStatus | None:
    """The recommendation to show; if its number and verdict are unchanged, with the terms shown so far."""
    recommendation, old = seen.recommendation, backend.status.recommendation
    if backend.spec.autoscaling is None or backend.spec.suspend:
        return None
    if recommendation is None:
        return old
    shown = (backend.status.desired_replicas, old.verdict if old is not None else None)
    same = old is not None and shown == (recommendation.replicas, recommendation.verdict)
    if same and not seen.terms:
        return old
    return RecommendationStatus(
        verdict=recommendation.verdict,
        message=cut(recommendation.message, _SAID),
        since=old.since if old is not None and same else now,
        inputs=recommendation.inputs,
    )


def _needed(backend: ModelBackend) -> int:
    """The number of ready pods that a backend needs to be Ready: with autoscaling, minReplicas is enough."""
    scaling = backend.spec.autoscaling
    # NB: with minReplicas 0 a backend that has replicas has been woken: one ready pod is enough.
    return min(backend.spec.replicas, max(1, scaling.min_replicas)) if scaling else backend.spec.replicas


def _rolling(backend: ModelBackend, deployment: Object | None) -> str | None:
    """The part of a rollout to the current template that is still missing, in words; None if complete."""
    if deployment is None:
        return "its Deployment is not there yet"
    status = deployment.get("status", {})
    if pods.unseen(deployment):
        return "its Deployment has a change that is not taken up yet"
    updated, total = status.get("updatedReplicas") or 0, status.get("replicas") or 0
    if total > updated:
        return f"{total - updated} of {total} pods are of an old template"
    if (status.get("readyReplicas") or 0) < _needed(backend):
        count = f"{status.get('readyReplicas') or 0} of {backend.spec.replicas} pods are ready"
        return count if _needed(backend) == backend.spec.replicas else f"{count}; needed: {_needed(backend)}"
    return None


def _ready(
    backend: ModelBackend, seen: BackendObserved, wrong: pods.Trouble | None, applied: Condition
) -> tuple[Condition, bool, bool]:
    """Return the summary, whether something is under way, and whether only a user can resolve it.

    It becomes True for a generation only when no ready pod is known to lack its settings; a policy's later
    change, or one that a model refuses while it serves on, shows in `SettingsApplied` alone.
    """
    rolling = _rolling(backend, seen.deployment)
    coming = any(report.artifact and not report.artifact.digest for report in seen.reports.values())
    overdue = None if coming else pods.overdue(seen.deployment)
    silent = _not_answering(backend, seen) if rolling is not None else ""
    if seen.taken:
        text = f"not ours, so not touched: {conditions.some(seen.taken)}; choose another name or delete it"
        return condition("Ready", "False", "NameTaken", text), False, True
    if seen.refused is not None:
        again = seen.refused.passing
        return condition("Ready", "False", seen.refused.reason, seen.refused.message), again, not again
    if rolling is not None and wrong is not None:
        # A node may still be added or freed: a pod without one, or without room there, is not stalled.
        waits = wrong.reason in ("Unschedulable", "PodEvicted")
        return condition("Ready", "False", wrong.reason, wrong.message), waits, not waits
    if seen.policy_missing:
        return condition("Ready", "False", "BatchPolicyMissing", _policy_text(backend)), False, True
    if rolling is not None and applied.reason == "ReconfigureFailed":
        # A pod is not ready until its model has taken its userConfig: the rollout waits for that.
        return condition("Ready", "False", "ReconfigureFailed", f"{rolling}; {applied.message}"), False, True
    if silent and overdue is not None:
        return condition("Ready", "False", "ModelNotAnswering", f"{rolling}; {silent}"), False, True
    if rolling is not None and overdue is not None:
        return condition("Ready", "False", overdue.reason, overdue.message), False, True
    if rolling is not None and backend.spec.suspend:
        text = f"spec.suspend is true, so all is left as it is: {rolling}"
        return condition("Ready", "False", "Suspended", text), False, False
    if rolling is not None:
        return (
            condition("Ready", "False", "RollingOut", f"{rolling}; {silent}" if silent else rolling),
            True,
            False,
        )
    if not conditions.stands(
        conditions.find(backend.status.conditions, "Ready"), backend.metadata.generation
    ):
        if seen.held:
            return condition("Ready", "False", "Suspended", _held_text(seen.held)), False, False
        if applied.reason == "Waiting":
            return condition("Ready", "False", "Waiting", applied.message), True, False
    if backend.spec.replicas == 0:
        return condition("Ready", "True", "ScaledToZero", "spec.replicas is 0: nothing serves"), False, False
    if (late := _objective_note(backend, seen)) is not None:
        return condition("Ready", "True", "ObjectiveUnreachable", late), False, False
    if seen.batching_note is not None:
        return condition("Ready", "True", "BatchUnreachable", seen.batching_note), False, False
    return condition("Ready", "True", "Serving"), False, False


def _objective_note(backend: ModelBackend, seen: BackendObserved) -> str | None:
    """The reason why no number of pods keeps the objective, if so; while that is unknown, as it was."""
    if seen.objective is None:
        return None
    begins = f"latencyObjective is {seen.objective}, but"
    if seen.item_seconds is None:
        ready = conditions.find(backend.status.conditions, "Ready")
        if ready is None or ready.reason != "ObjectiveUnreachable":
            return None
        return ready.message if ready.message.startswith(begins) else None
    if not seen.unreachable:
        return None
    # Two digits: otherwise each new batch would change the status.
    takes = durations.format_ms(round(float(f"{1000 * seen.item_seconds:.2g}")) or 1)
    return (
        f"{begins} a batch of one item takes {takes}: a request that finds the model free is answered late, "
        "any other is refused, and no number of pods changes that; raise the objective to twice that time, "
        "or make the model faster"
    )


def _held_text(held: Collection[str]) -> str:
    return f"spec.suspend is true, so all is left as it is: a change of the {' and the '.join(held)} waits"


def _policy_text(backend: ModelBackend) -> str:
    return (
        f"BatchPolicy {backend.spec.batch_policy_ref} does not exist in namespace {backend.namespace}; "
        "the last settings stay in force, or the defaults if there were none"
    )


def _available(backend: ModelBackend, seen: BackendObserved, wrong: pods.Trouble | None) -> Condition:
    count = len(pods.ready(seen.pods))
    if count:
        return condition("Available", "True", "PodsReady")
    if backend.spec.replicas == 0:
        return condition("Available", "False", *_AT_ZERO)
    if wrong is None and is_waking(backend):
        return condition("Available", "False", "Waking", "it was at 0, and no pod is ready yet")
    return condition("Available", "False", "NoReadyPod", "no pod takes requests")


def is_waking(backend: ModelBackend) -> bool:
    """Whether a backend was scaled to 0, has replicas again, and as far as is known none was ready since.

    Args:
        backend: with its live status, in which `Available` keeps this.
    """
    scaling, available = backend.spec.autoscaling, conditions.find(backend.status.conditions, "Available")
    if scaling is None or scaling.min_replicas > 0 or backend.spec.replicas == 0 or available is None:
        return False
    return available.reason in ("ScaledToZero", "Waking")


def _model_status(seen: BackendObserved, wrong: pods.Trouble | None) -> ModelStatus:
    here = pods.living(seen.pods)
    # NB: the last report of a deleted pod is kept for a while; it does not describe the living pods.
    loaded = pods.ready(here) or any(report.state == "ready" for report in _reports_of(seen, here))
    failed = wrong is not None and wrong.reason not in ("Unschedulable", "PodEvicted", "PodsRefused")
    running = any(pod.get("status", {}).get("phase") == "Running" for pod in here)
    state: ModelState = "Pending"
    if loaded:
        state = "Loaded"
    elif failed:
        state = "FailedToLoad"
    elif running:
        state = "Loading"
    restarts, last = pods.crashes(here)
    crash = last and CrashStatus(pod=last.pod, time=last.time, message=cut(last.message, 4096))
    return ModelStatus(
        state=state,
        last_failure=cut(wrong.message, 4096) if wrong and failed else None,
        restarts=restarts or None,
        last_crash=crash,
    )


def _reports_of(seen: BackendObserved, among: Sequence[Object]) -> list[SidecarReport]:
    return [seen.reports[name] for name in map(pods.name, among) if name in seen.reports]


def _sidecar(seen: BackendObserved) -> SidecarStatus | None:
    template = (seen.deployment or {}).get("spec", {}).get("template", {})
    for container in template.get("spec", {}).get("initContainers") or ():
        if container.get("name") == names.SIDECAR_CONTAINER:
            return SidecarStatus(image=container["image"], upgrade_pending=seen.upgrade_pending or None)
    return None


def _model_loaded(
    backend: ModelBackend,
    seen: BackendObserved,
    model: ModelStatus,
    wrong: pods.Trouble | None,
    files: ArtifactStatus | None,
) -> Condition:
    if model.state == "Loaded":
        reports = _reports_of(seen, pods.living(seen.pods))
        if warning := next((report.warning for report in reports if report.warning), ""):
            return condition("ModelLoaded", "True", "RefusesBatches", cut(warning, _SAID))
        return condition("ModelLoaded", "True", "Loaded")
    if wrong is not None:
        return condition("ModelLoaded", "False", wrong.reason, wrong.message)
    if files is not None and files.progress is not None:
        return condition("ModelLoaded", "False", "Downloading", files.progress)
    if model.state == "Loading":
        text = _not_answering(backend, seen) or "the model does not answer readyPath yet"
        return condition("ModelLoaded", "False", "Loading", text)
    if backend.spec.replicas == 0:
        return condition("ModelLoaded", "False", *_AT_ZERO)
    if pods.living(seen.pods):
        text = "no pod runs yet: images are pulled, containers created; what fails there is named here"
        return condition("ModelLoaded", "False", "NoPod", text)
    return condition("ModelLoaded", "False", "NoPod", "no pod runs")


def _not_answering(backend: ModelBackend, seen: BackendObserved) -> str:
    """Say what a sidecar gets instead of the model's readiness, and what to do if the model has started.

    Empty if no model runs that is not ready: before its container runs, nothing can answer.
    """
    running = [
        pod
        for pod in pods.living(seen.pods)
        if not pods.is_ready(pod) and pods.runs(pod, names.MODEL_CONTAINER)
    ]
    message = next((report.message for report in _reports_of(seen, running) if report.message), "")
    model = backend.spec.model
    if not message or model.container is None:
        return message
    if found := _ANSWERED.search(message):
        cure = "set model.readyPath to a path that answers GET so once the model is loaded"
        is_fastapi = model.ready_path == "/" and found[1] == "404"
        return f"{message}: {cure}{' (FastAPI has no / of its own, but /docs)' if is_fastapi else ''}"
    if _UNHEARD.search(message):
        return f"{message}: it has not started yet, or listens on another port than model.port {model.port}"
    return message


_ANSWERED = re.compile(r"expected status 200 to 399, found ([45]\d\d)")
_UNHEARD = re.compile(r"[Rr]efused|cannot connect|not answered within")
"""Words of the sidecar's `model.client` about a probe; without them, its message stands alone."""


def _settings_applied(backend: ModelBackend, seen: BackendObserved) -> Condition:
    kind, version = "SettingsApplied", seen.settings_version
    if seen.policy_missing:
        return condition(kind, "False", "BatchPolicyMissing", _policy_text(backend))
    if seen.record_changed:
        text = f"ConfigMap {names.backend_settings(backend.name)} was changed, and stays so while suspended"
        return condition(kind, "False", "Suspended", text)
    if "settings" in seen.held:
        return condition(kind, "False", "Suspended", _held_text(("settings",)))
    ready = [pods.name(pod) for pod in pods.ready(seen.pods)]
    if backend.spec.user_config is not None and reconfigure_path(backend) is None:
        text = "userConfig is set, but model.reconfigurePath is not: the model cannot get it"
        return condition(kind, "False", "NoReconfigurePath", text)
    if refused := [answer for answer in _reconfigured(seen, at_most=None) if not answer.ok]:
        where = conditions.some(answer.pod for answer in refused)
        text = f"the model keeps its last userConfig in {where}; it said: {refused[0].message}"
        return condition(kind, "False", "ReconfigureFailed", text)
    if not ready:
        return condition(kind, "Unknown", "NoReadyPod", f"version {version}: no pod is ready")
    reports = {name: seen.reports[name] for name in ready if name in seen.reports}
    behind = [name for name, report in reports.items() if lacks(report, version, seen.settings_digest)]
    silent = [name for name in ready if name not in reports]
    count = f"{len(reports) - len(behind)} of {len(ready)} ready pods have settings version {version}"
    if behind:
        return condition(kind, "False", "Waiting", f"{count}; behind: {conditions.some(behind)}")
    if silent:
        return condition(kind, "Unknown", "NoReports", f"{count}; silent: {conditions.some(silent)}")
    return condition(kind, "True", "Applied", count)


def _reconfigured(seen: BackendObserved, *, at_most: int | None = HISTORY) -> tuple[ReconfigureStatus, ...]:
    """The answers of living pods' models to the userConfig: refusals first, then by name."""
    answers = [
        ReconfigureStatus(
            pod=name,
            version=report.reconfigure.version,
            ok=report.reconfigure.ok,
            message=cut(report.reconfigure.message, _SAID),
        )
        for name in map(pods.name, pods.living(seen.pods))
        if (report := seen.reports.get(name)) is not None and report.reconfigure is not None
    ]
    return tuple(sorted(answers, key=lambda answer: (answer.ok, answer.pod))[:at_most])


def _accepted(backend: ModelBackend, seen: BackendObserved) -> list[Condition]:
    """Make the condition of its schedules, if it has any."""
    if backend.spec.autoscaling is None or not backend.spec.autoscaling.schedules:
        return []
    if seen.schedule_note is not None:
        return [condition("Accepted", "False", "ScheduleInvalid", seen.schedule_note)]
    return [condition("Accepted", "True", "Accepted")]


def _growth(backend: ModelBackend, seen: BackendObserved) -> str | None:
    """The number of ready pods, in words, if Ready is True although others are still missing."""
    ready = len(pods.ready(seen.pods))
    if ready >= backend.spec.replicas or _rolling(backend, seen.deployment) is not None:
        return None
    return f"{ready} of {backend.spec.replicas} pods are ready"


def _scaling(backend: ModelBackend, seen: BackendObserved, wrong: pods.Trouble | None) -> list[Condition]:
    spec, recommended = backend.spec.autoscaling, seen.recommendation
    if spec is None:
        return []
    if backend.spec.suspend:
        return [condition("ScalingActive", "False", "Suspended", "spec.suspend is true")]
    if recommended is None:
        # NB: a status can be due before a new leader's first look, which tells whether another client scales.
        active = conditions.find(backend.status.conditions, "ScalingActive")
        if active is None or active.reason == "Suspended":
            active = condition("ScalingActive", "True", "FollowingLoad")
        return [active, condition("MetricsAvailable", "Unknown", "NotLookedYet")]
    if seen.foreign_scaler is not None and backend.spec.replicas == 0:
        text = f"{seen.foreign_scaler} has scaled it to 0: that stays until another number is written"
        active = condition("ScalingActive", "False", "ScalingDisabled", text)
    elif seen.foreign_scaler is not None:
        text = f"{seen.foreign_scaler} writes the scale subresource too"
        cure = "keep one of the two"
        if seen.foreign_applies:
            text, cure = (
                f"{seen.foreign_scaler} applies spec.replicas again and again",
                "leave it out of the manifest",
            )
        stands = durations.format_ms(round(1000 * seen.foreign_stands))
        text += f": its {backend.spec.replicas} stands for {stands} from when it was seen; {cure}"
        active = condition("ScalingActive", "False", "ForeignScaler", text)
    elif seen.scale_refused is not None:
        active = condition("ScalingActive", "False", seen.scale_refused.reason, seen.scale_refused.message)
    elif wrong is not None and (growth := _growth(backend, seen)) is not None:
        active = condition("ScalingActive", "True", wrong.reason, f"{growth}; {wrong.message}")
    elif seen.target_note is not None:
        active = condition("ScalingActive", "True", "TargetUnreachable", seen.target_note)
    elif spec.target_load is None and (late := _objective_note(backend, seen)) is not None:
        active = condition("ScalingActive", "True", "ObjectiveUnreachable", late)
    elif recommended.verdict == "Limited":
        text = f"the load asks for more than maxReplicas {spec.max_replicas}"
        active = condition("ScalingActive", "True", "Limited", text)
    elif recommended.verdict == "Release":
        active = condition("ScalingActive", "True", "Release", recommended.limit)
    elif recommended.verdict == "Schedule":
        active = condition("ScalingActive", "True", "Schedule", recommended.limit)
    elif recommended.verdict == "NoHolder":
        active = condition("ScalingActive", "True", "NoHolder", NO_HOLDER)
    elif recommended.verdict == "ShortOfProcessors":
        text = "the load asks for more; as many start at a time as are ready, which wait for processors"
        active = condition("ScalingActive", "True", "ShortOfProcessors", text)
    elif spec.mode == "External":
        text = "spec.autoscaling.mode is External: another scaler writes the replicas"
        active = condition("ScalingActive", "True", "External", text)
    else:
        active = condition("ScalingActive", "True", "FollowingLoad")
    if recommended.metrics_available:
        return [active, condition("MetricsAvailable", "True", "ReportsReceived")]
    return [active, condition("MetricsAvailable", "False", recommended.verdict, recommended.message)]


def _history(backend: ModelBackend, seen: BackendObserved) -> tuple[ScalingEntry, ...]:
    old = backend.status.scaling  # NB: holds some of them if the answer to the last write was lost
    return (*reversed([entry for entry in seen.scaled if entry not in old]), *old)[:HISTORY]
