"""Kubernetes behind one small Protocol, so that everything else can be tested without it.

`KubernetesCluster` speaks raw JSON through the official client's lowest layer: no typed models, no discovery.
Every write is a server-side apply under one of three field managers; `create` is for objects that are never
updated (Events, TokenReviews) and for a new Lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
import msgspec
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from penstock_operator import nesting
from penstock_operator.errors import ClusterError, ConfigError, NotFound, cluster_error
from penstock_operator.kinds import Kind
from penstock_operator.kube.pages import Answer, Pages
from penstock_wire.words import cut

T = TypeVar("T")
Obj = dict[str, Any]
"""A Kubernetes object as JSON. Objects from a Cluster or a Store are shared: copy before changing one."""

MANAGER = "penstock"
"""Field manager of rendered objects."""
STATUS_MANAGER = "penstock-status"
"""Field manager of statuses."""
SCALE_MANAGER = "penstock-autoscaler"
"""Field manager of replicas that the built-in autoscaler chose."""

PAGE = 100
"""Most objects in a page of a list (see `pages`): only one page is in memory, as text and parsed."""

_ANEW = 3
"""How often a list with expired pages is begun again before that is an error."""

_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Reader(Protocol):
    """All that the operator reads of Kubernetes. Both methods can raise `ClusterError`."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """Read one object; None if there is none."""

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        keep: Callable[[Obj], T],
        labels: str | None = None,
        name: str | None = None,
        metadata_only: bool = False,
        began: Callable[[str], None] = lambda _version: None,
    ) -> list[T]:
        """List all objects of a kind; only the results of `keep` stay in memory.

        Args:
            keep: called with each object as it arrives; a list that is begun again calls it again for some.
            name: only the object of this name. An empty list proves that there is none; a 404 to `get` does
                not, as a starting server answers so for existing objects, too.
            metadata_only: ask for metadata alone, which is much cheaper.
            began: called with the version that is listed; a list that is begun again has another one.

        Returns:
            What `keep` returned, once for each object.
        """


class Writer(Protocol):
    """All that it writes; with a `uid`, to that object alone, never to a namesake.

    Every method can raise `ClusterError`, and `LeaseLost` behind a fence.
    """

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        """Server-side apply as `MANAGER`, taking over fields that others set.

        Args:
            obj: all the fields we want, with name and, if it has one, namespace.

        Returns:
            The live object.
        """

    async def apply_status(self, kind: Kind, obj: Obj) -> Obj:
        """Server-side apply of the status subresource as `STATUS_MANAGER`."""

    async def apply_scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, *, uid: str | None = None
    ) -> Obj:
        """Write the scale subresource as `SCALE_MANAGER`, which owns the replicas from then on.

        Raises:
            Conflict: it changed meanwhile, or is a namesake.
        """

    async def annotate(
        self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> Obj:
        """Write annotations of an object of another client.

        Args:
            annotations: the values; None removes one.

        Raises:
            NotFound: it does not exist.
            Conflict: it is a namesake.
        """

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        """Delete in the background.

        Returns:
            False if there was none, or it was a namesake.
        """

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        """Create an object.

        Returns:
            The server's answer.

        Raises:
            Conflict: it exists.
        """


class Cluster(Reader, Writer, Protocol):
    """Kubernetes."""


class Connection(Cluster, Protocol):
    """A `Cluster` with connections of its own."""

    async def close(self) -> None:
        """Close all connections."""


class WriteObserver(Protocol):
    """A counter of writes."""

    def wrote(self, verb: str, kind: str) -> None:
        """Count a successful write of this kind: apply, delete, status, scale, annotate or create."""


class NoObserver:
    """A `WriteObserver` that counts nothing."""

    def wrote(self, verb: str, kind: str) -> None:
        """See `WriteObserver`."""


class KubernetesCluster:
    """A real cluster."""

    def __init__(self, configuration: Configuration, *, timeout: float = 15.0) -> None:
        self._configuration = configuration
        self._client = ApiClient(configuration)
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, *, timeout: float = 15.0) -> KubernetesCluster:
        """Log in with a kubeconfig if one is named, else as the pod's service account.

        Raises:
            ConfigError: neither works.
        """
        return cls(await login(kubeconfig), timeout=timeout)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        return await self._patch(kind, obj, MANAGER)

    async def apply_status(self, kind: Kind, obj: Obj) -> Obj:
        return await self._patch(kind, obj, STATUS_MANAGER, subresource="status")

    async def apply_scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, *, uid: str | None = None
    ) -> Obj:
        path = kind.path(namespace, name, "scale")
        live = await self._call("GET", path)
        if uid not in (None, live["metadata"].get("uid")):
            raise cluster_error(409, f"{kind.plural} {name!r} is another one by now: its uid differs")
        if (live.get("spec") or {}).get("replicas", 0) != replicas:
            # NB: an apply that changes a custom resource's scale is answered 500 (Kubernetes 1.36: "request
            # to convert CR to an invalid group/version: autoscaling/v1"), and so is one where nobody owns the
            # replicas; one that changes nothing of what others own works, and makes us an owner, too. So we
            # apply for the ownership and patch for the change.
            return await self._call(
                "PATCH",
                path,
                query={"fieldManager": SCALE_MANAGER},
                # With the version, the number never goes to a namesake, nor overwrites an unseen change.
                body={
                    "metadata": {"resourceVersion": live["metadata"]["resourceVersion"]},
                    "spec": {"replicas": replicas},
                },
                content_type="application/merge-patch+json",
            )
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"replicas": replicas},
        }
        return await self._patch(kind, body, SCALE_MANAGER, subresource="scale")

    async def annotate(
        self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> Obj:
        return await self._call(
            "PATCH",
            kind.path(namespace, name),
            query={"fieldManager": MANAGER},
            body={"metadata": {"uid": uid, "annotations": dict(annotations)}},
            content_type="application/merge-patch+json",
        )

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        try:
            return await self._call("GET", kind.path(namespace, name))
        except NotFound:
            return None

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        keep: Callable[[Obj], T],
        labels: str | None = None,
        name: str | None = None,
        metadata_only: bool = False,
        began: Callable[[str], None] = lambda _version: None,
    ) -> list[T]:
        first = {"limit": str(PAGE)}
        if labels:
            first["labelSelector"] = labels
        if name:
            first["fieldSelector"] = f"metadata.name={name}"
        accept = _METADATA_ONLY if metadata_only else "application/json"
        objects: list[T] = []
        token, anew = "", 0
        while True:
            query = first | ({"continue": token} if token else {})
            try:
                page = await self._call("GET", kind.path(namespace), query=query, accept=accept)
            except ClusterError as error:
                if error.status != 410 or not token or anew == _ANEW:
                    raise
                # The pages' resourceVersion is compacted away: those read so far do not match newer ones.
                objects, token, anew = [], "", anew + 1
                continue
            metadata = page.get("metadata") or {}
            if not token:
                began(metadata.get("resourceVersion") or "")
            for item in page.get("items") or []:
                # A list's items carry no type of their own.
                item.setdefault("apiVersion", kind.api_version)
                item["kind"] = kind.kind
                objects.append(keep(item))
            token = metadata.get("continue") or ""
            if not token:
                return objects

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        body: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", kind.path(namespace, name), body=body)
        except NotFound:
            return False
        except ClusterError as error:
            if error.status == 409 and uid:
                return False
            raise
        return True

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        return await self._call("POST", kind.path(obj["metadata"].get("namespace")), body=obj)

    async def _patch(self, kind: Kind, obj: Obj, manager: str, subresource: str | None = None) -> Obj:
        metadata = obj["metadata"]
        return await self._call(
            "PATCH",
            kind.path(metadata.get("namespace"), metadata["name"], subresource),
            query={"fieldManager": manager, "force": "true"},
            body=obj,
            content_type="application/apply-patch+yaml",  # JSON is YAML
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Obj | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> Obj:
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": "penstock-operator"}
        token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        url = f"{self._configuration.host}{path}"
        if query:
            url += "?" + urlencode(query)
        try:
            answer = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body, _request_timeout=self._timeout
            )
            data = await answer.response.take()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise cluster_error(0, f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer.status < 300:
            try:
                parsed = nesting.decode(data) if data else {}
            except msgspec.MsgspecError as error:
                raise cluster_error(0, f"{method} {path}: the answer is not JSON") from error
            return parsed if isinstance(parsed, dict) else {}
        raise cluster_error(answer.status, _message(data, answer.status), _seconds(answer.headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A login in a form that other clients understand.

    Args:
        authorization: value of the Authorization header, empty for client certificates.
    """

    server: str
    authorization: str
    ca_path: str | None
    insecure: bool
    certificate_path: str | None
    private_key_path: str | None


async def credentials(kubeconfig: str | None) -> Credentials:
    """Return the current login (tokens are read again).

    Raises:
        ConfigError: neither works.
    """
    credentials = await login(kubeconfig)
    token = await credentials.get_api_key_with_prefix("BearerToken", alias="authorization")
    return Credentials(
        server=credentials.host,
        authorization=token or "",
        ca_path=credentials.ssl_ca_cert or None,
        insecure=not credentials.verify_ssl,
        certificate_path=credentials.cert_file or None,
        private_key_path=credentials.key_file or None,
    )


async def login(kubeconfig: str | None) -> Configuration:
    """Log in: return the cluster's address and the operator's identity there.

    Raises:
        ConfigError: neither works.
    """
    configuration = Configuration()
    # NB: with trust_env, a thread looks up the environment's proxies for every single request.
    configuration.client_session_kwargs = {
        "trust_env": bool(getproxies()),
        "response_class": Answer,
        "middlewares": (Pages(),),
    }
    try:
        if kubeconfig:
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
        else:
            kube_config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )
    except (kube_config.ConfigException, OSError, TypeError) as error:
        where = (
            f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account (or give --kubeconfig)"
        )
        raise ConfigError(f"cannot log in with {where}: {error}") from error
    return configuration


def _message(data: bytes, status: int) -> str:
    try:
        parsed = nesting.decode(data)
    except msgspec.MsgspecError:
        return f"HTTP {status}: {cut(data[:1000].decode('utf-8', 'replace'), 200)}"
    message = parsed.get("message") if isinstance(parsed, dict) else None
    return str(message or f"HTTP {status}")


def _seconds(headers: Mapping[str, str]) -> float | None:
    try:
        return float(headers["Retry-After"])
    except (KeyError, ValueError):
        return None
