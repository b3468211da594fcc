"""How far a download has come: written into a file, for the sidecar's reports."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock_wire.control.artifact import ArtifactState

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write fails with if there is no room."""
_EVERY = 0.5
"""Seconds between two writes."""
_LATELY = 10.0
"""Seconds over which the rate is measured."""


class Progress:
    """Counts bytes, and writes the state at most twice a second.

    Args:
        file: where to.
        source: the artifact, as in `ArtifactState`.
        clock: monotonic seconds.
    """

    def __init__(self, file: Path, *, source: str, clock: Callable[[], float]) -> None:
        self._file = file
        self._state = ArtifactState(source=source)
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()
        self._written = float("-inf")

    @property
    def here(self) -> int:
        """Bytes that are in the pod."""
        return self._state.here

    def begin(self, *, total: int, here: int) -> None:
        """Set the bytes of all files, and of those that an earlier step has left."""
        self._state = msgspec.structs.replace(self._state, total=total, here=here)
        self._marks.append((self._clock(), here))
        self._try_to_write()

    def came(self, count: int) -> None:
        """Count bytes."""
        now, here = self._clock(), self._state.here + count
        while len(self._marks) > 1 and self._marks[0][0] < now - _LATELY:
            self._marks.popleft()
        since, before = self._marks[0]
        rate = round((here - before) / (now - since)) if now > since else 0
        self._state = msgspec.structs.replace(self._state, here=here, rate=rate)
        if now >= self._written + _EVERY:
            self._marks.append((now, here))
            self._try_to_write()

    def finish(self, *, digest: str, size: int) -> bytes:
        """Write that all is there, and return what was written."""
        self._state = msgspec.structs.replace(self._state, here=size, total=size, rate=0, digest=digest)
        return self._write()

    def _try_to_write(self) -> None:
        """Write how far it is, if there is room: old files, which take it, may be about to go."""
        try:
            self._write()
        except OSError as error:
            if error.errno not in FULL:
                raise

    def _write(self) -> bytes:
        data = msgspec.json.encode(self._state)
        draft = self._file.with_suffix(".draft")
        draft.write_bytes(data)
        draft.replace(self._file)
        self._written = self._clock()
        return data
