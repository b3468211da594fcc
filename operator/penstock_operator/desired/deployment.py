"""The Deployment of a backend: the model container, and the sidecar as a native sidecar."""

from __future__ import annotations

import json
from typing import Any

from penstock_operator.api import ModelBackend
from penstock_operator.api.defaults import grace_seconds
from penstock_operator.api.model import ModelContainer, ModelPython
from penstock_operator.api.podtemplate import Container, PodTemplate
from penstock_operator.desired import (
    artifact,
    code,
    labels,
    model_format,
    names,
    objects,
    pods,
    sidecar,
    template_pinning,
)
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_operator.desired.template_pinning import PinnedTemplate
from penstock_wire import contract

_TMP_VOLUME = "penstock-tmp"
_TMP = "/tmp"  # noqa: S108 - the pod's own emptyDir
_TMP_MOUNT: Object = {"name": _TMP_VOLUME, "mountPath": _TMP}
ROLLS: Object = {
    "revisionHistoryLimit": 3,  # for `kubectl rollout undo`
    "paused": False,
    "minReadySeconds": 0,
    "progressDeadlineSeconds": 600,
}
"""How a Deployment rolls, beside its strategy. Named in full: only a field that is named is changed back, and
what a user sets here would stop later changes unseen."""


def deployment(backend: ModelBackend, pinned: PinnedTemplate) -> Object:
    """The Deployment of a backend."""
    selector = labels.backend_selector(backend.name)
    rollout = backend.spec.rollout
    metadata = objects.metadata(
        names.backend(backend.name), backend.namespace, labels.of_backend(backend.name), [backend]
    )
    if pinned.record is not None:
        metadata["annotations"] = {labels.RENDERED: pinned.record}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": backend.spec.replicas,
            **ROLLS,
            "selector": {"matchLabels": selector},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "template": pinned.template,
        },
    }


def pinned_template(
    backend: ModelBackend, *, config: RenderConfig, new_secret: str, live: Object | None
) -> PinnedTemplate:
    """Return a backend's current pod template: the last rendered, until a user changes a field that rolls.

    Args:
        new_secret: the secret of kubelet's preStop call, if there is none yet.

    Raises:
        ValueError: the model names no container, Python target or format (CEL refuses such a resource).
    """
    record = template_pinning.recorded(live)
    secret = template_pinning.drain_secret(record.template) if record is not None else None
    secret = (
        secret
        or template_pinning.drain_secret((live or {}).get("spec", {}).get("template", {}))
        or new_secret
    )
    fresh = pod_template(backend, config=config, drain_secret=secret)
    return template_pinning.choose(backend, fresh, record=record, live=live)


def pod_template(backend: ModelBackend, *, config: RenderConfig, drain_secret: str) -> Object:
    """Render the pod template of a backend as this operator does (arguments as in `pinned_template`)."""
    template = backend.spec.pod_template or PodTemplate()
    return {
        "metadata": _pod_metadata(backend, template),
        "spec": _pod_spec(backend, template, config=config, drain_secret=drain_secret),
    }


def _pod_metadata(backend: ModelBackend, template: PodTemplate) -> Object:
    pod_metadata: Object = {"labels": template.labels | labels.of_backend(backend.name)}
    annotations = dict(template.annotations)
    if backend.spec.warmup is not None:
        annotations[labels.WARMUP] = sidecar.warmup_requests(backend.spec.warmup)
    return pod_metadata | ({"annotations": annotations} if annotations else {})


def _pod_spec(
    backend: ModelBackend, template: PodTemplate, *, config: RenderConfig, drain_secret: str
) -> Object:
    given = template.document()
    model = _source(backend, config)
    python = model if isinstance(model, ModelPython) else None
    mounts = artifact.model_mounts(backend)
    kept = {
        key: given[key]
        for key in (
            "nodeSelector",
            "affinity",
            "tolerations",
            "topologySpreadConstraints",
            "priorityClassName",
            "runtimeClassName",
            "schedulerName",
            "resourceClaims",
            "hostAliases",
            "dnsPolicy",
            "dnsConfig",
        )
        if given.get(key)
    }
    return {
        "serviceAccountName": template.service_account_name or names.backend(backend.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(backend.spec.drain),
        "securityContext": pods.pod_security(template.security_context),
        "initContainers": [
            sidecar.container(backend, config=config, drain_secret=drain_secret),
            *artifact.first_step(backend, model, config, tmp=_TMP_MOUNT),
            *(code.first_step(python, config, tmp=_TMP_MOUNT, artifact=mounts) if python else []),
            *map(_further, template.init_containers),
        ],
        "containers": [_model_container(backend, config, drain_secret), *map(_further, template.containers)],
        "volumes": [
            pods.settings_volume(names.backend_settings(backend.name)),
            pods.token_volume(config),
            {"name": _TMP_VOLUME, "emptyDir": {}},
            *([pods.warmup_volume()] if backend.spec.warmup else []),
            *artifact.volumes(backend),
            *(code.volumes(python) if python else []),
            *given["volumes"],
        ],
        "topologySpreadConstraints": pods.spread(labels.backend_selector(backend.name)),
        **kept,
        **pods.pull_secrets(config, given["imagePullSecrets"]),
    }


def _further(container: Container) -> Object:
    """A user's container, with the model's security and last words unless the user sets others."""
    security = pods.container_security() | (container.security_context or {})
    given = {key: value for key, value in container.document().items() if value != []}
    last_words = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    return {"name": container.name, **last_words, **given, "securityContext": security}


def _source(backend: ModelBackend, config: RenderConfig) -> ModelContainer | ModelPython:
    """The container of the spec that serves the model."""
    model = backend.spec.model
    if model.format is not None:
        return model_format.as_python(model, model.format, config)
    source = model.container or model.python
    if source is None:
        raise ValueError("model: expected exactly one of container, python and format, found none")
    return source


def _model_container(backend: ModelBackend, config: RenderConfig, drain_secret: str) -> Object:
    model, source = backend.spec.model, _source(backend, config)
    own = (
        _own_container(source) if isinstance(source, ModelContainer) else _own_python(backend, source, config)
    )
    given = source.document()
    if secret := sidecar.reconfigure_env(backend, drain_secret):
        env = [
            variable for variable in own.get("env", ()) if variable["name"] != contract.RECONFIGURE_SECRET_ENV
        ]
        own["env"] = [*env, *secret]
    mounts = [*artifact.model_mounts(backend), *own.pop("volumeMounts", ()), *given["volumeMounts"]]
    if not any(mount["mountPath"].rstrip("/") == _TMP for mount in mounts):
        mounts = [_TMP_MOUNT, *mounts]
    optional = ("envFrom", "startupProbe", "livenessProbe", "readinessProbe")
    return {
        "name": names.MODEL_CONTAINER,
        **own,
        **{key: given[key] for key in optional if given.get(key)},
        "securityContext": pods.container_security() | (source.security_context or {}),
        "ports": [{"name": "model", "containerPort": model.port, "protocol": "TCP"}],
        **({"resources": given["resources"]} if given.get("resources") else {}),
        "lifecycle": sidecar.pre_stop(drain_secret),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _own_container(container: ModelContainer) -> dict[str, Any]:
    given = container.document()
    fields = {key: given[key] for key in ("command", "args", "env") if given.get(key)}
    return pods.pulled(container.image, container.image_pull_policy) | fields


def _own_python(backend: ModelBackend, python: ModelPython, config: RenderConfig) -> dict[str, Any]:
    model = backend.spec.model
    command = ["python", "-m", "penstock.serve", python.target, "--port", str(model.port)]
    if model.ready_path != "/":
        command += ["--ready-path", model.ready_path]
    if python.init_kwargs:
        command += ["--init-kwargs", json.dumps(python.init_kwargs, sort_keys=True, separators=(",", ":"))]
    env = [
        pods.from_field(contract.POD_ENV, "metadata.name"),
        pods.from_field(contract.NAMESPACE_ENV, "metadata.namespace"),
        {"name": contract.BACKEND_ENV, "value": backend.name},
    ]
    brought = code.of_model_container(python)
    env += brought.pop("env", [])
    taken = {variable.name for variable in python.env}
    return {
        **code.image(python, config),
        "command": command,
        **brought,
        "env": [variable for variable in env if variable["name"] not in taken] + python.document()["env"],
    }
