"""`python -m penstock_wire.unpack ZIP FOLDER --digest sha256:…`: a pod's first step, before its code runs.

It checks the archive's digest, unpacks it, and installs the requirements that it lists, from the wheels in
it or from the index that pip is set up for (`PIP_INDEX_URL` and the like). Each requirement must have hashes:
all pods get the same files. A failure ends with exit code 1; the last line of standard error says why.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from penstock_wire import contract

OWN_FOLDER = ".penstock"
REQUIREMENTS = f"{OWN_FOLDER}/requirements.txt"
"""Where an archive lists requirements, as pip reads them."""
WHEELS = f"{OWN_FOLDER}/wheels"
"""A folder of the archive; where it is there, pip looks nowhere else."""
INSTALLED = f"{OWN_FOLDER}/site-packages"
MOST_BYTES = 64 * 1024 * 1024
"""Of all files of an archive together; the archive itself has at most 900 KiB."""
MOST_FILES = 10_000
_READ = 1 << 16
_RETRY = "WARNING: Retrying ("
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")


class BadArchive(Exception):
    """An archive is not what was deployed, or not one that may be unpacked; says why."""


def unpack(archive: bytes, folder: Path, *, digest: str) -> None:
    """Unpack an archive's files.

    Args:
        archive: a ZIP archive.
        folder: where to; it exists.
        digest: `sha256:` and the archive's SHA-256, in hexadecimal digits.

    Raises:
        BadArchive: it has another digest, or has a path that leads out of the folder, a link, or too much.
        OSError: a file cannot be written.
    """
    found = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    if found != digest:
        raise BadArchive(f"expected code with digest {digest}, found {found}: its ConfigMap was changed")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            members = opened.infolist()
            if len(members) > MOST_FILES:
                raise BadArchive(f"expected at most {MOST_FILES} files, found {len(members)}")
            left = MOST_BYTES
            for member in members:
                left -= _write(opened, member, folder, most=left)
    # NB: NotImplementedError and RuntimeError are zipfile's, for methods it lacks and for encrypted files.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadArchive(f"expected a ZIP archive: {error}") from error


def _write(opened: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path, *, most: int) -> int:
    """Write one file and return its size; what the archive says of the size is not believed."""
    path = PurePosixPath(member.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in member.filename or member.is_dir():
        raise BadArchive(f"expected paths of files below the archive's root, found {member.filename!r}")
    if (member.external_attr >> 16) & 0o170000 not in (0, 0o100000):
        raise BadArchive(f"expected regular files, found a link or device: {member.filename!r}")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with opened.open(member) as source, target.open("wb") as file:
        while piece := source.read(_READ):
            size += len(piece)
            if size > most:
                raise BadArchive(f"expected at most {MOST_BYTES // 1024 // 1024} MiB of files, found more")
            file.write(piece)
    return size


def install(folder: Path) -> None:
    """Install the requirements of an unpacked archive, if it lists any.

    Raises:
        BadArchive: pip cannot, or the image has none, as those of formats.
    """
    if not (folder / REQUIREMENTS).exists():
        return
    if importlib.util.find_spec("pip") is None:
        raise BadArchive("expected pip in the image, to install requirements, found none: use python-model's")
    # Of a step that was killed: pip passes over each package of which anything is there already.
    shutil.rmtree(folder / INSTALLED, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "pip", "install", "--require-hashes", "--only-binary", ":all:"),
        *("--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"),
        *("--target", str(folder / INSTALLED), "--requirement", str(folder / REQUIREMENTS)),
    ]
    if (folder / WHEELS).is_dir():
        command += ["--no-index", "--find-links", str(folder / WHEELS)]
    retried = False
    with subprocess.Popen(  # noqa: S603 - a command of ours
        command, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as pip:
        for line in pip.stderr or ():
            # The first of its retries alone, without addresses in memory: a condition shows the last words,
            # and would be another after each restart.
            if not (retried and line.startswith(_RETRY)):
                print(_ADDRESS.sub("", line), end="", file=sys.stderr, flush=True)
            retried = retried or line.startswith(_RETRY)
    if pip.returncode:
        here = f"Python {sysconfig.get_python_version()} on {sysconfig.get_platform()}"
        way = "; its index was not reached: PIP_INDEX_URL names another, --wheelhouse needs none" * retried
        raise BadArchive(f"pip could not install the requirements for {here}{way}")


def activate() -> None:
    """Let this process import what a first step has installed, before what the image has."""
    folder = os.environ.get(contract.CODE_ENV)
    installed = Path(folder, INSTALLED) if folder else None
    if installed is not None and installed.is_dir():
        before = list(sys.path)
        site.addsitedir(str(installed))
        added = [path for path in sys.path if path not in before]
        sys.path[:] = [*before[:1], *added, *before[1:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the step.

    Args:
        argv: the arguments; None: the process's own.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m penstock_wire.unpack", description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--digest", required=True, help="sha256:… of the archive")
    options = parser.parse_args(argv)
    try:
        unpack(options.archive.read_bytes(), options.folder, digest=options.digest)
        install(options.folder)
    except (BadArchive, OSError) as error:
        print(f"penstock code: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
