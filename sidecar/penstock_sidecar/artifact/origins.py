"""Where artifacts come from: each origin lists its files and reads ranges of them.

obstore has the clients (docs/adr): signatures, credentials of pods, retries, proxies, authorities.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec
import obstore
from obstore.exceptions import (
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import HTTPStore, from_url

from penstock_sidecar.artifact.errors import ArtifactError, public
from penstock_sidecar.artifact.identity import missing
from penstock_sidecar.artifact.paths import MOST_FILES, folders, wanted

HUB = "https://huggingface.co"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
REQUEST = timedelta(minutes=2)
"""For a request with its answer; a piece of a file has 4 MiB."""
_WHOLE = timedelta(hours=12)
"""The same for a server that gives no ranges: its answer is the file."""
_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}
"""Of each kind of bucket, the variable that has another server than its inventor's."""
_SENT = {"https": "HTTP_AUTHORIZATION", "hf": "HF_TOKEN"}
"""Of others, the variable with what is sent: a bucket's library finds that, or says that there is none."""
_RETRY: Any = {"max_retries": 6, "retry_timeout": timedelta(minutes=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A file of an artifact where it comes from.

    Args:
        path: where it belongs, below the artifact's root.
        size: its bytes.
        version: what changes when its content does.
        at: the place that its origin knows it by.
        etag: its entity tag, if the origin has any.
        sha256: its SHA-256 in hexadecimal digits, if the origin says.
        whole: whether it can be read from its start alone.
    """

    path: str
    size: int
    version: str
    at: str
    etag: str | None = None
    sha256: str | None = None
    whole: bool = False


class Origin(Protocol):
    """Where an artifact comes from."""

    async def files(self, include: Sequence[str]) -> list[Remote]:
        """List the wanted files by path.

        Raises:
            ArtifactError: they cannot be had.
        """

    def store(self, remote: Remote) -> tuple[Any, str]:
        """The store of obstore that has a file, and its path there."""


def origin_of(uri: str) -> Origin:
    """The origin of a URI.

    Raises:
        ArtifactError: there is none for its scheme.
    """
    scheme = uri.partition("://")[0]
    if scheme in _ENDPOINTS:
        return Bucket(uri)
    if scheme == "https":
        return WebFile(uri)
    if scheme == "hf":
        return Hub(uri)
    raise ArtifactError(
        f"expected a URI with s3://, gs://, az://, https:// or hf://, found {uri.partition('?')[0]!r}"
    )


def failure(error: BaseException, uri: str) -> ArtifactError:
    """The words of a library's error about a URI."""
    shown = uri.partition("?")[0]
    if isinstance(error, FileNotFoundError):
        return ArtifactError(f"expected files at {shown}, found none: {public(error)}")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        variable = None if "?" in uri else _SENT.get(uri.partition("://")[0])  # a signed URL has its own
        none = variable is not None and not os.environ.get(variable)
        found = f"none, as there is no {variable}" if none else "others"
        return ArtifactError(f"expected credentials that may read {shown}, found {found}: {public(error)}")
    if (whose := missing(str(error), uri.partition("://")[0])) is not None:
        return ArtifactError(f"expected credentials for {shown} of {whose}: {public(error, body=True)}")
    if isinstance(error, PreconditionError):
        return ArtifactError(f"expected {shown} to stay as it is, found it changed while it was read")
    return ArtifactError(f"{shown} cannot be read: {public(error)}")


def _options(url: str, *, timeout: timedelta = REQUEST, authorization: str | None = None) -> Any:
    headers = {"default_headers": {"authorization": authorization}} if authorization else {}
    plain = urlsplit(url).scheme == "http"
    return {"timeout": timeout, "connect_timeout": timedelta(seconds=10), "allow_http": plain, **headers}


class Bucket:
    """A prefix or an object of a bucket; `AWS_…`, `GOOGLE_…` and `AZURE_…` variables have all else."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        scheme, _, place = uri.partition("://")
        bucket, _, self._key = place.partition("/")
        endpoint = os.environ.get(_ENDPOINTS[scheme], "https://")
        try:
            self._store: Any = from_url(
                f"{scheme}://{bucket}", client_options=_options(endpoint), retry_config=_RETRY
            )
        except (BaseError, ValueError) as error:
            raise failure(error, uri) from error

    async def files(self, include: Sequence[str]) -> list[Remote]:
        """List the object of this key, or those below it."""
        try:
            found, root = await self._listed()
        except (BaseError, OSError) as error:
            raise failure(error, self._uri) from error
        paths = {entry["path"][len(root) :]: entry for entry in found}
        # An empty object named as a folder is how consoles show one.
        shown = {path for path in folders(paths) if not paths[path]["size"]}
        paths = {path: entry for path, entry in paths.items() if path and path not in shown}
        if not paths:
            raise ArtifactError(f"expected an object or a prefix at {self._uri}, found neither")
        single = len(paths) == 1 and next(iter(paths)).endswith(ARCHIVES)
        return [
            Remote(
                path=path,
                size=paths[path]["size"],
                version=str(etag or paths[path]["last_modified"]),
                at=paths[path]["path"],
                etag=etag,
            )
            for path in wanted(paths, () if single else include)
            for etag in (_quoted(paths[path]["e_tag"]),)
        ]

    async def _listed(self) -> tuple[list[Any], str]:
        key = self._key.strip("/")
        if key and not self._key.endswith("/"):
            try:
                return [await obstore.head_async(self._store, key)], key[: key.rfind("/") + 1]
            except FileNotFoundError:
                pass
        found: list[Any] = []
        async for entries in obstore.list(self._store, prefix=key or None):
            found += entries
            if len(found) > MOST_FILES:
                raise ArtifactError(
                    f"expected at most {MOST_FILES} objects at {self._uri}, found more: name a longer key"
                )
        return found, f"{key}/" if key else ""

    def store(self, remote: Remote) -> tuple[Any, str]:
        """The bucket, and the object's key."""
        return self._store, remote.at


def _quoted(etag: str | None) -> str | None:
    """An entity tag as an answer's head has it: Azure lists them without quotes."""
    return f'"{etag}"' if etag and not etag.endswith('"') else etag


class WebFile:
    """One file of a web server; the variable `HTTP_AUTHORIZATION` has that field, if it is needed."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._authorization = os.environ.get("HTTP_AUTHORIZATION")

    async def files(self, include: Sequence[str]) -> list[Remote]:
        """Ask for a byte: a signed URL allows that, unlike HEAD; the answer says if there are ranges."""
        name = unquote(urlsplit(self._uri).path.rpartition("/")[2])
        whole = False
        try:
            try:
                answer = await obstore.get_async(*self._at(whole=False), options={"range": (0, 1)})
            except NotSupportedError:
                whole = True
                answer = await obstore.get_async(*self._at(whole=True))
        except (BaseError, OSError) as error:
            raise failure(error, self._uri) from error
        (path,) = wanted([name], () if name.endswith(ARCHIVES) else include)
        meta = answer.meta
        version = str(meta["e_tag"] or meta["last_modified"])
        return [
            Remote(
                path=path, size=meta["size"], version=version, at=self._uri, etag=meta["e_tag"], whole=whole
            )
        ]

    def _at(self, *, whole: bool) -> tuple[HTTPStore, str]:
        options = _options(self._uri, timeout=_WHOLE if whole else REQUEST, authorization=self._authorization)
        return HTTPStore.from_url(self._uri, client_options=options, retry_config=_RETRY), ""

    def store(self, remote: Remote) -> tuple[Any, str]:
        """The URL."""
        return self._at(whole=remote.whole)


class _Lfs(msgspec.Struct):
    sha256: str


class _Sibling(msgspec.Struct, rename={"path": "rfilename", "blob": "blobId"}):
    path: str
    size: int
    blob: str
    lfs: _Lfs | None = None


class _Repository(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]


class Hub:
    """A repository of the Hugging Face Hub; `HF_TOKEN` and `HF_ENDPOINT` as its own client has them."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._repository, _, revision = uri.removeprefix("hf://").strip("/").partition("@")
        self._revision = revision or "main"
        self._endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
        token = os.environ.get("HF_TOKEN")
        self._authorization = f"Bearer {token}" if token else None

    async def files(self, include: Sequence[str]) -> list[Remote]:
        """List the files of the revision's commit, which cannot change."""
        url = f"{self._endpoint}/api/models/{self._repository}/revision/{quote(self._revision, safe='')}"
        try:
            answer = await obstore.get_async(*self._at(f"{url}?blobs=true"))
            listed = msgspec.json.decode(await answer.bytes_async(), type=_Repository)
        except (BaseError, OSError) as error:
            raise failure(error, self._uri) from error
        except msgspec.DecodeError as error:
            raise ArtifactError(
                f"expected a list of files from {url}, found another answer: {error}"
            ) from error
        files = {sibling.path: sibling for sibling in listed.siblings}
        return [
            Remote(
                path=path,
                size=files[path].size,
                version=files[path].blob,
                at=f"{self._endpoint}/{self._repository}/resolve/{quote(listed.sha, safe='')}/{quote(path)}",
                sha256=lfs.sha256 if (lfs := files[path].lfs) else None,
            )
            for path in wanted(files, include)
        ]

    def _at(self, url: str) -> tuple[HTTPStore, str]:
        options = _options(url, authorization=self._authorization)
        return HTTPStore.from_url(url, client_options=options, retry_config=_RETRY), ""

    def store(self, remote: Remote) -> tuple[Any, str]:
        """The URL of the file in that commit."""
        return self._at(remote.at)
