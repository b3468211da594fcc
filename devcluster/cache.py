"""A folder of finished things, each keyed on a hash of what it was made from.

A thing is made in a temporary folder and renamed into place, so a reader sees all of it or nothing. A lock
for each thing keeps two runs from making it twice; the lock dies with its holder.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from devcluster.console import say


def digest(parts: Iterable[bytes | str | Path]) -> str:
    """Hash the parts, in order, into 16 hexadecimal digits.

    Args:
        parts: Bytes and text count as they are; of a path its contents count.

    Returns:
        The first 64 bits of a SHA-256 in which each part is framed by its length.
    """
    total = hashlib.sha256()
    for part in parts:
        raw = (
            part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        )
        total.update(len(raw).to_bytes(8, "big"))
        total.update(raw)
    return total.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path, waiting: str | None = None) -> Iterator[None]:
    """Hold the lock file `path`; a second holder waits.

    The holder may unlink the file: a process that waited on the old file then takes a new one.

    Args:
        path: The lock file; made when it is not there.
        waiting: the message for the user while another process holds it.

    Yields:
        Nothing; the lock is held in the body.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting:
                    say(waiting)
                fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                same = path.stat().st_ino == os.fstat(handle).st_ino
            except FileNotFoundError:
                same = False
            if same:
                yield
                return
        finally:
            os.close(handle)


def cached(root: Path, name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `root/name-key`; make it first when it is not there.

    Args:
        root: The cache's folder for this kind of thing.
        name: What it is, for people.
        key: A `digest` of everything that it is made from.
        make: Fills the empty folder that it is given.

    Returns:
        The finished folder.
    """
    final = root / f"{name}-{key}"
    if final.is_dir():
        return final
    temporaries = root / ".tmp"
    with locked(root / ".locks" / name, waiting=f"waiting for another run that makes {name}"):
        if final.is_dir():
            return final
        temporaries.mkdir(parents=True, exist_ok=True)
        for stale in temporaries.glob(f"{name}-{key}.*"):  # left by a run that was killed: we hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{name}-{key}.", dir=temporaries))
        try:
            make(temporary)
            temporary.chmod(0o755)
            temporary.rename(final)
        except BaseException:  # Ctrl-C too: half a folder is never left in the cache
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return final
