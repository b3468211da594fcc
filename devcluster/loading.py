"""Images into a cluster's containerd: archives as they are, built ones without what it has already."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from devcluster import images, node, ocistore
from devcluster.cache import locked
from devcluster.console import step
from devcluster.errors import DevclusterError
from devcluster.paths import State
from devcluster.processes import Record, write_atomically


def load(state: State, record: Record, *what: str | Path) -> None:
    """Give images to a node's containerd; those that it has are skipped.

    Args:
        state: The node's folder; the first node's is the cluster's.
        record: Its running process.
        what: Archives (docker or OCI), by path, or names of images that `devcluster images` built.

    Raises:
        DevclusterError: The image or archive does not exist, or containerd refused it.
    """
    archives = [Path(entry) for entry in what if isinstance(entry, Path) or Path(entry).is_file()]
    names = [str(entry) for entry in what if Path(entry) not in archives]
    for archive in archives:
        with step(f"loading {archive}"), archive.open("rb") as file, _importing(record) as into:
            shutil.copyfileobj(file, into, 1 << 20)
    if names:
        _load_built(state, record, names)


def load_again(state: State, mine: State, record: Record) -> None:
    """Give a new node the images that its cluster was given by name.

    Args:
        state: The cluster.
        mine: The node's folder.
        record: The node's process.

    Raises:
        DevclusterError: Its containerd refused one.
    """
    try:
        names = list(json.loads(state.loaded.read_text()))
    except (OSError, ValueError):
        return
    if names:
        _load_built(mine, record, names)


def ctr(record: Record) -> list[str]:
    """Return the start of a command of a node's containerd client, from outside.

    A UNIX socket is reached through its file alone.

    Args:
        record: The node's process.
    """
    return node.ctr(f"/proc/{record.pid}/root{node.CONTAINERD_SOCKET}")


@contextlib.contextmanager
def _importing(record: Record) -> Iterator[IO[bytes]]:
    process = subprocess.Popen(
        [*ctr(record), "images", "import", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None  # noqa: S101 - for the type checker
    assert process.stderr is not None  # noqa: S101 - for the type checker
    with contextlib.suppress(BrokenPipeError):  # why it stopped reading is what it says below
        try:
            yield process.stdin
        finally:
            process.stdin.close()
    output = process.stderr.read().decode(errors="replace")
    process.stderr.close()
    if process.wait():
        raise DevclusterError(f"containerd refused the image: {output.strip()[-1000:]}")


def _load_built(state: State, record: Record, names: Sequence[str]) -> None:
    with locked(state.root / "loading.lock", waiting="waiting for another run that loads images"):
        with images.store_lock():
            built = images.built()
            if absent := [name for name in names if name not in built]:
                raise DevclusterError(
                    f"no image {', '.join(absent)}: neither a file nor built; `python -m devcluster images` "
                    f"builds, and there are: {', '.join(sorted(built)) or 'none'}"
                )
            try:
                loaded = json.loads(state.loaded.read_text())
            except (OSError, ValueError):
                loaded = {}
            fresh = [name for name in names if loaded.get(name) != built[name]]
            if not fresh:
                return
            listing = [*ctr(record), "content", "ls", "--quiet"]
            present = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
            with step(f"loading {', '.join(fresh)}"), _importing(record) as into:
                ocistore.write_archive(
                    images.layout(), {name: images.reference(name) for name in fresh}, present, into
                )
        loaded.update({name: built[name] for name in fresh})
        write_atomically(state.loaded, json.dumps(loaded))
