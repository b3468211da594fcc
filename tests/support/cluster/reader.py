"""Reads objects as `kubectl get` does, without its process: that takes 60 ms of a core, this 4."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import quote

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import Unanswered, failure


@cache
def _kinds(cluster: str) -> dict[str, tuple[str, str, bool]]:
    """The path, plural and scope of each kind of a cluster, by each name that kubectl takes."""
    return {}


def _discover(cluster: Cluster) -> None:
    kinds, api = _kinds(cluster.name), cluster.api()
    groups = [group["preferredVersion"]["groupVersion"] for group in api.request("GET", "/apis")[1]["groups"]]
    for path in ("/api/v1", *(f"/apis/{group}" for group in groups)):
        status, answer = api.request("GET", path)
        # An aggregated API may have no server now.
        for kind in answer["resources"] if status == 200 else ():
            if "/" not in kind["name"]:
                group = path.removeprefix("/apis/").partition("/")[0]
                names = (kind["name"], kind["singularName"], kind["kind"].lower(), f"{kind['name']}.{group}")
                for name in (*names, *kind.get("shortNames", ())):
                    kinds.setdefault(name, (path, kind["name"], kind["namespaced"]))


def read(cluster: Cluster, namespace: str, kind: str, name: str = "", selector: str = "") -> Any:
    """Read an object, or a list of objects.

    Args:
        kind: a name of the kind that kubectl takes.
        name: the object's; empty for all of the kind.
        selector: of labels, for a list.

    Returns:
        The object, without its managed fields, and None if it does not exist; or the objects of a list.

    Raises:
        AssertionError: the server refused, or does not have the kind; `Unanswered` if it did not answer.
    """
    asked = f"{kind}/{name} of {namespace}"
    try:
        if kind.lower() not in _kinds(cluster.name):
            _discover(cluster)
        if kind.lower() not in _kinds(cluster.name):
            raise AssertionError(f"{asked}: expected a kind of the server's, found none of that name")
        group, plural, namespaced = _kinds(cluster.name)[kind.lower()]
        path = f"{group}/namespaces/{namespace}/{plural}" if namespaced else f"{group}/{plural}"
        query = f"?labelSelector={quote(selector)}" if selector else ""
        status, answer = cluster.api().request("GET", f"{path}/{name}{query}" if name else path + query)
    except OSError as error:
        raise Unanswered(f"{asked}: {error!r}") from error
    if name and status == 404 and isinstance(answer, dict):
        return None
    if status != 200:
        raise Unanswered(f"{asked}: {answer}") if status >= 500 else failure(f"{asked}: {answer}")
    if name:
        answer["metadata"].pop("managedFields", None)
        return answer
    common = {"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List")}
    for item in answer["items"]:
        item["metadata"].pop("managedFields", None)
    return [common | item for item in answer["items"]]
