"""All objects of one ModelBackend."""

from __future__ import annotations

from penstock_operator.api import ModelBackend
from penstock_operator.desired import (
    artifact,
    deployment,
    disruption,
    labels,
    names,
    networkpolicy,
    objects,
    service,
    settings,
    sidecar,
)
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_operator.desired.template_pinning import PinnedTemplate


def backend_objects(
    backend: ModelBackend, *, document: bytes, pinned: PinnedTemplate, config: RenderConfig
) -> list[Object]:
    """Render all objects of a backend, in the order of applying.

    ServiceAccount (unless podTemplate names one), ConfigMap, Service, PodDisruptionBudget (with more than one
    replica, or if asked for), NetworkPolicy (if the installation has them), Deployment.

    Args:
        document: the settings document that its sidecars boot from (`settings.Versioned.document`).
    """
    name = names.backend(backend.name)
    template = backend.spec.pod_template

    def metadata(child: str) -> Object:
        return objects.metadata(child, backend.namespace, labels.of_backend(backend.name), [backend])

    rendered: list[Object] = []
    if template is None or template.service_account_name is None:
        rendered.append(objects.service_account(metadata(name)))
    record = metadata(names.backend_settings(backend.name))
    rendered.append(settings.configmap(record, document, config.authorities))
    rendered.append(service.service(backend))
    asked = backend.spec.disruption_budget
    if backend.spec.replicas > 1 or asked is not None:
        selector = labels.backend_selector(backend.name)
        rendered.append(disruption.budget(metadata(name), selector, asked.document() if asked else None))
    if config.network_policies:
        rendered.append(
            networkpolicy.of_backend(
                metadata(name),
                labels.backend_selector(backend.name),
                data=sidecar.DATA_PORT,
                admin=sidecar.ADMIN_PORT,
                own=artifact.ports(backend),
                config=config,
            )
        )
    rendered.append(deployment.deployment(backend, pinned))
    return rendered
