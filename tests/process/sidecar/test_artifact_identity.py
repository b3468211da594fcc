"""What the first step says of a pod's identity; the services that give one are on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_sidecar.artifact import origins
from penstock_sidecar.artifact.errors import ArtifactError
from penstock_sidecar.artifact.identity import missing
from penstock_sidecar.artifact.origins import Bucket, WebFile
from tests.support.http.file_server import FileServer, file_server

CLOUDS = ("AWS_", "AZURE_", "GCE_", "GOOGLE_")
NOBODY = "127.0.0.1:1"
ROLE = "arn:aws:iam::1:role/reader"
IRSA = {"AWS_WEB_IDENTITY_TOKEN_FILE": "TOKEN", "AWS_ROLE_ARN": ROLE, "AWS_ENDPOINT_URL_STS": "URL"}
EKS = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "URL/v1", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "TOKEN"}
NODE = {"AWS_METADATA_ENDPOINT": "URL"}
ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_MSI_ENDPOINT": "URL/metadata/identity/oauth2/token"}
AZURE = {"AZURE_FEDERATED_TOKEN_FILE": "TOKEN", "AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"}
AZURE |= {"AZURE_AUTHORITY_HOST": "URL", **ACCOUNT}
XML = "<ErrorResponse><Error><Code>{}</Code><Message>{}</Message></Error></ErrorResponse>"
NO_PROVIDER = XML.format("InvalidIdentityToken", "No provider found")
NO_FILE = "No such file or directory (os error 2)"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """It has whatever service a test points at; this process has no variables of a cloud."""
    for name in os.environ:
        if name.startswith(CLOUDS):
            monkeypatch.delenv(name)
    monkeypatch.setattr(origins, "_RETRY", {"max_retries": 0})
    (tmp_path / "token").write_text("eyJ.s3cret")
    with file_server(tmp_path) as served:
        monkeypatch.setenv("SSL_CERT_FILE", str(served.authority))
        yield served


BY_IRSA = f"the service account's role {ROLE} by STS (IRSA), found none: "
BY_EKS = "the service account's role (EKS Pod Identity), found none: "
BY_AZURE = "the service account's identity c (workload identity), found none: "
NEITHER = "a Secret or of the pod's identity, found neither: the pod has no "
BY_NODE = ", and the node's metadata service gives none: "
AADSTS = '{"error":"invalid_client","error_description":"AADSTS700213: No matching record"}'
TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token?…"
BOTH = "AWS_WEB_IDENTITY_TOKEN_FILE (IRSA) or AWS_CONTAINER_CREDENTIALS_FULL_URI (EKS Pod Identity)"


@pytest.mark.parametrize(
    ("env", "refusal", "words"),
    [
        (IRSA, (400, NO_PROVIDER), (BY_IRSA, "400 Bad Request: InvalidIdentityToken: No provider found")),
        (
            IRSA | {"AWS_ENDPOINT_URL_STS": f"https://{NOBODY}"},
            None,
            (BY_IRSA, "POST to STS: Connection refused"),
        ),
        (
            IRSA | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/none"},
            None,
            (BY_IRSA, f"Generic S3 error: Failed to read token file '/none': {NO_FILE}"),
        ),
        (
            IRSA | NODE | {"AWS_ROLE_ARN": ""},
            (401, ""),
            (NEITHER, "AWS_ROLE_ARN beside AWS_WEB_IDENTITY_TOKEN_FILE", BY_NODE, "401 Unauthorized"),
        ),
        (EKS, (404, "(NotFound): No association\n"), (BY_EKS, "404 Not Found: (NotFound): No association")),
        (
            EKS | {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{NOBODY}/v1"},
            None,
            (BY_EKS, f"GET http://{NOBODY}/v1: Connection refused"),
        ),
        (
            EKS | {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/none"},
            None,
            (BY_EKS, f"Generic S3 error: Failed to read EKS token file '/none': {NO_FILE}"),
        ),
        (NODE, (403, ""), (NEITHER, BOTH, BY_NODE, "403 Forbidden")),
        (
            {"GCE_METADATA_HOST": NOBODY, "GCE_METADATA_IP": NOBODY},
            None,
            (
                *(NEITHER, "GOOGLE_SERVICE_ACCOUNT_KEY, and the metadata server gives none: "),
                f"GET http://{NOBODY}{TOKEN}: Connection refused",
            ),
        ),
        (AZURE, (401, AADSTS), (BY_AZURE, f"401 Unauthorized: {AADSTS}")),
        (
            AZURE | {"AZURE_FEDERATED_TOKEN_FILE": "/none"},
            None,
            (BY_AZURE, "Generic MicrosoftAzure error: Error reading federated token file "),
        ),
        (
            AZURE | {"AZURE_CLIENT_ID": ""},
            (400, "no identity"),
            (
                NEITHER,
                "AZURE_CLIENT_ID beside AZURE_FEDERATED_TOKEN_FILE",
                BY_NODE,
                "400 Bad Request: no identity",
            ),
        ),
        (
            ACCOUNT,
            (400, "no identity"),
            (NEITHER, "AZURE_FEDERATED_TOKEN_FILE", BY_NODE, "400 Bad Request: no identity"),
        ),
    ],
)
async def test_it_says_what_is_missing(
    server: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    refusal: tuple[int, str] | None,
    words: tuple[str, ...],
) -> None:
    """The source of credentials that counts, its answer, and the variables that another would need."""
    scheme = {"AW": "s3", "GC": "gs", "AZ": "az"}[next(iter(env))[:2]]
    for name, value in env.items():
        if value:
            monkeypatch.setenv(
                name, value.replace("URL", server.url).replace("TOKEN", str(tmp_path / "token"))
            )
    server.refusal = (refusal[0], refusal[1].encode()) if refusal else None
    with pytest.raises(ArtifactError) as raised:
        await Bucket(f"{scheme}://weights/digits").files(())
    assert str(raised.value) == f"expected credentials for {scheme}://weights/digits of {''.join(words)}"
    assert len(server.asked) == (1 if refusal else 0)


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("169.254.169.254", True),
        ("169.254.170.2", True),
        ("169.254.170.23", True),
        ("169.254.20.5:9000", False),
        ("169.254.170.200", False),
    ],
)
def test_a_bucket_at_an_address_of_the_link_is_no_agent(server: FileServer, host: str, asked: bool) -> None:
    """Only the addresses that clouds give to theirs are."""
    error = f"Generic S3 error: Error performing GET http://{host}/weights in 1 ms: error sending request"
    assert (missing(error, "s3") is not None) == asked


async def test_of_a_web_server_no_identity_is_missing() -> None:
    """Also if its address looks like one that gives identities."""
    with pytest.raises(ArtifactError, match=r"^https://127\.0\.0\.1:1/latest/meta-data/a cannot be read: "):
        await WebFile(f"https://{NOBODY}/latest/meta-data/a").files(())
