"""Errors of the operator, in its work with Kubernetes and its own data plane.

::

    OperatorError
    ├── ConfigError            the operator's own flags or environment
    ├── StartError             the leader cannot begin; ends the process
    ├── LeaseLost              another process leads, or we could not prove that we do; ends the process
    ├── ReportRefused          the sender of a report is not the pod that it reports for
    ├── NameTaken              an object of a wanted name is not ours
    ├── Outdated               the resource is gone or replaced; its keys are queued again
    └── ClusterError           the apiserver refused, or did not answer
        ├── NotFound           404
        ├── Conflict           409
        ├── Rejected           400, 403, 405, 413, 415, 422: the same call will fail again
        └── Unavailable        401, 429, 5xx, or no answer: try again
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OperatorError(Exception):
    """Root of all errors of the operator."""


class ConfigError(OperatorError):
    """A flag or an environment variable does not make sense."""


class StartError(OperatorError):
    """The leader cannot begin; another operator may be able to."""


class LeaseLost(OperatorError):
    """This process is no longer the leader and must stop acting."""


class ReportRefused(OperatorError):
    """A report was refused."""

    def __init__(self, status: int, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail


class Outdated(OperatorError):
    """The resource is gone, or was replaced by another of the same name; its keys are queued again."""


class NameTaken(OperatorError):
    """An object that we would render exists already and is not ours."""

    def __init__(self, kind: str, namespace: str, name: str, owner: str) -> None:
        super().__init__(
            f"{kind} {namespace}/{name} exists and is not ours ({owner}); "
            f"it was left as it is. Delete or rename it, or choose another name."
        )
        self.kind = kind
        self.namespace = namespace
        self.name = name


class ClusterError(OperatorError):
    """The apiserver refused a call."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


class NotFound(ClusterError):
    """The object, or its kind, is not there."""


class Conflict(ClusterError):
    """The object changed meanwhile, exists already, or belongs to another field manager."""


class Rejected(ClusterError):
    """The apiserver will refuse the same call again: schema, policy, quota or RBAC."""


class Unavailable(ClusterError):
    """The apiserver could not answer now."""


def cluster_error(status: int, message: str, retry_after: float | None = None) -> ClusterError:
    """Make the error that belongs to an HTTP status."""
    if status == 404:
        return NotFound(status, message)
    if status == 409:
        return Conflict(status, message)
    if status in (400, 403, 405, 413, 415, 422):
        return Rejected(status, message)
    return Unavailable(status, message, retry_after=retry_after)


def words_of(fault: Mapping[str, Any]) -> str:
    """The message of one fault that pydantic, or one of our validators in it, found."""
    message: str = fault["msg"]
    return message.removeprefix("Value error, ")
