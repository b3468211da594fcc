"""Push to a registry by digest, sign there, and check what was signed: skopeo, helm and cosign."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devcluster import images, programs
from devcluster.errors import DevclusterError
from release.chart import prefix_of
from release.errors import ReleaseError
from release.images import TITLES
from release.packages import run
from release.version import CHART, Commit

_REGISTRY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+")
_REFERENCE = re.compile(_REGISTRY.pattern + r"@sha256:[0-9a-f]{64}")


def read_address(text: str) -> str:
    """Read a registry's host and path, such as ghcr.io/owner/penstock; returns it in small letters.

    Raises:
        ReleaseError: it is something else, such as an address with https://.
    """
    if not _REGISTRY.fullmatch(text.lower()):
        raise ReleaseError(
            f"REGISTRY (--registry): expected host and path, such as ghcr.io/owner/penstock, found {text!r}"
        )
    return text.lower()


def push(into: Path, commit: Commit, registry: str, *, plain: bool = False) -> list[str]:
    """Copy images and chart to a registry.

    Args:
        into: the release's folder.
        commit: what is released.
        registry: host and path, such as ghcr.io/owner/penstock.
        plain: speak HTTP.

    Returns:
        What lies there, each as `registry/name@sha256:…`; the chart is the last.

    Raises:
        ReleaseError: the registry does not take it, or the chart names another one.
    """
    archive = into / f"penstock-{commit.version}.tgz"
    if (named := prefix_of(archive)) != registry:
        raise ReleaseError(
            f"{archive}: images.prefix: expected {registry}, where its images go, found {named!r}; "
            "run the step `chart` with this registry"
        )
    pushed, options = [], [f"--dest-tls-verify={'false' if plain else 'true'}"]
    for target in TITLES:
        source = f"{into / 'images'}:{target}-{commit.version}"
        there = f"docker://{registry}/{target}:{commit.version}"
        try:
            digest = images.copy(f"oci:{source}", there, *options)
        except DevclusterError as error:
            raise ReleaseError(
                f"{there}: expected a registry that takes images from you (skopeo login), found: {error}"
            ) from error
        pushed.append(f"{registry}/{target}@{digest}")
    programs.ensure("helm")
    helm = [str(programs.program("helm", "helm")), "push", str(archive)]
    printed = run([*helm, f"oci://{registry}/charts", *(["--plain-http"] if plain else [])], commit.epoch)
    chart = re.search(r"sha256:[0-9a-f]{64}", printed)
    if not chart:
        raise ReleaseError(f"helm push: expected it to print the digest, found: {printed.strip()}")
    return [*pushed, f"{registry}/charts/penstock@{chart[0]}"]


def push_metadata(registry: str, *, plain: bool = False) -> None:
    """Put what Artifact Hub reads of the repository beside the chart, as an OCI artifact.

    Args:
        registry: as for `push`.
        plain: speak HTTP.

    Raises:
        DevclusterError: the registry does not take it.
    """
    there, media = f"docker://{registry}/charts/penstock:artifacthub.io", "application/vnd.cncf.artifacthub."
    with tempfile.TemporaryDirectory() as temporary:
        layout = Path(temporary)
        layout.joinpath("blobs/sha256").mkdir(parents=True)

        def blob(data: bytes, media_type: str) -> dict[str, str | int]:
            digest = hashlib.sha256(data).hexdigest()
            layout.joinpath("blobs/sha256", digest).write_bytes(data)
            return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(b"{}", f"{media}config.v1+yaml"),
            "layers": [
                blob(
                    (CHART.parent / "artifacthub-repo.yml").read_bytes(),
                    f"{media}repository-metadata.layer.v1.yaml",
                )
            ],
        }
        listed = blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
        layout.joinpath("index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
        layout.joinpath("oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        images.copy(f"oci:{layout}", there, f"--dest-tls-verify={'false' if plain else 'true'}")


def read_pushed(path: Path) -> list[str]:
    """Read what `push` has written.

    Raises:
        ReleaseError: there is no such file, or a reference in it is not by digest.
    """
    if not path.is_file():
        raise ReleaseError(f"{path}: expected what `push` writes, found nothing")
    references: list[str] = json.loads(path.read_text())
    for reference in references:
        if not _REFERENCE.fullmatch(reference):
            raise ReleaseError(
                f"{path}: expected registry/name@sha256:…, found {reference!r}; a tag may move, so run `push`"
            )
    return references


def sign(pushed: Sequence[str], into: Path, commit: Commit, *, key: Path | None, plain: bool = False) -> None:
    """Sign what was pushed, and attach each image's bill of materials, signed too.

    Args:
        pushed: of `push`.
        into: the release's folder, with its bills.
        commit: what is released.
        key: a private key of cosign's; None = the identity of the workflow that runs this (keyless).
        plain: the registry speaks HTTP.

    Raises:
        ReleaseError: cosign failed.
    """
    how = [f"--key={key}", "--tlog-upload=false"] if key else ["--yes"]
    how += ["--allow-http-registry"] if plain else []
    for reference in pushed:
        _cosign(["sign", *how, reference], commit)
        bill = into / f"{reference.partition('@')[0].rpartition('/')[2]}.cdx.json"
        if bill.is_file() and "/charts/" not in reference:
            _cosign(["attest", *how, "--type=cyclonedx", f"--predicate={bill}", reference], commit)


def verify(references: Sequence[str], commit: Commit, *, key: Path, plain: bool = False) -> None:
    """Check signatures and bills of materials.

    Args:
        references: of `push`.
        commit: what is released.
        key: the public key.
        plain: the registry speaks HTTP.

    Raises:
        ReleaseError: one has no signature by the key, was altered, or could not be looked at; the message
            has cosign's words.
    """
    how = [f"--key={key}", "--insecure-ignore-tlog=true", *(["--allow-http-registry"] if plain else [])]
    for reference in references:
        try:
            _cosign(["verify", *how, reference], commit)
        except ReleaseError as error:
            raise ReleaseError(
                f"{reference}: expected a signature by {key}, so do not install it; cosign found: {error}"
            ) from error
        if "/charts/" not in reference:
            _cosign(["verify-attestation", *how, "--type=cyclonedx", reference], commit)


def _cosign(arguments: list[str], commit: Commit) -> None:
    programs.ensure("cosign")
    run(
        [str(programs.program("cosign", "cosign")), *arguments],
        commit.epoch,
        COSIGN_PASSWORD=os.environ.get("COSIGN_PASSWORD", ""),
    )


def write_sums(into: Path, pushed: Sequence[str]) -> Path:
    """Write the digests of what was pushed as sha256sum does: what attests provenance reads them so."""
    sums = into / "pushed.sums"
    pairs = (reference.split("@sha256:") for reference in pushed)
    sums.write_text("".join(f"{digest}  {name}\n" for name, digest in pairs))
    return sums
