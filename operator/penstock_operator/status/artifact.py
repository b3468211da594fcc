"""`status.artifact` of a ModelBackend: the digest of the first download, and how far later ones are."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_operator.api import ModelBackend
from penstock_operator.api.backendstatus import ArtifactStatus
from penstock_operator.desired import artifact
from penstock_wire.control.artifact import ArtifactDemand
from penstock_wire.control.report import SidecarReport

_SHOW_SHARE = 0.05
"""Part of the bytes after which a download is shown again."""


def recorded(backend: ModelBackend) -> ArtifactStatus | None:
    """What the status has of the artifact that the spec asks for; None if it has none."""
    asked, old = backend.spec.model.artifact, backend.status.artifact
    if asked is None or old is None or old.source != artifact.source(asked):
        return None
    return old


def demand(backend: ModelBackend) -> ArtifactDemand | None:
    """What each pod must find, once a pod has all files."""
    old = recorded(backend)
    if old is None or old.digest is None:
        return None
    return ArtifactDemand(source=old.source, digest=old.digest)


def artifact_status(backend: ModelBackend, reports: Mapping[str, SidecarReport]) -> ArtifactStatus | None:
    """Make the status.

    Args:
        reports: the last report of each pod by name.
    """
    asked = backend.spec.model.artifact
    if asked is None or not asked.is_downloaded:
        return None
    source, old = artifact.source(asked), recorded(backend)
    here = [report.artifact for _, report in sorted(reports.items()) if report.artifact is not None]
    here = [state for state in here if state.source == source]
    whole = next((state for state in here if state.digest), None)
    digest = old.digest if old is not None and old.digest else whole.digest if whole is not None else None
    size = whole.total if whole is not None else old.bytes if old is not None else None
    coming = max((state for state in here if not state.digest), key=lambda state: state.here, default=None)
    new = ArtifactStatus(
        source=source,
        digest=digest,
        bytes=coming.total or None if coming is not None else size,
        downloaded=coming.here if coming is not None else None,
        progress=coming.words if coming is not None and coming.total else None,
    )
    return new if old is None or _moved(old, new) else old


def artifact_moved(backend: ModelBackend, reports: Mapping[str, SidecarReport]) -> bool:
    """Whether there is something new to show."""
    return artifact_status(backend, reports) != backend.status.artifact


def _moved(old: ArtifactStatus, new: ArtifactStatus) -> bool:
    if old.downloaded is None or new.downloaded is None or (old.digest, old.bytes) != (new.digest, new.bytes):
        return old != new
    return abs(new.downloaded - old.downloaded) > _SHOW_SHARE * (new.bytes or 0)
