"""The plan of a download: which files in which versions; a neighbour copies by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock_sidecar.artifact.origins import Remote

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Plan(msgspec.Struct, frozen=True):
    """What the folder holds of an artifact, or will.

    Args:
        source: the artifact, as in `ArtifactState`.
        boot: the machine's boot: what was written before another one may be lost in part.
        files: size and version of each file, by path.
        copied: whether a neighbour gave some of the bytes: they are nothing until a digest says so.
        unpacked: whether these are the files of an archive.
    """

    source: str
    boot: str
    files: dict[str, tuple[int, str]]
    copied: bool = False
    unpacked: bool = False

    @classmethod
    def of(cls, remotes: Sequence[Remote], *, source: str, unpacked: bool = False) -> Plan:
        """The plan of these files on this machine."""
        files = {remote.path: (remote.size, remote.version) for remote in remotes}
        return cls(source=source, boot=_BOOT.read_text().strip(), files=files, unpacked=unpacked)

    def remotes(self) -> list[Remote]:
        """The files, in the order in which they come."""
        return [
            Remote(path=path, size=size, version=version, at=path)
            for path, (size, version) in self.files.items()
        ]


def read_plan(file: Path) -> Plan | None:
    """Read a plan; None if there is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError):
        return None


def write_plan(file: Path, plan: Plan) -> None:
    """Write it, so that it is there whole or not."""
    draft = file.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(plan))
    draft.replace(file)
