"""All objects of one ModelBackend."""

from __future__ import annotations

from penstock_operator.api import ModelBackend
from penstock_operator.desired import deployment, disruption, labels, names, objects, service, settings
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object


def backend_objects(
    backend: ModelBackend, *, config: RenderConfig, document: bytes, drain_secret: str
) -> list[Object]:
    """What a backend consists of, in the order of applying.

    ServiceAccount (unless podTemplate names one), ConfigMap, Service, PodDisruptionBudget (with more than one
    replica), Deployment.

    Args:
        backend: the backend.
        config: what the installation decides.
        document: the settings document that its sidecars boot from (`settings.Versioned.document`).
        drain_secret: the secret that kubelet's preStop call shows (see `deployment.drain_secret_of`).

    Raises:
        ValueError: the model names neither a container nor a Python target (CEL refuses such a resource).
    """
    name = names.backend(backend.name)
    template = backend.spec.pod_template

    def metadata(child: str) -> Object:
        return objects.metadata(child, backend.namespace, labels.of_backend(backend.name), [backend])

    found: list[Object] = []
    if template is None or template.service_account_name is None:
        found.append(objects.service_account(metadata(name)))
    found.append(settings.configmap(metadata(names.backend_settings(backend.name)), document))
    found.append(service.service(backend))
    if backend.spec.replicas > 1:
        found.append(disruption.budget(metadata(name), labels.backend_selector(backend.name)))
    found.append(deployment.deployment(backend, config=config, drain_secret=drain_secret))
    return found
