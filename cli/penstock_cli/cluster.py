"""Reads Penstock's resources from a cluster, by the kubeconfig that kubectl uses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kubernetes import config as kube_config
from kubernetes.client.api.custom_objects_api import CustomObjectsApi
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION
from urllib3.exceptions import HTTPError

Resource = dict[str, Any]
"""A resource as JSON."""

GROUP, VERSION = "penstock.dev", "v1alpha1"
PLURALS = {
    "ModelBackend": "modelbackends",
    "ModelEndpoint": "modelendpoints",
    "TrafficSplit": "trafficsplits",
    "BatchPolicy": "batchpolicies",
}
SECONDS = 15.0
"""For one call."""


class CommandError(Exception):
    """A command cannot do what it was asked for; its text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster, and the namespace that is meant where none is named.

    Args:
        api: calls the apiserver.
        namespace: the context's own.
    """

    api: CustomObjectsApi
    namespace: str

    @classmethod
    def connect(cls, kubeconfig: str | None, context: str | None, namespace: str | None) -> Cluster:
        """Log in.

        Args:
            kubeconfig: its path; None for `$KUBECONFIG`, else `~/.kube/config`.
            context: its context; None for the current one.
            namespace: what `namespace` is to be; None for the context's.

        Raises:
            CommandError: there is no such kubeconfig or context.
        """
        configuration = Configuration()
        try:
            contexts, active = kube_config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
            kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                kubeconfig, context=context, client_configuration=configuration, persist_config=False
            )
        except (kube_config.ConfigException, OSError, TypeError) as error:
            raise CommandError(
                f"cannot log in by {kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION}: {error}"
            ) from error
        configuration.retries = False
        chosen = next((entry for entry in contexts if entry["name"] == context), active)
        own = (chosen.get("context") or {}).get("namespace") or "default"
        return cls(api=CustomObjectsApi(ApiClient(configuration)), namespace=namespace or own)

    def list(self, kind: str, *, everywhere: bool = False) -> list[Resource]:
        """All resources of a kind, by namespace and name.

        Args:
            kind: such as ModelBackend.
            everywhere: of all namespaces.

        Raises:
            CommandError: they cannot be read.
        """
        place = "all namespaces" if everywhere else f"namespace {self.namespace}"
        try:
            if everywhere:
                listed: Any = self.api.list_cluster_custom_object(
                    GROUP, VERSION, PLURALS[kind], _request_timeout=SECONDS
                )
            else:
                listed = self.api.list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURALS[kind], _request_timeout=SECONDS
                )
        except (ApiException, HTTPError, OSError) as error:
            raise CommandError(f"cannot read the {PLURALS[kind]} of {place}: {_cause(error)}") from error
        items: list[Resource] = listed["items"]
        return sorted(items, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))

    def get(self, kind: str, name: str) -> Resource:
        """One resource of the namespace.

        Args:
            kind: such as ModelBackend.
            name: its name.

        Raises:
            CommandError: it is not there, or cannot be read.
        """
        try:
            resource: Any = self.api.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURALS[kind], name, _request_timeout=SECONDS
            )
        except (ApiException, HTTPError, OSError) as error:
            raise CommandError(f"cannot read {kind} {self.namespace}/{name}: {_cause(error)}") from error
        return dict(resource)


def _cause(error: Exception) -> str:
    """The apiserver's own words, where it answered."""
    if not isinstance(error, ApiException):
        return str(error)
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
