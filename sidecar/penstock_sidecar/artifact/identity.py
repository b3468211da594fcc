"""Says what is missing where no Secret has credentials, and the pod's identity gives none either.

obstore looks for an identity by the variables that a cloud's webhooks put into the pod. Its errors name only
the address that was asked last, or none, so that they look like answers of the bucket.
"""

from __future__ import annotations

import os
import re

_OF_IDENTITY = re.compile(
    r"POST REDACTED|AssumeRoleWithWebIdentity|/latest/(?:api/token|meta-data/)|oken file"
    r"|://169\.254\.(?:169\.254|170\.23?)\b|token re(?:quest|sponse)"
)
"""In errors: AWS's STS, metadata of nodes, files of tokens, agents of AWS; tokens of Google and Azure."""
_AGENT = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_IRSA = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")
_EKS = (_AGENT, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
_AZURE = ("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_ID", "AZURE_TENANT_ID")
_OWN = {"s3": (_IRSA, _EKS), "gs": (), "az": (_AZURE,)}
"""By kind of bucket, the variables that are an identity of the pod's own together."""


def missing(text: str, scheme: str) -> str | None:
    """Whose credentials were asked for, and what says so; None if an error is not about them.

    Args:
        text: the library's error.
        scheme: of the artifact's URI.
    """
    has = os.environ.get
    agent = has(_AGENT)
    if scheme not in _OWN or not (_OF_IDENTITY.search(text) or (agent and agent in text)):
        return None
    if scheme == "gs":
        return _neither("GOOGLE_SERVICE_ACCOUNT_KEY", "the metadata server gives none")
    if scheme == "az":
        if all(map(has, _AZURE)):
            return f"the service account's identity {has('AZURE_CLIENT_ID')} (workload identity), found none"
        return _neither(_partly(scheme) or _AZURE[0], "the node's metadata service gives none")
    if all(map(has, _IRSA)):
        return f"the service account's role {has('AWS_ROLE_ARN')} by STS (IRSA), found none"
    if has("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return "the task's role (ECS), found none"
    if all(map(has, _EKS)):
        return "the service account's role (EKS Pod Identity), found none"
    variables = _partly(scheme) or f"{_IRSA[0]} (IRSA) or {_AGENT} (EKS Pod Identity)"
    return _neither(variables, "the node's metadata service gives none")


def _neither(variable: str, other: str) -> str:
    return f"a Secret or of the pod's identity, found neither: the pod has no {variable}, and {other}"


def _partly(scheme: str) -> str | None:
    """What an identity lacks of which the pod has a part, such as `B beside A`."""
    for variables in _OWN[scheme]:
        here = [name for name in variables if os.environ.get(name) and name != "AZURE_CLIENT_ID"]
        if here and (lacking := [name for name in variables if not os.environ.get(name)]):
            return f"{' and '.join(lacking)} beside {here[0]}"
    return None
