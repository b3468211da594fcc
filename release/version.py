"""The version and the commit that are released; both are read from the checkout."""

import dataclasses
import re
import subprocess
import tomllib
from pathlib import Path

import yaml

from release.errors import ReleaseError

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "penstock"
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is released.

    Attributes:
        version: such as 0.1.0.
        revision: the commit's hash.
        epoch: when it was made, in seconds since 1970: the time of all files (SOURCE_DATE_EPOCH,
            https://reproducible-builds.org/specs/source-date-epoch/).
    """

    version: str
    revision: str
    epoch: int


def git(*arguments: str) -> str:
    """Run git in the checkout; returns what it prints, without white space around it."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def check_version(version: str, root: Path = ROOT) -> None:
    """Check that package and chart say the version that is to be released.

    Args:
        version: what is to be released.
        root: the checkout.

    Raises:
        ReleaseError: they say another, or it is not a version.
    """
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION: expected a version such as 0.1.0 or 0.2.0rc1, found {version!r}")
    package = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((root / "helm/penstock/Chart.yaml").read_text())
    places = {
        "pyproject.toml: project.version": package,
        "helm/penstock/Chart.yaml: version": chart["version"],
        "helm/penstock/Chart.yaml: appVersion": chart["appVersion"],
    }
    for place, found in places.items():
        if found != version:
            raise ReleaseError(f"{place}: expected {version}, found {found}")


def read_commit(version: str) -> Commit:
    """Read the commit that is checked out.

    Raises:
        ReleaseError: the checkout has changes that are not committed, or says another version.
    """
    check_version(version)
    if changes := git("status", "--porcelain"):
        files = ", ".join(line.split(maxsplit=1)[1] for line in changes.splitlines()[:5])
        raise ReleaseError(f"expected no changes, a release is a commit; found changed: {files}")
    return Commit(
        version=version, revision=git("rev-parse", "HEAD"), epoch=int(git("log", "-1", "--format=%ct"))
    )
