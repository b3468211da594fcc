"""`penstock.Client`: the resources from a script or a notebook, by the verbs of other serving systems.

It is thin: each verb is one or two calls of the Kubernetes API, by the official client, with the rights of
its user. It writes the same as `kubectl` would, and the operator acts on it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ControlError
from penstock_wire.extras import missing

GROUP, VERSION = "penstock.dev", "v1alpha1"
PLURALS = {
    "ModelBackend": "modelbackends",
    "ModelEndpoint": "modelendpoints",
    "TrafficSplit": "trafficsplits",
    "BatchPolicy": "batchpolicies",
}
MANAGER = "penstock-client"
"""Field manager of the client's writes."""
CALL_SECONDS = 30.0
LOOK_SECONDS = 0.5
TRIES = 5
"""Most tries of a change that conflicts with changes by others."""

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_OPERATIONS = "application/json-patch+json"

Resource = dict[str, Any]
"""A resource as JSON."""
Resources = list[Resource]


class Client:
    """The resources of a namespace.

    Args:
        namespace: of the resources; None = that of the kubeconfig's context, or of the pod.
        kubeconfig: a kubeconfig; None = as for kubectl, or, in a pod without one, its service account.
        context: of the kubeconfig; None = its current one.

    Raises:
        ImportError: the packages of the extra `client` are not installed.
        ControlError: there is no usable kubeconfig.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
    ) -> None:
        try:
            import kubernetes
            import urllib3
            import yaml

            from penstock_wire import yaml_text
        except ImportError as error:
            raise ImportError(missing("penstock.Client", "client", f"none named {error.name!r}")) from None
        settings = kubernetes.client.Configuration()
        own = _connect(kubernetes.config, settings, kubeconfig, context)
        self.namespace = namespace or own
        """Namespace of the resources."""
        self._read_yaml, self._not_yaml = yaml_text.read_all, yaml.YAMLError
        self._failed = kubernetes.client.ApiException
        self._unanswered = urllib3.exceptions.HTTPError
        self._api = kubernetes.client.CustomObjectsApi(kubernetes.client.ApiClient(settings))

    def apply(
        self, resources: Resource | Iterable[Resource] | Path | str, *, wait: float | None = None
    ) -> Resources:
        """Apply resources, as `kubectl apply --server-side` does.

        Args:
            resources: one, several, a YAML file's path, or YAML text.
            wait: seconds to wait until all that have a condition Ready are; None = do not.

        Returns:
            The resources as they are then.

        Raises:
            ControlError: Kubernetes refuses one; those before it are applied.
            TimeoutError: not ready in time.
            ValueError: not a resource of ours with a name.
        """
        wanted = [self._checked(each) for each in self._read(resources)]
        applied = [self._apply(each) for each in wanted]
        if wait is None:
            return applied
        end = time.monotonic() + wait
        return [
            self.wait(each["kind"], each["metadata"]["name"], timeout=max(0.0, end - time.monotonic()))
            for each in applied
        ]

    def get(self, kind: str, name: str) -> Resource:
        """Return a resource.

        Raises:
            ControlError: there is none (status 404), or Kubernetes refuses.
        """
        resource: Resource = self._call(self._api.get_namespaced_custom_object, kind, name)
        return resource

    def list(self, kind: str, *, selector: str = "") -> Resources:
        """Return the resources of a kind.

        Args:
            kind: such as `ModelBackend`.
            selector: by labels, such as `team=vision`.
        """
        listed = self._call(self._api.list_namespaced_custom_object, kind, label_selector=selector)
        items: Resources = listed["items"]
        return items

    def delete(self, kind: str, name: str, *, missing_ok: bool = False) -> None:
        """Delete a resource.

        Args:
            kind: such as `ModelBackend`.
            name: its name.
            missing_ok: whether it is not an error if there is none.
        """
        try:
            self._call(self._api.delete_namespaced_custom_object, kind, name)
        except ControlError as error:
            if error.status != 404 or not missing_ok:
                raise

    def wait(self, kind: str, name: str, *, condition: str = "Ready", timeout: float = 120.0) -> Resource:
        """Wait until a condition is true for the resource's current spec.

        Args:
            kind: such as `ModelEndpoint`.
            name: its name.
            condition: its type.
            timeout: seconds.

        Returns:
            The resource as it is then.

        Raises:
            ControlError: there is no such resource.
            TimeoutError: not in time; its message has the condition.
        """
        end = time.monotonic() + timeout
        while True:
            resource = self.get(kind, name)
            status = resource.get("status") or {}
            current = status.get("observedGeneration") == resource["metadata"]["generation"]
            state: Resource = next(
                (each for each in status.get("conditions") or () if each["type"] == condition), {}
            )
            if current and state.get("status") == "True":
                return resource
            if time.monotonic() >= end:
                why = "no such condition yet; does the operator run?"
                if state:
                    why = f"{state['status']} ({state['reason']}) {state.get('message') or ''}".rstrip()
                    why += "" if current else ", of an older generation"
                raise TimeoutError(
                    f"{kind} {name}: expected the condition {condition} within {timeout:g} s, found {why}"
                )
            time.sleep(LOOK_SECONDS)

    def set_traffic(self, endpoint: str, weights: Mapping[str, int]) -> Resource:
        """Share an endpoint's requests among backends: changes its TrafficSplit, or makes one of its name.

        The split's other settings of a backend stay; a backend that is not named is removed from it.

        Args:
            endpoint: its name.
            weights: whole numbers by the backends' names, such as `{"stable": 90, "candidate": 10}`.

        Returns:
            The split.
        """
        for name, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int) or weight < 0:
                raise ValueError(
                    f"set_traffic: expected a whole number from 0 such as 90 as the weight of {name}, "
                    f"found {weight!r}"
                )

        def change(spec: Resource) -> None:
            spec["backends"] = _numbered(spec.get("backends"), "weight", weights)

        return self._change_split(endpoint, change)

    def shadow_traffic(self, endpoint: str, percents: Mapping[str, int]) -> Resource:
        """Copy requests to the mirrors of an endpoint's TrafficSplit; clients do not get their answers.

        The split's other settings of a mirror stay (`compare`); a mirror that is not named ends. If there is
        no split, a new one gives all requests to the endpoint's own backend.

        Args:
            endpoint: its name.
            percents: of the requests, by the backends' names, such as `{"candidate": 20}`.

        Returns:
            The split.
        """
        for name, percent in percents.items():
            if isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100:
                raise ValueError(
                    f"shadow_traffic: expected a whole number from 0 to 100 as the percent of {name}, "
                    f"found {percent!r}"
                )

        def change(spec: Resource) -> None:
            if "backends" not in spec:
                own = self.get("ModelEndpoint", endpoint)["spec"].get("backend")
                if own is None:
                    raise ValueError(
                        f"shadow_traffic: expected a TrafficSplit of {endpoint}, or a ModelEndpoint with a "
                        "backend, found neither: share its requests by set_traffic first"
                    )
                spec["backends"] = [{"name": own, "weight": 1}]
            spec["mirrors"] = _numbered(spec.get("mirrors"), "percent", percents)

        return self._change_split(endpoint, change)

    def _change_split(self, endpoint: str, change: Callable[[Resource], None]) -> Resource:
        """Change the spec of an endpoint's split, or of a new one; returns the split."""
        for left in reversed(range(TRIES)):
            # NB: if two splits name one endpoint, the oldest counts.
            splits = sorted(
                (each for each in self.list("TrafficSplit") if each["spec"]["endpoint"] == endpoint),
                key=lambda each: str(each["metadata"]["creationTimestamp"]),
            )
            if not splits:
                spec: Resource = {"endpoint": endpoint}
                change(spec)
                return self.apply({"kind": "TrafficSplit", "metadata": {"name": endpoint}, "spec": spec})[0]
            split = splits[0]
            change(split["spec"])
            try:
                changed: Resource = self._call(
                    self._api.replace_namespaced_custom_object,
                    "TrafficSplit",
                    split["metadata"]["name"],
                    body=split,
                    field_manager=MANAGER,
                )
            except ControlError as error:
                if error.status != 409 or not left:  # 409: another client changed it meanwhile
                    raise
                continue
            return changed
        raise AssertionError  # the last try returned or raised

    def scale(self, backend: str, replicas: int) -> None:
        """Set a backend's number of pods, by its `/scale`; with autoscaling, until that chooses again.

        Args:
            backend: its name.
            replicas: pods.
        """
        self._call(
            self._api.patch_namespaced_custom_object_scale,
            "ModelBackend",
            backend,
            body={"spec": {"replicas": replicas}},
            field_manager=MANAGER,
            content=_MERGE,
        )

    def update_config(self, backend: str, config: Any) -> Resource:
        """Give a backend's models another `userConfig`; its condition SettingsApplied shows the outcome.

        Args:
            backend: its name.
            config: any JSON value, the argument of `reconfigure`.

        Returns:
            The backend.
        """
        # NB: a merge would leave members of the old one in the new one.
        changed: Resource = self._call(
            self._api.patch_namespaced_custom_object,
            "ModelBackend",
            backend,
            body=[{"op": "add", "path": "/spec/userConfig", "value": config}],
            field_manager=MANAGER,
            content=_OPERATIONS,
        )
        return changed

    def _apply(self, resource: Resource) -> Resource:
        kind, name = resource["kind"], resource["metadata"]["name"]
        applied: Resource | None = self._call(
            self._api.patch_namespaced_custom_object,
            kind,
            name,
            body=resource,
            field_manager=MANAGER,
            field_validation="Strict",
            force=True,
            content=_APPLY,
        )
        # NB: the client library drops the body of an answer with status 201.
        return self.get(kind, name) if applied is None else applied

    def _call(self, method: Any, kind: str, *name: str, content: str | None = None, **arguments: Any) -> Any:
        plural = PLURALS.get(kind)
        if plural is None:
            raise ValueError(f"expected a kind among {', '.join(PLURALS)}, found {kind!r}")
        if content is not None:
            arguments["_content_type"] = content
        try:
            return method(
                GROUP, VERSION, self.namespace, plural, *name, _request_timeout=CALL_SECONDS, **arguments
            )
        except self._failed as error:
            raise _control_error(error, kind, *name) from None
        except self._unanswered as error:
            raise ControlError(0, "no answer", f"{' '.join((kind, *name))}: {error}") from None

    def _read(self, resources: Resource | Iterable[Resource] | Path | str) -> Iterable[Any]:
        if isinstance(resources, Path):
            resources = resources.read_text()
        if isinstance(resources, str):
            try:
                return [each for each in self._read_yaml(resources) if each is not None]
            except self._not_yaml as error:
                raise ValueError(f"apply: expected YAML: {error}") from None
        return [resources] if isinstance(resources, Mapping) else resources

    def _checked(self, resource: Any) -> Resource:
        if not isinstance(resource, Mapping) or resource.get("kind") not in PLURALS:
            kind = resource.get("kind") if isinstance(resource, Mapping) else type(resource).__name__
            raise ValueError(f"apply: expected a resource of kind {', '.join(PLURALS)}, found {kind!r}")
        metadata = resource.get("metadata") or {}
        name, namespace = metadata.get("name"), metadata.get("namespace", self.namespace)
        if not name or not isinstance(name, str) or namespace != self.namespace:
            raise ValueError(
                f"apply: expected a {resource['kind']} with a name, in this client's namespace "
                f"{self.namespace}, found metadata {dict(metadata)!r}"
            )
        return {"apiVersion": f"{GROUP}/{VERSION}", **resource}


def _numbered(before: Resources | None, field: str, numbers: Mapping[str, int]) -> Resources:
    """Return the entries of these names with these numbers; their other members stay."""
    named = {each["name"]: each for each in before or ()}
    return [{**named.get(name, {"name": name}), field: number} for name, number in numbers.items()]


def _connect(config: Any, settings: Any, kubeconfig: Path | str | None, context: str | None) -> str:
    """Fill the settings, and return the namespace that comes with them."""
    file = None if kubeconfig is None else str(kubeconfig)
    try:
        config.load_kube_config(config_file=file, context=context, client_configuration=settings)
        contexts, current = config.list_kube_config_contexts(config_file=file)
        if context is not None:
            current = next(each for each in contexts if each["name"] == context)
        return str(current["context"].get("namespace") or "default")
    except config.ConfigException as error:
        if file is not None or context is not None:
            raise ControlError(0, "no kubeconfig", str(error)) from None
        outside = error
    try:
        config.load_incluster_config(client_configuration=settings)
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
    except (config.ConfigException, OSError):
        text = f"expected a kubeconfig, or the service account of a pod, found neither: {outside}"
        raise ControlError(0, "no kubeconfig", text) from None


def _control_error(error: Any, kind: str, *name: str) -> ControlError:
    """Make an error of the API server's answer, with the server's own message."""
    message = str(error.reason)
    with contextlib.suppress(TypeError, ValueError, KeyError):
        message = str(json.loads(error.body)["message"])
    return ControlError(int(error.status or 0), str(error.reason), f"{' '.join((kind, *name))}: {message}")
