"""`spec.model.artifact` of a ModelBackend: files of the model that are not in its image."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import Form, cel, rules

DIGEST = Form(
    r"^sha256:[0-9a-f]{64}$", "expected sha256: and 64 hexadecimal digits, such as sha256:3f9a27c1…"
)
VOLUME_CLAIM = "pvc://"
IMAGE = "oci://"

_URI = Form(
    r"^((s3|gs|az)://[a-z0-9][a-z0-9._-]*(/[^\s?#]*)?|https://[^\s/?#@]+/[^\s#]+|"
    r"hf://[0-9A-Za-z_.-]+/[0-9A-Za-z_.-]+(@[0-9A-Za-z_./-]+)?|oci://[^\s?#/]+/[^\s?#]+|"
    r"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^\s?#]*)?)$",
    "expected a URI such as s3://bucket/key, gs://bucket/key, az://container/key, https://host/path, "
    "hf://organisation/repository@revision, "
    "pvc://claim/path or oci://registry/image:tag",
)
_SECRET = Form(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "expected the name of a Secret, such as weights-reader")
_MOUNT = Form(
    r"^/[^\s:]*[^\s:/]$",
    "expected an absolute path other than /, without blanks and colons, such as /mnt/models",
)


class ArtifactSecret(Part):
    """A Secret of the backend's namespace."""

    name: Annotated[
        str,
        Field(max_length=253, json_schema_extra=rules(_SECRET.rule), description="Its name."),
        AfterValidator(_SECRET.check),
    ]


class ModelArtifact(Part):
    """Files of the model that are not in its image, such as weights in a bucket."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!(self.uri.startsWith('pvc://') || self.uri.startsWith('oci://')) || "
                "(!has(self.digest) && !has(self.secretRef) && !has(self.include))",
                "expected neither digest nor secretRef nor include with pvc:// or oci://: a volume is "
                "mounted as it is",
            )
        )
    )

    uri: Annotated[
        str,
        Field(
            max_length=2048,
            json_schema_extra=rules(_URI.rule),
            description="Where the files are. s3://bucket/key: an object, or all below a prefix; gs:// "
            "and az:// (a container) likewise. "
            "https://host/path: one file. hf://organisation/repository@revision: a repository of the Hugging "
            "Face Hub. pvc://claim/path: a PersistentVolumeClaim of the namespace, mounted and not copied. "
            "oci://registry/image:tag: the files of an image, mounted likewise (Kubernetes 1.35). "
            "One file that ends in .tar, .tar.gz, .tgz or .zip is unpacked.",
        ),
        AfterValidator(_URI.check),
    ]
    digest: Annotated[
        str | None,
        Field(
            max_length=71,
            json_schema_extra=rules(DIGEST.rule),
            description="What the files must be: SHA-256 of the lines that sha256sum makes of them, by path. "
            "Default, when absent: that of the first download, as in status.artifact.digest.",
        ),
        AfterValidator(DIGEST.check),
    ] = None
    secret_ref: Annotated[
        ArtifactSecret | None,
        Field(
            description="A Secret whose keys are environment variables of the download: AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, GOOGLE_SERVICE_ACCOUNT_KEY, "
            "AZURE_STORAGE_ACCOUNT_KEY, HF_TOKEN, HTTP_AUTHORIZATION, HTTPS_PROXY. Default: the model's env "
            "and the identity of its ServiceAccount.",
        ),
    ] = None
    include: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
        Field(
            max_length=32,
            description="Patterns of paths, such as *.onnx: only files that match one of them. Default: all.",
        ),
    ] = ()
    mount_path: Annotated[
        str,
        Field(
            max_length=1024,
            json_schema_extra=rules(_MOUNT.rule),
            description="Where the model finds the files, read-only. Default /mnt/models.",
        ),
        AfterValidator(_MOUNT.check),
    ] = "/mnt/models"

    @property
    def is_downloaded(self) -> bool:
        """Whether a pod's first step brings the files, rather than a volume."""
        return not self.uri.startswith((VOLUME_CLAIM, IMAGE))
