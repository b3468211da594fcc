"""The chart as an archive whose defaults name this release's images."""

import gzip
import io
import tarfile
from pathlib import Path

import yaml

from devcluster.images import FORMATS, TARGETS
from release.errors import ReleaseError
from release.version import CHART, Commit

_EMPTY_PREFIX = '  prefix: ""\n'


def package(into: Path, commit: Commit, prefix: str) -> Path:
    """Write the chart's archive; `helm package` writes the time of the call into it, this does not.

    Args:
        into: a folder.
        commit: what is packed.
        prefix: registry and path of the images: the default of `images.prefix`; "" = who installs it says so.

    Returns:
        The archive.

    Raises:
        ReleaseError: values.yaml has no empty `images.prefix`.
    """
    into.mkdir(parents=True, exist_ok=True)
    archive = into / f"penstock-{commit.version}.tgz"
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(CHART.rglob("*"), key=lambda path: (path.name != "Chart.yaml", str(path))):
            if path.is_file():
                data = path.read_bytes()
                if path == CHART / "values.yaml":
                    data = _with_prefix(data.decode(), prefix).encode()
                if path == CHART / "Chart.yaml" and prefix:
                    data += _images(prefix, commit.version).encode()
                entry = tarfile.TarInfo(f"penstock/{path.relative_to(CHART)}")
                entry.size, entry.mtime, entry.mode = len(data), commit.epoch, 0o644
                tar.addfile(entry, io.BytesIO(data))
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=commit.epoch) as packed:
        packed.write(written.getvalue())
    return archive


def prefix_of(archive: Path) -> str:
    """Read the default of `images.prefix` from a chart's archive."""
    with tarfile.open(archive) as tar:
        values = tar.extractfile("penstock/values.yaml")
        assert values is not None  # noqa: S101 - for the type checker
        prefix: str = yaml.safe_load(values)["images"]["prefix"]
    return prefix


def _images(prefix: str, version: str) -> str:
    """The last of the annotations: which images the chart uses, as Artifact Hub shows and scans them."""
    lines = (f"    - name: {name}\n      image: {prefix}/{name}:{version}\n" for name in (*TARGETS, *FORMATS))
    return "  artifacthub.io/images: |\n" + "".join(lines)


def _with_prefix(values: str, prefix: str) -> str:
    if values.count(_EMPTY_PREFIX) != 1:
        raise ReleaseError(f"helm/penstock/values.yaml: expected one line {_EMPTY_PREFIX.strip()!r}")
    return values.replace(_EMPTY_PREFIX, f'  prefix: "{prefix}"\n')
