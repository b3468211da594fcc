"""Penstock's resources in a cluster, by the kubeconfig that kubectl uses."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import yaml
from kubernetes import config as kube_config
from kubernetes.client.api.custom_objects_api import CustomObjectsApi
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.kube_config import ENV_KUBECONFIG_PATH_SEPARATOR, KUBE_CONFIG_DEFAULT_LOCATION
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

Resource = dict[str, Any]
"""A resource as JSON."""
Resources = list[Resource]

GROUP, VERSION = "penstock.dev", "v1alpha1"
PLURALS = {
    "ModelBackend": "modelbackends",
    "ModelEndpoint": "modelendpoints",
    "TrafficSplit": "trafficsplits",
    "BatchPolicy": "batchpolicies",
}
SECONDS = 15.0
"""Timeout of a call, in seconds."""
FIELD_MANAGER = "kubectl-penstock"
_CONNECTIONS = 32
"""The most connections to the apiserver that are kept; only `ui` has more than one."""
_OF_ANOTHER_FORM = (TypeError, ValueError, KeyError, AttributeError)
"""What a kubeconfig raises that is cut, or has other values than expected."""
_ERROR_BYTES = 65_536
"""Of an error's body that are read, about; a pod behind the API server's proxy may send any number."""
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
"""A watch of a cluster that is gone ends after 20 seconds."""


class CommandError(Exception):
    """A command cannot be carried out; its text says why."""


class NotFoundError(CommandError):
    """There is no such resource."""


class ForbiddenError(CommandError):
    """The user has not the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster, and the namespace to use.

    Args:
        api: client of the apiserver.
        namespace: the namespace of its calls.
        kubeconfig: its path; None for `$KUBECONFIG`, else `~/.kube/config`.
        context: the context in it.
    """

    api: CustomObjectsApi
    namespace: str
    kubeconfig: str | None = None
    context: str | None = None

    @classmethod
    def connect(cls, kubeconfig: str | None, context: str | None, namespace: str | None) -> Cluster:
        """Log in.

        Args:
            kubeconfig: its path; None for `$KUBECONFIG`, else `~/.kube/config`.
            context: its context; None for the current one.
            namespace: the namespace to use; None for the context's.

        Raises:
            CommandError: there is no such kubeconfig or context.
        """
        configuration, chosen = _logged_in(kubeconfig, context)
        own = (chosen.get("context") or {}).get("namespace") or "default"
        api = CustomObjectsApi(ApiClient(configuration))
        return cls(api=api, namespace=namespace or own, kubeconfig=kubeconfig, context=chosen["name"])

    def log_in_again(self) -> None:
        """Take up what the kubeconfig has by now for the same context.

        Raises:
            CommandError: it cannot be read.
        """
        client = self.api.api_client
        configuration, _ = _logged_in(self.kubeconfig, self.context)
        client.rest_client, client.configuration = RESTClientObject(configuration), configuration

    @property
    def kubeconfigs(self) -> list[Path]:
        """The files of the kubeconfig."""
        paths = self.kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION
        return [Path(path).expanduser() for path in paths.split(ENV_KUBECONFIG_PATH_SEPARATOR)]

    def path(self, rest: str, group: str = "/api/v1", *, everywhere: bool = False) -> str:
        """The path of objects at the API server.

        Args:
            rest: their plural, and what follows it.
            group: the path of their API group's version.
            everywhere: whether of all namespaces.
        """
        where = "" if everywhere else f"/namespaces/{quote(self.namespace, safe='')}"
        return f"{group}{where}/{rest}"

    def call(
        self,
        path: str,
        query: Mapping[str, str] = MappingProxyType({}),
        *,
        post: Resource | None = None,
        seconds: float = SECONDS,
        silence: float | None = None,
    ) -> Any:
        """Get what is at a path; returns urllib3's answer, whose body is not read yet.

        NB: in place of the client's own calls: to import those of the core API takes more than a second.

        Args:
            path: at the API server.
            query: of the URL.
            post: is posted if it is given.
            seconds: to wait for a connection, and for each part of the answer.
            silence: to wait for each part of a body, where that is another time.

        Raises:
            ApiException: the API server has refused it.
            HTTPError, OSError: there is no answer.
        """
        client = self.api.api_client
        method, url, headers, *_ = client.param_serialize(
            "GET" if post is None else "POST",
            path,
            query_params=[*query.items()],
            header_params={"Accept": "application/json, */*", "Content-Type": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = client.rest_client.pool_manager.request(
            method,
            url,
            headers=headers,
            body=None if post is None else json.dumps(post),
            timeout=Timeout(connect=seconds, read=seconds),
            preload_content=False,
            redirect=False,  # a pod's metrics are nowhere else
        )
        if answer.status >= 300:
            said, _ = body(answer, most=_ERROR_BYTES, seconds=seconds)
            raise ApiException(status=answer.status, reason=answer.reason, body=said.decode(errors="replace"))
        if silence is not None:
            _wait_for(answer, silence)
        return answer

    def list(self, kind: str, *, everywhere: bool = False) -> list[Resource]:
        """List the resources of a kind, sorted by namespace and name.

        Args:
            kind: such as ModelBackend.
            everywhere: whether of all namespaces.

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
            raise CommandError(f"cannot read the {PLURALS[kind]} of {place}: {cause(error)}") from error
        items: list[Resource] = listed["items"]
        return sorted(items, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))

    def list_core(self, kind: str, selector: str = "", *, everywhere: bool = False) -> Resources:
        """List objects of the core API.

        Args:
            kind: in lower case, such as pod.
            selector: of labels; empty for all.
            everywhere: whether of all namespaces.

        Raises:
            ForbiddenError: the user may not read them.
            CommandError: they cannot be read.
        """
        try:
            answer = self.call(self.path(f"{kind}s", everywhere=everywhere), {"labelSelector": selector})
            items: Resources = json.loads(answer.data)["items"]
        except (ApiException, HTTPError, OSError) as error:
            raise _failed(f"cannot read the {kind}s", error) from error
        return items

    def deployment(self, name: str) -> Resource:
        """Return a Deployment of the namespace.

        Args:
            name: its name.

        Raises:
            NotFoundError: it is not there.
            CommandError: it cannot be read.
        """
        return self._read("Deployment", "/apis/apps/v1", name)

    def endpoint_slice(self, name: str) -> Resource:
        """Return an EndpointSlice of the namespace; as `deployment`.

        Args:
            name: its name.
        """
        return self._read("EndpointSlice", "/apis/discovery.k8s.io/v1", name)

    def _read(self, kind: str, group: str, name: str) -> Resource:
        try:
            path = self.path(f"{kind.lower()}s/{quote(name, safe='')}", group)
            found: Resource = json.loads(self.call(path).data)
        except (ApiException, HTTPError, OSError) as error:
            raise _failed(f"cannot read {kind} {self.namespace}/{name}", error) from error
        return found

    def get(self, kind: str, name: str) -> Resource:
        """Return one resource of the namespace.

        Args:
            kind: such as ModelBackend.
            name: its name.

        Raises:
            NotFoundError: it is not there.
            CommandError: it cannot be read.
        """
        if "/" in name:
            raise CommandError(f"expected the name of a {kind} alone, such as digits, found {name!r}")
        try:
            resource: Any = self.api.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURALS[kind], name, _request_timeout=SECONDS
            )
        except (ApiException, HTTPError, OSError) as error:
            raise _failed(f"cannot read {kind} {self.namespace}/{name}", error) from error
        return dict(resource)

    def annotate(self, kind: str, name: str, annotation: str, value: str) -> None:
        """Set one annotation of a resource of the namespace, and nothing else.

        Args:
            kind: such as TrafficSplit.
            name: its name.
            annotation: which.
            value: what it is to be.

        Raises:
            NotFoundError: the resource is not there.
            CommandError: it cannot be written.
        """
        patch = {"metadata": {"annotations": {annotation: value}}}
        try:
            self.api.patch_namespaced_custom_object(
                *(GROUP, VERSION, self.namespace, PLURALS[kind], name, patch),
                field_manager=FIELD_MANAGER,
                _content_type="application/merge-patch+json",
                _request_timeout=SECONDS,
            )
        except (ApiException, HTTPError, OSError) as error:
            raise _failed(f"cannot annotate {kind} {self.namespace}/{name}", error) from error

    def events(self, kind: str, name: str) -> Resources:
        """The Events of a resource of the namespace, oldest first.

        Args:
            kind: such as TrafficSplit.
            name: its name.

        Raises:
            CommandError: they cannot be read.
        """
        selector = f"involvedObject.kind={kind},involvedObject.name={name}"
        try:
            answer = self.call(self.path("events"), {"fieldSelector": selector})
            items: Resources = json.loads(answer.data)["items"]
        except (ApiException, HTTPError, OSError) as error:
            raise _failed(f"cannot read the Events of {kind} {self.namespace}/{name}", error) from error
        return sorted(items, key=event_time)


def _logged_in(kubeconfig: str | None, context: str | None) -> tuple[Configuration, Resource]:
    """A client's configuration, and the context that it is of; as `Cluster.connect`."""
    configuration = Configuration()
    try:
        contexts, active = kube_config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
        kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig, context=context, client_configuration=configuration, persist_config=False
        )
        chosen = next((entry for entry in contexts if entry["name"] == context), active)
    except (kube_config.ConfigException, yaml.YAMLError, OSError, *_OF_ANOTHER_FORM) as error:
        cause = " ".join(str(error).split())
        raise CommandError(
            f"cannot log in by {kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION}: {cause}"
        ) from error
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.socket_options = [*HTTPConnection.default_socket_options, *_KEEPALIVE]
    return configuration, chosen


def _wait_for(answer: Any, seconds: float) -> None:
    """Have an answer of urllib3 wait so long for each part of its body."""
    sock = answer.connection and answer.connection.sock
    # NB: a connection has no socket any longer where the answer ends by its close; urllib3 keeps this alone.
    sock = sock or getattr(getattr(answer, "_sock_shutdown", None), "__self__", None)
    if sock is not None:
        sock.settimeout(seconds)


def body(answer: Any, *, most: int, seconds: float) -> tuple[bytes, bool]:
    """What came of an answer's body, and whether that is all of it; an answer may have no end.

    Args:
        answer: of urllib3, whose body is not read yet.
        most: bytes that are read, about.
        seconds: that this takes, beside the time of the last read.
    """
    ends, pieces, read = time.monotonic() + seconds, list[bytes](), 0
    while read < most and time.monotonic() < ends:
        if not (piece := answer.read1(most)):
            answer.release_conn()
            return b"".join(pieces), True
        pieces.append(piece)
        read += len(piece)
    answer.close()
    return b"".join(pieces), False


def event_time(event: Resource) -> str:
    """When an Event happened last, RFC 3339.

    Args:
        event: of the core API.
    """
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), None) or event["metadata"].get("creationTimestamp", ""))


def _failed(what: str, error: Exception) -> CommandError:
    status = error.status if isinstance(error, ApiException) else None
    kinds: dict[int | None, type[CommandError]] = {403: ForbiddenError, 404: NotFoundError}
    return kinds.get(status, CommandError)(f"{what}: {cause(error)}")


def cause(error: Exception) -> str:
    """Why a call has failed: the apiserver's own words, where it answered.

    Args:
        error: what the client raised.
    """
    if not isinstance(error, ApiException):
        return str(error)
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        # An apiserver that does not serve a group has no Status for it.
        hint = f"; does it serve {GROUP}/{VERSION}, is Penstock installed?" if error.status == 404 else ""
        return f"{error.status} {error.reason}{hint}"
