"""What a pod's first step, its sidecar and the operator say of a model's artifact, its files."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
Name = Annotated[str, msgspec.Meta(max_length=253)]
Digest = Annotated[str, msgspec.Meta(max_length=71)]
"""`sha256:` and 64 hexadecimal digits: no more fits into a status."""

_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class ArtifactDemand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The digest that the first download of an artifact had, which each other pod must find.

    Args:
        source: `source_of` it: pods of another do not look at this.
        digest: `sha256:` and 64 hexadecimal digits.
    """

    source: Name
    digest: Name


class ArtifactState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a pod's first step has come; the step writes it into a file and, at its end, as last words.

    Args:
        source: `source_of` the artifact.
        here: bytes that are in the pod.
        total: bytes of all files; 0 while that is unknown.
        rate: bytes a second lately.
        digest: `digest_of` the files, once all are there.
    """

    source: Name
    here: Count = 0
    total: Count = 0
    rate: Count = 0
    digest: Digest = ""

    @property
    def left(self) -> float:
        """Seconds until all is there, by the rate; 0 if that is not known."""
        return max(0, self.total - self.here) / self.rate if self.rate else 0.0

    @property
    def words(self) -> str:
        """The progress for people, such as `3.1 of 14.2 GB, 180 MB/s, 62 s left`."""
        size, unit = _unit(self.total)
        text = f"{_short(self.here / size)} of {_short(self.total / size)} {unit}"
        if not self.rate:
            return text
        speed, per = _unit(self.rate)
        return f"{text}, {_short(self.rate / speed)} {per}/s, {_time(self.left)} left"


class ArtifactTurn(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the operator says to a pod that has the files or downloads them: whom it copies from, and the key.

    Args:
        source: `source_of` the artifact.
        key: a secret of the pods that have this artifact, or will; see `signature`.
        neighbour: the address of the pod that has the files or is ahead; "" for the artifact's origin.
    """

    source: Name
    key: Name
    neighbour: Name = ""


class ArtifactAdvice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a sidecar says to the first step of its pod.

    Args:
        turn: the operator's word; None without any, or if no pod downloads.
        digest: what the files must have; "" while that is not known.
    """

    turn: ArtifactTurn | None = None
    digest: Name = ""


def signature(key: str, path: str) -> str:
    """What a request for a path of a neighbour carries, so that the key itself never crosses the network."""
    return hmac.new(key.encode(), path.encode(), hashlib.sha256).hexdigest()


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _unit(count: int) -> tuple[int, str]:
    return next(((size, name) for size, name in _UNITS if count >= size), (1, "bytes"))


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}".removesuffix(".0")


def amount(count: int) -> str:
    """A number of bytes for people, such as `14.2 GB`."""
    size, name = _unit(count)
    return f"{_short(count / size)} {name}"


def source_of(uri: str, include: Sequence[str], digest: str | None) -> str:
    """The name of what a backend asks for: pods with one source must have the same files."""
    return hashlib.sha256("\n".join((uri, digest or "", *include)).encode()).hexdigest()[:16]


def digest_of(files: Mapping[str, str]) -> str:
    """The digest of an artifact, which `sha256sum` can make, too (docs/how-to/artifacts.md).

    Args:
        files: SHA-256 of each file in hexadecimal digits, by path.
    """
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files, key=str.encode))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def read_state(file: Path) -> ArtifactState | None:
    """Read the file that the first step writes; None if it is not there (yet), or unreadable."""
    try:
        return parse_state(file.read_bytes())
    except OSError:
        return None


def parse_state(data: str | bytes) -> ArtifactState | None:
    """Read a state; None if it is none."""
    try:
        return msgspec.json.decode(data, type=ArtifactState)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
