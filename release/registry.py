"""Push to a registry by digest, sign there, and check what was signed: skopeo, helm and cosign."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from devcluster import images, programs
from release.errors import ReleaseError
from release.images import TITLES
from release.packages import run
from release.version import Commit


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
        DevclusterError: a copy failed.
        ReleaseError: helm failed.
    """
    pushed = []
    for target in TITLES:
        source = f"{into / 'images'}:{target}-{commit.version}"
        there = f"docker://{registry}/{target}:{commit.version}"
        options = [f"--dest-tls-verify={'false' if plain else 'true'}"]
        digest = images.copy(f"oci:{source}", there, *options)
        pushed.append(f"{registry}/{target}@{digest}")
    programs.ensure("helm")
    helm = [str(programs.program("helm", "helm")), "push", str(into / f"penstock-{commit.version}.tgz")]
    printed = run([*helm, f"oci://{registry}/charts", *(["--plain-http"] if plain else [])], commit.epoch)
    chart = re.search(r"sha256:[0-9a-f]{64}", printed)
    if not chart:
        raise ReleaseError(f"helm push: expected it to print the digest, found: {printed.strip()}")
    return [*pushed, f"{registry}/charts/penstock@{chart[0]}"]


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
        ReleaseError: one has no signature by the key, or was altered; the message has cosign's words.
    """
    how = [f"--key={key}", "--insecure-ignore-tlog=true", *(["--allow-http-registry"] if plain else [])]
    for reference in references:
        _cosign(["verify", *how, reference], commit)
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
