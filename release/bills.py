"""Bills of material in CycloneDX's form, by syft, and the checksums of all files."""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from devcluster import images, programs
from release.images import TITLES
from release.packages import run
from release.version import ROOT, Commit

SUMS = "SHA256SUMS"


def write_bills(into: Path, commit: Commit) -> list[Path]:
    """Describe what each image holds, and what the distribution's programs are installed with.

    Args:
        into: the release's folder, with its images.
        commit: what is released.

    Returns:
        One file an image, and one for the distribution with all that its locks pin.

    Raises:
        DevclusterError: syft cannot be built.
        ReleaseError: it failed.
    """
    bills = [describe_image(target, into, commit) for target in TITLES]
    with tempfile.TemporaryDirectory() as temporary:
        python = Path(temporary) / "environment/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        locks = [f"--requirement={ROOT}/requirements/{name}.lock" for name in ("operator", "router", "cli")]
        run([*install, "--require-hashes", *locks], commit.epoch)
        (wheel,) = into.glob("*-none-any.whl")
        run([*install, "--no-deps", str(wheel)], commit.epoch)
        bill = into / f"{wheel.stem}.cdx.json"
        bills.append(_describe(f"dir:{python.parents[1]}", bill, "penstock-serving", commit))
    return bills


def describe_image(target: str, into: Path, commit: Commit) -> Path:
    """Write the bill of materials of one image.

    Args:
        target: the image; a key of `TITLES`.
        into: the release's folder, with its images.
        commit: what is released.
    """
    with tempfile.TemporaryDirectory() as temporary:  # syft reads layouts of one image alone
        images.copy(f"oci:{into / 'images'}:{target}-{commit.version}", f"oci:{temporary}/image")
        return _describe(f"oci-dir:{temporary}/image", into / f"{target}.cdx.json", target, commit)


def _describe(source: str, bill: Path, name: str, commit: Commit) -> Path:
    programs.ensure("syft")
    command = [str(programs.program("syft", "syft")), "scan", "--quiet", f"--source-name={name}"]
    command += [f"--source-version={commit.version}", f"--output=cyclonedx-json={bill}", source]
    run(command, commit.epoch, SYFT_CHECK_FOR_APP_UPDATE="false")
    return bill


def write_sums(into: Path) -> Path:
    """Write the checksums as `sha256sum --check` reads them.

    Args:
        into: the release's folder; its images' layout carries its own digests.
    """
    files = sorted(path for path in into.iterdir() if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    sums = into / SUMS
    sums.write_text("".join(lines))
    return sums
