"""Python environments of the peers, of the plots and of the servers in tests/clients, beside ours.

They are made when missing, pinned, and git-ignored.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE / ".cache" / "venvs"
REQUIREMENTS = HERE / "peers"


class NotInstalledError(Exception):
    """An environment could not be made; says why."""


def ensure(name: str, *, lock: Path | None = None, timeout: float = 600) -> Path:
    """Return the Python of an environment.

    Args:
        name: of the environment.
        lock: what to install; None = `peers/<name>.txt`.
        timeout: seconds that each step may take.

    Raises:
        NotInstalledError: uv could not make it.
    """
    lock = lock or REQUIREMENTS / f"{name}.txt"
    folder = CACHE / name
    stamp = folder / "made-of"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    uv = Path(sys.executable).with_name("uv")
    program = str(uv) if uv.exists() else shutil.which("uv")
    if not program:
        raise NotInstalledError("uv is not here; run `make check` once, which sets up the environment")
    print(f"[bench] installing {name} into {folder.relative_to(HERE.parent)}", flush=True)
    for command in (
        [program, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [program, "pip", "install", "--quiet", "--python", str(python), "-r", str(lock)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise NotInstalledError(f"{' '.join(command[1:3])} took more than {timeout:g} s") from None
        if done.returncode:
            raise NotInstalledError(" ".join(done.stderr.split())[-400:])
    stamp.write_text(digest)
    return python
